"""A real Prefect server and worker: deploy, run to Completed, a cron schedule that yields a run, stop."""

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Project:
    """A copy of the deployment file and the flows in a folder of its own, with its own Prefect and MLflow homes."""

    def __init__(self, folder):
        self.folder, self.port = folder, free_port()
        shutil.copy(ROOT / "prefect.yaml", folder)
        shutil.copytree(ROOT / "flows", folder / "flows", ignore=shutil.ignore_patterns("__pycache__"))
        self.api = f"http://127.0.0.1:{self.port}/api"
        self.env = os.environ | {"PREFECT_HOME": str(folder / "prefect")}

    def cpb(self, *arguments, **env):
        command = [sys.executable, "-m", "flows.cli", *arguments]
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.env | env,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    def post(self, path, body):
        request = urllib.request.Request(
            f"{self.api}/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    project = Project(tmp_path_factory.mktemp("deploy"))
    done = project.cpb("deploy", "up", "--port", str(project.port))
    assert done.returncode == 0, done.stderr
    yield project
    down = project.cpb("deploy", "down")
    assert "stopped worker, server" in down.stderr
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"{project.api}/health", timeout=5)


def test_prefects_own_command_runs_the_job_to_completed(project):
    command = [
        sys.executable, "-m", "prefect", "--no-prompt", "deployment", "run", "train-all/train-all", "--watch",
        "--param", "source=sim", "--param", "coins=BTC", "--param", "timeframes=1h",
        "--param", "architectures=linear", "--param", "preset=smoke",
    ]  # fmt: skip
    env = project.env | {"PREFECT_API_URL": project.api}
    done = subprocess.run(
        command, cwd=project.folder, env=env, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    runs = project.post("flow_runs/filter", {"deployments": {"name": {"any_": ["train-all"]}}})
    assert [r["state"]["type"] for r in runs] == ["COMPLETED"]
    assert runs[0]["state"]["name"] == "Completed"
    assert list((project.folder / "data" / "forecasts").rglob("*.parquet"))
    tasks = project.post("task_runs/filter", {})
    assert {"ingest", "features", "train", "evaluate", "promote", "publish", "forecast"} <= {
        t["name"].rsplit("-", 1)[0] for t in tasks
    }


def test_the_cron_schedules_yield_runs(project):
    deadline = time.monotonic() + 180
    scheduled = set()
    while time.monotonic() < deadline and len(scheduled) < 2:
        runs = project.post("flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}}})
        scheduled = {r["deployment_id"] for r in runs if r["auto_scheduled"]}
        time.sleep(2)
    names = {d["id"]: d["name"] for d in project.post("deployments/filter", {})}
    assert {names[i] for i in scheduled} == {"nightly", "hourly"}


def test_up_twice_and_unknown_deployments_are_said_plainly(project):
    assert "already up" in project.cpb("deploy", "up").stderr
    assert "unknown: choose from train-all" in project.cpb("deploy", "run", "nonsense").stderr


def test_a_backtest_is_a_flow_run_where_a_server_is_named(project):
    command = ["backtest", "--source", "sim", "--coins", "BTC,NOPE", "--timeframes", "1h", "--preset", "smoke",
               "--architectures", "har", "--folds", "2", "--json"]  # fmt: skip
    done = project.cpb(*command, PREFECT_API_URL=project.api)
    assert done.returncode == 3, done.stderr
    through = json.loads(done.stdout.splitlines()[-1])
    runs = project.post("flow_runs/filter", {"flows": {"name": {"any_": ["backtest"]}}})
    assert [(r["state"]["type"], r["state"]["name"]) for r in runs] == [("COMPLETED", "Partial")]
    plain = project.cpb(*command)
    assert plain.returncode == 3
    assert json.loads(plain.stdout.splitlines()[-1]) == through


def test_an_expected_error_is_one_sentence_on_the_server_too(project):
    done = project.cpb(
        "train-all", "--source", "sim", "--coins", "NOPE", "--preset", "smoke", PREFECT_API_URL=project.api
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("cpb: no series can be trained")
    runs = project.post("flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": ["FAILED"]}}}})
    assert [r["state"]["message"] for r in runs] == [last.removeprefix("cpb: ")]


def test_a_run_that_meets_another_writer_waits_for_it(project):
    command = ["train-all", "--source", "sim", "--coins", "BTC", "--timeframes", "1h", "--preset", "smoke",
               "--architectures", "linear", "--json"]  # fmt: skip
    with (project.folder / "data" / "writer.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        plain = project.cpb(*command)
        assert plain.returncode == 1
        assert "another cpb is writing" in plain.stderr  # a person is told at once
        flow = subprocess.Popen(
            [sys.executable, "-m", "flows.cli", *command], cwd=project.folder, text=True,
            env=project.env | {"PREFECT_API_URL": project.api}, stdout=subprocess.PIPE,
        )  # fmt: skip
        waiting = {"task_runs": {"state": {"name": {"any_": ["AwaitingRetry"]}}}}
        deadline = time.monotonic() + 120
        while not project.post("task_runs/filter", waiting) and time.monotonic() < deadline:
            time.sleep(0.5)
        assert flow.poll() is None
    out, _ = flow.communicate(timeout=300)
    assert flow.returncode == 0
    assert json.loads(out.splitlines()[-1])["champions"] == 1
