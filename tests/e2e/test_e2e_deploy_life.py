"""The deployment over time: what dies is started again, and the runs that it held are marked."""

import os
import signal
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import psutil
import pytest
from deployed import Deployed, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    deployed = Deployed(tmp_path_factory.mktemp("life"))
    yield deployed
    assert deployed.close() == []


@pytest.fixture
def running(deployed):
    deployed.up()
    return deployed


def kill(*pids):
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def is_gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE  # which an init may leave
    except psutil.NoSuchProcess:
        return True


def test_before_the_first_start_nothing_is_wrong(deployed):
    status = deployed.json("deploy", "status")
    assert (status["up"], status["problems"]) == (False, [])
    assert deployed.json("deploy", "down")["stopped"] == []
    deployed.json("deploy", "run", "quick/quick", code=1)


def test_up_starts_what_does_not_run_and_leaves_what_runs(deployed):
    assert deployed.up()["started"] == ["server", "worker"]
    first = deployed.json("deploy", "status")["pids"]
    again = deployed.json("deploy", "up")  # the port is remembered
    assert (again["started"], again["port"]) == ([], deployed.port)
    kill(first["worker"])
    status = deployed.json("deploy", "status", code=1)
    assert (status["up"], list(status["pids"]), len(status["problems"])) == (False, ["server"], 1)
    assert deployed.up()["started"] == ["worker"]
    second = deployed.json("deploy", "status")["pids"]
    assert second["server"] == first["server"]
    kill(second["server"])
    assert deployed.up()["started"] == ["server"]
    status = deployed.json("deploy", "status")
    assert (status["pids"]["worker"], status["problems"]) == (second["worker"], [])


def test_status_says_how_the_newest_run_ended(running):
    plain = running.cpb("deploy", "status")
    assert plain.returncode == 0
    assert "no run has ended yet" in plain.stderr
    watch = ["deploy", "run", "quick/quick", "--watch", "--param"]
    assert running.json(*watch, "text=a")["state"] == "Completed"
    assert running.json("deploy", "status")["problems"] == []
    assert running.json(*watch, "end=Partial", code=3)["state"] == "Partial"
    running.json(*watch, "end=Failed", code=1)
    status = running.json("deploy", "status", code=1)
    last = next(d for d in status["deployments"] if d["name"] == "quick/quick")
    assert (last["outcome"], last["message"]) == ("Failed", "as asked")
    assert len(status["problems"]) == 1
    assert running.json(*watch, "text=b")["exit"] == 0
    running.json(*watch, "end=Not yet")
    assert running.json("deploy", "status")["problems"] == []


def test_wrong_requests_are_refused(running):
    running.json("deploy", "run", "quick/nonsense", code=1)
    running.json("deploy", "up", "--port", running.port + 1, code=1)


def test_what_down_interrupts_is_cancelled(running):
    run, process = running.begin()
    assert running.slots() == 1
    assert running.json("deploy", "down")["stopped"] == ["worker", "server"]
    assert is_gone(process)
    assert running.processes() == []
    running.up()
    assert running.end_of(run) == ("Cancelled", [], 0)


def test_after_a_power_cut_the_next_start_marks_the_run(running):
    run, process = running.begin()
    kill(process, running.pid("worker"), running.pid("server"))
    running.json("deploy", "status", code=1)
    assert len(running.up()["runs_ended"]) == 1
    assert running.end_of(run) == ("Crashed", [], 0)
    second, process = running.begin()  # the deployment's own limit is free too
    kill(process)
    wait_for(lambda: running.run_of(second)["state"]["name"] == "Crashed", 30)  # the worker says so


def test_a_second_up_starts_a_killed_worker_ends_its_run_and_leaves_a_pause(running):
    (schedule,) = running.ask("deployments/name/quick/quick").json()["schedules"]
    assert running.prefect("deployment", "schedule", "pause", "quick/quick", schedule["id"]).returncode == 0
    run, process = running.begin()
    kill(running.pid("worker"))
    assert running.up()["started"] == ["worker"]
    assert is_gone(process)
    assert running.end_of(run) == ("Crashed", [], 0)
    (schedule,) = running.ask("deployments/name/quick/quick").json()["schedules"]
    assert not schedule["active"]
    assert not [due for due in running.runs("SCHEDULED") if due["auto_scheduled"]]
    assert running.prefect("deployment", "schedule", "resume", "quick/quick", schedule["id"]).returncode == 0
    wait_for(lambda: [due for due in running.runs("SCHEDULED") if due["auto_scheduled"]])


def test_what_was_missed_while_nothing_ran_is_dropped(running):
    kill(running.pid("worker"))
    deployment = running.ask("deployments/name/quick/quick").json()["id"]
    missed = (datetime.now(UTC) - timedelta(hours=3)).isoformat()
    state = {"type": "SCHEDULED", "state_details": {"scheduled_time": missed}}
    asked, *scheduled = [
        running.ask(f"deployments/{deployment}/create_flow_run", {"state": state}).json()["id"]
        for _ in range(3)
    ]
    # as the scheduler would have made two of them
    with sqlite3.connect(running.home / "prefect.db") as database:
        for run in scheduled:
            database.execute("UPDATE flow_run SET auto_scheduled = 1 WHERE id = ?", (run,))
    assert running.up()["runs_dropped"] == 2
    wait_for(lambda: running.run_of(asked)["state"]["name"] == "Completed", 60)
    assert [running.ask(f"flow_runs/{run}").status_code for run in scheduled] == [404, 404]


def test_down_leaves_flow_runs_that_people_started(running):
    credentials = {"PREFECT_API_URL": running.api, "PREFECT_API_AUTH_STRING": running.password}
    flow = subprocess.Popen([sys.executable, "probe.py"], cwd=running.folder, env=running.env | credentials)
    running.holder()
    running.json("deploy", "down")
    assert flow.poll() is None
    flow.kill()
    flow.wait()


def test_what_cannot_be_started_is_said(deployed):
    deployed.json("deploy", "down")
    whole = (deployed.folder / "prefect.yaml").read_text()
    try:
        (deployed.folder / "prefect.yaml").write_text(whole.replace("probe.py:slow", "probe.py:nothing"))
        deployed.json("deploy", "up", "--port", deployed.port, code=1)
    finally:
        (deployed.folder / "prefect.yaml").write_text(whole)
    assert deployed.json("deploy", "down")["stopped"] == ["server"]
    assert deployed.processes() == []
    with subprocess.Popen(
        [sys.executable, "-m", "http.server", str(deployed.port), "--bind", "127.0.0.1"],
        stderr=subprocess.DEVNULL,
    ) as other:
        try:
            # else the first `up` is before it, and its server is still ending
            wait_for(lambda: [c for c in psutil.Process(other.pid).net_connections() if c.status == "LISTEN"])
            said = deployed.json("deploy", "up", "--port", deployed.port, code=1)
            assert "in use" in said["error"]
            assert deployed.processes() == []
        finally:
            other.kill()
