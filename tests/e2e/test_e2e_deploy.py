"""The project's own deployments on a real Prefect server: run to Completed, schedules that yield runs, errors."""

import json
import subprocess
import sys
import time

import pytest

from tests.tools.deployed import Deployed, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SIM = ["--param", "source=sim", "--param", "timeframes=1h"]
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
        cwd=project.elsewhere,
        env=project.env,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    runs = project.runs(deployments={"name": {"any_": ["train-all"]}})
    assert [(run["state"]["type"], run["state"]["name"]) for run in runs] == [("COMPLETED", "Completed")]
    tasks = project.ask("task_runs/filter", {}).json()
    steps = {task["name"].rsplit("-", 1)[0].split()[0] for task in tasks}
    assert {"ingest", "features", "train", "evaluate", "promote", "publish", "forecast"} <= steps


def test_the_cron_schedules_yield_runs(project):
    deadline = time.monotonic() + 180
    scheduled = set()
    while time.monotonic() < deadline and len(scheduled) < 2:
        scheduled = {run["deployment_id"] for run in project.runs("SCHEDULED") if run["auto_scheduled"]}
        time.sleep(2)
    due = {d["name"]: d["next"] for d in project.json("deploy", "status", code=None)["deployments"]}
    assert {name for name, time in due.items() if time} == {"train-all/nightly", "forecast/hourly"}


def test_one_training_runs_at_a_time_forecasts_beside_it_and_cancelled_it_leaves_no_process(project):
    endless = [
        "preset=smoke",
        "source=sim",
        "coins=BTC",
        "timeframes=1h",
        "architectures=gru",
        'overrides={"epochs": 5000, "patience": 5000}',
    ]
    words = [word for parameter in endless for word in ("--param", parameter)]
    run = project.json("deploy", "run", "train-all", *words)

    def trainers():
        return [p for p in project.processes() if "spawn_main" in " ".join(p.cmdline())]

    wait_for(trainers)
    waiting = project.json("deploy", "run", "nightly", *words[:8])
    assert project.json("deploy", "run", "hourly", "--watch")["state"] == "Not yet"

    def states():
        rows = project.json("deploy", "status", code=None)["deployments"]
        return {row["name"].rpartition("/")[2]: (row["running"], row["queued"]) for row in rows}

    wait_for(lambda: states()["nightly"] == ([], [waiting["name"]]))
    assert states()["train-all"] == (["train-all smoke BTC 1h"], [])
    assert "queued" in project.cpb("deploy", "status").stdout
    assert project.prefect("flow-run", "delete", waiting["flow_run_id"]).returncode == 0
    assert project.prefect("flow-run", "cancel", run["flow_run_id"]).returncode == 0
    wait_for(lambda: project.run_of(run["flow_run_id"])["state"]["name"] == "Cancelled", 60)
    wait_for(lambda: len(project.processes()) == 2, 30)  # server and worker
    assert project.slots() == 0


def test_a_run_that_fails_for_an_expected_reason_logs_one_sentence_and_no_traceback(project):
    log = project.state / "worker.log"
    before = log.stat().st_size
    failed = project.json("deploy", "run", "train-all", "--watch", "--param", "coins=NOPE", *SIM, code=1)
    assert failed["state"] == "Failed"
    lines = [line["message"] for line in project.log_of(failed["flow_run_id"])]
    assert [line for line in lines if "NOPE" in line and "Failed" in line]
    assert "Traceback" not in "".join(lines)
    assert b"Traceback" not in log.read_bytes()[before:]


SERVED = """
from flows.train_all import train_all

if __name__ == "__main__":
    train_all.serve(name="served")
"""


def test_the_flow_is_served_as_prefects_users_write_it(project, client):
    script = project.elsewhere / "serve.py"
    script.write_text(SERVED)
    with (project.folder / "served.log").open("w") as log:
        served = subprocess.Popen(
            [sys.executable, script], cwd=project.folder, env=project.env | client, stdout=log, stderr=log
        )
    try:
        wait_for(lambda: project.ask("deployments/name/train-all/served").status_code == 200)
        parameters = ["source=sim", "coins=BTC", "timeframes=1h", "architectures=linear", "preset=smoke"]
        words = [word for parameter in parameters for word in ("-p", parameter)]
        done = project.prefect("deployment", "run", "train-all/served", "--watch", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        runs = project.runs(deployments={"name": {"any_": ["served"]}})
        assert [run["state"]["name"] for run in runs] == ["Completed"]
    finally:
        served.terminate()
        served.wait(30)


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
    # the run of the worker that failed for the same reason says the same
    assert {run["state"]["message"] for run in project.runs("FAILED")} == {last.removeprefix("cpb: ")}
