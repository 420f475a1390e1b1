"""The deployment over time: what dies is found and started again, and no run stays Running without a process."""

import os
import signal
import subprocess
import sys

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


def test_before_the_first_start_nothing_is_wrong(deployed):
    status = deployed.json("deploy", "status")
    assert (status["up"], status["problems"], status["data"]) == (False, [], [])
    assert deployed.json("deploy", "down")["stopped"] == []
    deployed.json("deploy", "run", "quick/quick", code=1)


def test_up_starts_what_does_not_run_and_leaves_what_runs(deployed):
    first = deployed.up()
    assert first["started"] == ["server", "worker"]
    assert sorted(path.name for path in deployed.state.glob("*.log")) == [
        "deploy.log",
        "server.log",
        "worker.log",
    ]
    again = deployed.json("deploy", "up")  # the port is remembered
    assert (again["started"], again["pids"], again["port"]) == ([], first["pids"], deployed.port)
    kill(first["pids"]["worker"])
    status = deployed.json("deploy", "status", code=1)
    assert (status["up"], status["server"]["alive"], status["worker"]["alive"]) == (False, True, False)
    third = deployed.up()
    assert (third["started"], third["pids"]["server"]) == (["worker"], first["pids"]["server"])
    kill(first["pids"]["server"])
    fourth = deployed.up()
    assert (fourth["started"], fourth["pids"]["worker"]) == (["server"], third["pids"]["worker"])
    assert deployed.json("deploy", "status")["problems"] == []


def test_a_deployment_that_never_ran_is_not_wrong(running):
    found = {one["name"]: one for one in running.json("deploy", "status")["deployments"]}
    assert [(one["last"], one["active"]) for one in found.values()] == [(None, 0), (None, 0)]
    assert found.keys() == {"quick/quick", "slow/slow"}
    plain = running.cpb("deploy", "status")
    assert plain.returncode == 0
    assert "no run has ended yet" in plain.stderr


def test_status_says_how_the_newest_run_ended(running):
    watch = ["deploy", "run", "quick/quick", "--watch", "--param"]
    assert running.json(*watch, "text=a")["state"] == "Completed"
    assert running.json("deploy", "status")["problems"] == []
    assert running.json(*watch, "end=Partial", code=3)["state"] == "Partial"
    running.json(*watch, "end=Failed", code=1)
    status = running.json("deploy", "status", code=1)
    last = next(one["last"] for one in status["deployments"] if one["name"] == "quick/quick")
    assert (last["outcome"], last["message"]) == ("Failed", "as asked")
    assert 0 < last["age_s"] < 300
    assert len(status["problems"]) == 1
    assert running.cpb("deploy", "status").returncode == 1
    assert running.json(*watch, "text=b")["exit"] == 0
    assert running.json("deploy", "status")["problems"] == []


def test_wrong_requests_are_refused(running):
    running.json("deploy", "run", "quick/nonsense", code=1)
    running.json("deploy", "run", "quick/quick", "--param", "number=many", code=2)
    running.json("deploy", "up", "--port", running.port + 1, code=1)


def test_what_down_interrupts_is_cancelled(running):
    run, process = running.begin()
    assert running.slots() == 1
    assert running.json("deploy", "down")["stopped"] == ["worker", "server"]
    assert not os.path.exists(f"/proc/{process}")  # noqa: PTH110
    assert running.processes() == []
    running.up()
    assert running.end_of(run) == ("Cancelled", [], 0)
    assert running.json("deploy", "status")["problems"] == []


def test_after_a_power_cut_the_next_start_marks_the_run(running):
    run, process = running.begin()
    kill(process, running.pid("worker"), running.pid("server"))
    running.json("deploy", "status", code=1)
    assert len(running.up()["runs_ended"]) == 1
    assert running.end_of(run) == ("Crashed", [], 0)
    second, process = running.begin()  # the deployment's own limit is free too
    kill(process)
    wait_for(lambda: running.run_of(second)["state"]["name"] == "Crashed", 30)  # the worker says so
    running.json("deploy", "status", code=1)
    assert running.end_of(second) == ("Crashed", [], 0)


def test_a_run_whose_worker_was_killed_goes_on_and_its_own_end_is_seen(running):
    run, process = running.begin()
    kill(running.pid("worker"))
    assert running.json("deploy", "status", code=1)["runs_ended"] == []
    assert running.end_of(run)[0] == "Running"
    running.up()
    assert running.end_of(run)[0] == "Running"
    kill(process)
    wait_for(lambda: not os.path.exists(f"/proc/{process}"), 30)  # noqa: PTH110
    assert len(running.json("deploy", "status", code=1)["runs_ended"]) == 1
    assert running.end_of(run) == ("Crashed", [], 0)


def test_down_ends_a_run_that_lost_its_worker(running):
    run, process = running.begin()
    kill(running.pid("worker"))
    assert running.json("deploy", "down")["stopped"] == ["server"]
    assert not os.path.exists(f"/proc/{process}")  # noqa: PTH110
    running.up()
    assert running.end_of(run)[0] == "Cancelled"


@pytest.mark.parametrize("found_by", ["status", "run"])
def test_a_flow_run_of_the_command_line_that_is_killed_is_marked(running, found_by):
    credentials = {"PREFECT_API_URL": running.api, "PREFECT_API_AUTH_STRING": running.password}
    flow = subprocess.Popen([sys.executable, "probe.py"], cwd=running.folder, env=running.env | credentials)
    assert running.holder() == flow.pid
    run = running.runs("RUNNING")[0]["id"]
    kill(flow.pid)
    flow.wait()
    if found_by == "status":
        assert len(running.json("deploy", "status", code=None)["runs_ended"]) == 1
    else:  # the flow run itself looks after the others when it starts
        running.json("deploy", "run", "quick/quick", "--watch")
    assert running.end_of(run) == ("Crashed", [], 0)


def test_down_leaves_flow_runs_that_people_started(running):
    credentials = {"PREFECT_API_URL": running.api, "PREFECT_API_AUTH_STRING": running.password}
    flow = subprocess.Popen([sys.executable, "probe.py"], cwd=running.folder, env=running.env | credentials)
    running.holder()
    running.json("deploy", "down")
    assert flow.poll() is None
    flow.kill()
    flow.wait()
    assert len(running.up()["runs_ended"]) == 1


def test_what_cannot_be_deployed_is_said_and_nothing_is_left_running(deployed):
    deployed.json("deploy", "down")
    whole = (deployed.folder / "prefect.yaml").read_text()
    try:
        (deployed.folder / "prefect.yaml").write_text(whole.replace("probe.py:slow", "probe.py:nothing"))
        deployed.json("deploy", "up", "--port", deployed.port, code=1)
        assert deployed.processes() == []
        (deployed.folder / "prefect.yaml").unlink()
        deployed.json("deploy", "up", "--port", deployed.port, code=1)
    finally:
        (deployed.folder / "prefect.yaml").write_text(whole)
    with subprocess.Popen(
        [sys.executable, "-m", "http.server", str(deployed.port), "--bind", "127.0.0.1"],
        stderr=subprocess.DEVNULL,
    ) as other:
        try:
            wait_for(lambda: deployed.json("deploy", "up", "--port", deployed.port, code=1))
            assert deployed.processes() == []
        finally:
            other.kill()
