"""The project's own deployments on a real Prefect server: run to Completed, schedules that yield runs, errors."""

import fcntl
import json
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest
from deployed import Deployed, wait_for
from ports import free_port

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
    due = {d["name"]: d["next"] for d in project.json("deploy", "status", code=None)["deployments"]}
    assert {name for name, time in due.items() if time} == {"train-all/nightly", "forecast/hourly"}


def test_a_training_that_is_cancelled_by_prefects_own_command_stops_and_leaves_no_process(project):
    endless = ["preset=smoke", "source=sim", "coins=BTC", "timeframes=1h", "architectures=gru",
               'overrides={"epochs": 5000, "patience": 5000}']  # fmt: skip
    words = [word for parameter in endless for word in ("--param", parameter)]
    run = project.json("deploy", "run", "train-all", *words)

    def trainers():
        return [p for p in project.processes() if "spawn_main" in " ".join(p.cmdline())]

    wait_for(trainers)
    assert project.prefect("flow-run", "cancel", run["flow_run_id"]).returncode == 0
    wait_for(lambda: project.run_of(run["flow_run_id"])["state"]["name"] == "Cancelled", 60)
    wait_for(lambda: len(project.processes()) == 2, 30)  # server and worker
    assert project.slots() == 0


def test_the_deployments_go_into_a_server_and_a_pool_of_ones_own(project, tmp_path):
    """`prefect deploy --all` with the lines of prefect.yaml's head, in place of `cpb deploy up`."""
    port = free_port()
    env = project.env | {
        "PREFECT_HOME": str(tmp_path / "own"),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
    }

    def prefect(*words):
        return subprocess.run(
            [sys.executable, "-m", "prefect", "--no-prompt", *words], cwd=project.folder, env=env,
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip

    server = subprocess.Popen(
        [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)], env=env,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for(lambda: prefect("work-pool", "create", "local-gpu", "--type", "process").returncode == 0)
        assert prefect("deploy", "--all").returncode == 0
        words = ["source=sim", "coins=BTC", "timeframes=1h", "architectures=linear", "preset=smoke"]
        asked = prefect(
            "deployment", "run", "train-all/train-all", *(w for one in words for w in ("-p", one))
        )
        assert asked.returncode == 0, asked.stdout + asked.stderr
        assert prefect("worker", "start", "--pool", "local-gpu", "--run-once").returncode == 0
        ended = prefect("flow-run", "ls", "--state-type", "COMPLETED", "--flow-name", "train-all")
        assert "train-all" in ended.stdout, ended.stdout
    finally:
        server.terminate()
        server.wait(60)


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
