"""MLflow's server is killed: a run that needs it ends in words."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow_server import documented_server

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "training"))
from trainer_tools import wait_until  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def start(tmp_path):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("CPB_", "MLFLOW_", "PREFECT_API"))}
    env |= {"PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(tmp_path / "config")}

    def begin(*arguments, **more):
        return subprocess.Popen(
            [sys.executable, "-m", "flows.cli", *map(str, arguments)], cwd=tmp_path, env=env | more, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    return begin


def test_a_training_whose_server_dies_says_that_it_waits_and_then_why_it_ends(start, tmp_path):
    epochs = 60
    with documented_server(tmp_path / "head", f"sqlite:///{tmp_path}/mlflow.db") as (_, url, password, kill):
        place = {
            "MLFLOW_TRACKING_URI": url,
            "MLFLOW_TRACKING_USERNAME": "cpb",
            "MLFLOW_TRACKING_PASSWORD": password,
        }
        training = start(
            "train-all", "--source", "sim", "--coins", "BTC", "--timeframes", "1h", "--preset", "smoke", "--since",
            "2025-01", "--as-of", "2025-04-01", "--architectures", "gru", "--device", "cpu", "--json",
            "--set", f"max_epochs={epochs}", "--set", f"patience={epochs}", CPB_HOME=str(tmp_path / "data"), **place,
        )  # fmt: skip
        trains = (tmp_path / "data").glob
        wait_until(lambda: training.poll() is not None or list(trains("sim/fleets/*/checkpoints/*/*")), 200)
        assert training.poll() is None, training.communicate()
        kill()
    out, said = training.communicate(timeout=300)
    told = json.loads(out)
    assert (training.returncode, told["exit"], told["code"]) == (1, 1, "database-down")
    assert "cannot be reached" in told["error"]
    assert (
        said.count(f"waiting for the MLflow server {url} for more than 10 s") == 1
    )  # nothing is told to it after
    assert "Traceback" not in said
    assert password not in out + said
