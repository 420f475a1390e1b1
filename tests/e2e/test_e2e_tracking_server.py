"""`cpb tracking-server` is killed: nothing of it goes on, the port is free, and a run that needed it ends in words."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from ports import free_port

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


def serve(start, tmp_path, port):
    server = start(
        "tracking-server", "--port", port, "--json",
        MLFLOW_BACKEND_STORE_URI=f"sqlite:///{tmp_path}/mlflow.db",
    )  # fmt: skip
    line = server.stdout.readline()
    assert line, server.communicate()
    return server, json.loads(line)


def is_gone(process):
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_a_killed_server_leaves_nobody_at_its_port(start, tmp_path):
    port = free_port()
    server, _ = serve(start, tmp_path, port)
    children = psutil.Process(server.pid).children(recursive=True)
    server.kill()
    server.communicate(timeout=30)
    wait_until(lambda: all(map(is_gone, children)), 30)
    again, answer = serve(start, tmp_path, port)
    assert answer["url"] == f"http://127.0.0.1:{port}"
    again.send_signal(signal.SIGTERM)
    again.communicate(timeout=30)
    assert again.returncode == 0


def test_a_training_whose_server_dies_says_that_it_waits_and_then_why_it_ends(start, tmp_path):
    server, answer = serve(start, tmp_path, free_port())
    user, _, password = Path(answer["auth_file"]).read_text().strip().partition(":")
    place = {
        "MLFLOW_TRACKING_URI": answer["url"],
        "MLFLOW_TRACKING_USERNAME": user,
        "MLFLOW_TRACKING_PASSWORD": password,
    }
    epochs = 60
    training = start(
        "train-all", "--source", "sim", "--coins", "BTC", "--timeframes", "1h", "--preset", "smoke", "--since",
        "2025-01", "--as-of", "2025-04-01", "--architectures", "gru", "--device", "cpu", "--json",
        "--max-epochs", epochs, "--set", f"patience={epochs}", CPB_HOME=str(tmp_path / "data"), **place,
    )  # fmt: skip
    wait_until(lambda: list((tmp_path / "data").glob("sim/fleets/*/checkpoints/*/*")), 200)
    server.kill()
    server.communicate(timeout=30)
    out, said = training.communicate(timeout=300)
    told = json.loads(out)
    assert (training.returncode, told["exit"], told["code"]) == (1, 1, "database-down")
    assert "cannot be reached" in told["error"]
    assert (
        said.count(f"waiting for the MLflow server {answer['url']} for more than 10 s") == 1
    )  # nothing is told to it after
    assert "Traceback" not in said
    assert password not in out + said
