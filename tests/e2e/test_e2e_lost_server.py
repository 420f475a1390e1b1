"""MLflow's server is killed: a training ends in words, and hourly forecasts go on."""

import json
import os
import subprocess

import pytest

from tests.tools.mlflow_server import documented_server
from tests.tools.trainer_tools import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def start(tmp_path, forking):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("CPB_", "MLFLOW_", "PREFECT_API"))}
    env |= {"XDG_CONFIG_HOME": str(tmp_path / "config")}

    def begin(*arguments, **more):
        return subprocess.Popen(
            [forking / "cpb", *map(str, arguments)],
            cwd=tmp_path,
            env=env | more,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    return begin


def test_a_training_whose_server_dies_says_why_it_ends(start, tmp_path):
    epochs = 60
    with documented_server(tmp_path / "head", f"sqlite:///{tmp_path}/mlflow.db") as (_, url, password, kill):
        place = {
            "MLFLOW_TRACKING_URI": url,
            "MLFLOW_TRACKING_USERNAME": "cpb",
            "MLFLOW_TRACKING_PASSWORD": password,
        }
        training = start(
            "train-all",
            "--source",
            "sim",
            "--coins",
            "BTC",
            "--timeframes",
            "1h",
            "--preset",
            "smoke",
            "--since",
            "2025-01",
            "--as-of",
            "2025-04-01",
            "--architectures",
            "gru",
            "--device",
            "cpu",
            "--json",
            "--set",
            f"max_epochs={epochs}",
            "--set",
            f"patience={epochs}",
            CPB_HOME=str(tmp_path / "data"),
            **place,
        )
        trains = (tmp_path / "data").glob
        wait_until(lambda: training.poll() is not None or list(trains("sim/fleets/*/checkpoints/*/*")), 200)
        assert training.poll() is None, training.communicate()
        kill()
    out, said = training.communicate(timeout=300)
    told = json.loads(out)
    assert (training.returncode, told["exit"], told["code"]) == (1, 1, "store")
    assert told["error"].startswith(f"the MLflow store {url} cannot be used: ")
    assert "Traceback" not in said
    assert password not in out + said


def test_forecasts_go_on_between_two_runs_while_the_server_is_away(start, tmp_path):
    scope = ("--source", "sim", "--coins", "BTC", "--timeframes", "1h", "--json")

    def forecast(day, **place):
        done = start("forecast", *scope, "--as-of", f"2025-04-{day}", **place)
        out, said = done.communicate(timeout=300)
        assert done.returncode == 0, out + said
        return json.loads(out), said

    with documented_server(tmp_path / "head", f"sqlite:///{tmp_path}/mlflow.db") as (_, url, password, kill):
        place = {
            "MLFLOW_TRACKING_URI": url,
            "MLFLOW_TRACKING_USERNAME": "cpb",
            "MLFLOW_TRACKING_PASSWORD": password,
            "CPB_HOME": str(tmp_path / "data"),
        }
        training = start(
            "train-all",
            *scope,
            "--preset",
            "smoke",
            "--since",
            "2025-01",
            "--as-of",
            "2025-04-01",
            "--architectures",
            "har",
            "--device",
            "cpu",
            **place,
        )
        out, said = training.communicate(timeout=300)
        assert training.returncode == 0, out + said
        first, said = forecast("02", **place)
        assert "brought up to date" not in said
        kill()
    second, said = forecast("03", **place)
    assert f"could not be brought up to date: the MLflow store {url} cannot be used" in said
    assert password not in said
    versions = [{row["model_version"] for row in result["rows"]} for result in (first, second)]
    assert versions == [{"cpb-sim-BTCUSDT-1h/1"}] * 2
    assert (first["new_rows"], second["new_rows"]) == (10, 10)
