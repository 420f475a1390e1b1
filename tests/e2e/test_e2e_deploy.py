"""The project's own deployments on a real Prefect server: run to Completed, schedules that yield runs, errors."""

import fcntl
import json
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest
from deployed import Deployed, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SMALL = ["--source", "sim", "--timeframes", "1h", "--preset", "smoke"]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    project = Deployed(tmp_path_factory.mktemp("deploy"), whole=True)
    project.started = project.up()
    yield project
    assert project.close() == []


@pytest.fixture
def client(project):
    """Return the environment that makes a command a client of the server."""
    return {"PREFECT_API_URL": project.api, "PREFECT_API_AUTH_STRING": project.password}


def test_prefects_own_command_runs_the_job_to_completed(project):
    parameters = ["source=sim", "coins=BTC", "timeframes=1h", "architectures=linear", "preset=smoke"]
    options = " ".join(f"-p {parameter}" for parameter in parameters)
    command = f"{project.started['export']} && {sys.executable} -m prefect --no-prompt deployment run"
    done = subprocess.run(
        ["bash", "-c", f"{command} train-all/train-all --watch {options}"],
        cwd=project.elsewhere, env=project.env, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    runs = project.runs(deployments={"name": {"any_": ["train-all"]}})
    assert [(run["state"]["type"], run["state"]["name"]) for run in runs] == [("COMPLETED", "Completed")]
    tasks = project.ask("task_runs/filter", {}).json()
    steps = {task["name"].rsplit("-", 1)[0].split()[0] for task in tasks}
    assert {"ingest", "features", "train", "evaluate", "promote", "publish", "forecast"} <= steps
    data = project.json("deploy", "status")["data"]
    assert [one["timeframe"] for one in data] == ["1h"]
    assert data[0]["forecast"] == data[0]["candle"]  # forecast from the newest candle


def test_the_cron_schedules_yield_runs(project):
    deadline = time.monotonic() + 180
    scheduled = set()
    while time.monotonic() < deadline and len(scheduled) < 2:
        scheduled = {run["deployment_id"] for run in project.runs("SCHEDULED") if run["auto_scheduled"]}
        time.sleep(2)
    names = {one["id"]: one["name"] for one in project.ask("deployments/filter", {}).json()}
    assert {names[deployment] for deployment in scheduled} == {"nightly", "hourly"}
    due = {one["name"]: one["next"] for one in project.json("deploy", "status", code=None)["deployments"]}
    assert {name for name, time in due.items() if time} == {"train-all/nightly", "forecast/hourly"}


def test_a_backtest_is_a_flow_run_where_a_server_is_named(project, client):
    command = ["backtest", "--coins", "BTC,NOPE", *SMALL, "--architectures", "har", "--folds", "2", "--json"]
    done = project.cpb(*command, **client)
    assert done.returncode == 3, done.stderr
    through = json.loads(done.stdout.splitlines()[-1])
    runs = project.runs(flows={"name": {"any_": ["backtest"]}})
    assert [(run["state"]["type"], run["state"]["name"]) for run in runs] == [("COMPLETED", "Partial")]
    plain = project.cpb(*command)
    assert plain.returncode == 3
    assert json.loads(plain.stdout.splitlines()[-1]) == through


def test_an_expected_error_is_one_sentence_on_the_server_too(project, client):
    done = project.cpb("train-all", "--coins", "NOPE", *SMALL, **client)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("cpb: ")
    assert [run["state"]["message"] for run in project.runs("FAILED")] == [last.removeprefix("cpb: ")]


def test_without_the_password_the_remedy_is_said(project):
    done = project.cpb("train-all", "--coins", "BTC", *SMALL, PREFECT_API_URL=project.api)
    assert done.returncode == 1
    assert "cpb-api-auth" in done.stderr.splitlines()[-1]


def test_a_run_that_meets_another_writer_waits_for_it(project, client):
    command = ["train-all", "--coins", "BTC", *SMALL, "--architectures", "linear", "--json"]
    with ExitStack() as stack:
        for home in (project.folder / "data", project.folder / "data" / "sim"):
            home.mkdir(parents=True, exist_ok=True)
            fcntl.flock(stack.enter_context((home / "writer.lock").open("a")), fcntl.LOCK_EX)
        before = len(project.ask("task_runs/filter", {}).json())
        flow = subprocess.Popen(
            [sys.executable, "-m", "flows.cli", *command], cwd=project.folder, text=True,
            env=project.env | client, stdout=subprocess.PIPE,
        )  # fmt: skip
        wait_for(lambda: len(project.ask("task_runs/filter", {}).json()) > before)  # it is ingesting
        time.sleep(5)
        assert flow.poll() is None
    out, _ = flow.communicate(timeout=300)
    assert flow.returncode == 0
    assert json.loads(out.splitlines()[-1])["champions"] == 1
