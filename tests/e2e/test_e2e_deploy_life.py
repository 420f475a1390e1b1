"""The deployment over time: what dies is started again, and the runs that it held are marked."""

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta

import httpx
import psutil
import pytest

from tests.tools.deployed import Deployed, wait_for

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
        process = psutil.Process(pid)
        # A zombie, which an init may leave, or one on its way there: its files, the port among them, are closed first.
        return process.status() == psutil.STATUS_ZOMBIE or not process.num_fds()
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
    assert deployed.up()["started"] == ["server", "worker"]
    status = deployed.json("deploy", "status")
    assert not {*status["pids"].values()} & {*second.values()}
    assert status["problems"] == []


def test_status_says_how_the_newest_run_ended(running):
    plain = running.cpb("deploy", "status")
    assert plain.returncode == 0
    assert "no run has ended yet" in plain.stdout
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
    second, process = running.begin()  # the queue's limit is free too
    kill(process)
    wait_for(lambda: running.run_of(second)["state"]["name"] == "Crashed", 30)  # the worker says so


def test_a_second_up_starts_a_killed_worker_ends_its_run_and_leaves_a_pause(running):
    deployment = running.ask("deployments/name/quick/quick").json()
    (schedule,), place = deployment["schedules"], f"deployments/{deployment['id']}"
    assert running.prefect("deployment", "schedule", "pause", "quick/quick", schedule["id"]).returncode == 0
    running.ask(f"{place}/pause_deployment", {})  # the other pause, by the page's switch
    run, process = running.begin()
    kill(running.pid("worker"))
    assert running.up()["started"] == ["worker"]
    assert is_gone(process)
    assert running.end_of(run) == ("Crashed", [], 0)
    deployment = running.ask("deployments/name/quick/quick").json()
    (schedule,) = deployment["schedules"]
    assert (deployment["paused"], schedule["active"]) == (True, False)
    running.ask(f"{place}/resume_deployment", {})
    assert not [due for due in running.runs("SCHEDULED") if due["auto_scheduled"]]
    assert running.prefect("deployment", "schedule", "resume", "quick/quick", schedule["id"]).returncode == 0
    wait_for(lambda: [due for due in running.runs("SCHEDULED") if due["auto_scheduled"]])


def test_whoever_takes_the_port_of_a_dead_server_gets_no_password(running):
    """The worker, its flow run and `cpb` itself would send it; the server's password ends with the server."""
    run, process = running.begin()
    worker, first = running.pid("worker"), running.password
    begun = time.monotonic()
    kill(running.pid("server"))
    with closing(bound_to(running.port)) as stranger:
        # No client is left when the port is free: each of them holds it until it has ended.
        assert is_gone(process)
        assert is_gone(worker)
        assert time.monotonic() - begun < 10
        assert running.processes() == []
        got = requests_to(stranger, 8)
        status = running.json("deploy", "status", code=1)
        assert status["pids"] == {}
        refused = running.json("deploy", "run", "quick/quick", code=1)
        assert (refused["code"], refused["field"]) == ("port-taken", "port")
        up = running.json("deploy", "up", code=1)
        assert "in use" in up["error"]
        assert running.password == first  # nothing was started with it
        got += requests_to(stranger, 2)
    assert got == []
    assert running.up()["started"] == ["server", "worker"]
    second = running.password
    assert second != first
    file = running.home / "cpb-api-auth"
    assert file.stat().st_mode & 0o777 == 0o600
    for secret, status in ((first, 401), (second, 200)):
        answer = httpx.post(
            f"{running.api}/flows/filter",
            json={},
            auth=tuple(secret.split(":", 1)),
            trust_env=False,
            timeout=30,
        )
        assert answer.status_code == status
    assert running.end_of(run) == ("Crashed", [], 0)
    shown = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True, check=True).stdout
    assert second.partition(":")[2] not in shown


def bound_to(port):
    """Listen on a port as soon as it can be had."""
    deadline = time.monotonic() + 60
    while True:
        stranger = socket.socket()
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            stranger.bind(("127.0.0.1", port))
            stranger.listen()
        except OSError:
            stranger.close()
            assert time.monotonic() < deadline
            time.sleep(0.002)
        else:
            return stranger


def requests_to(stranger, seconds):
    """Return the beginning of every request with credentials that arrives within some seconds."""
    got, deadline = [], time.monotonic() + seconds
    stranger.settimeout(0.5)
    while time.monotonic() < deadline:
        with suppress(TimeoutError), stranger.accept()[0] as client:
            client.settimeout(0.5)
            with suppress(TimeoutError):
                got.append(client.recv(65536))
    return [text for text in got if b"authorization" in text.lower()]


def test_a_stranger_cannot_fill_the_disk_with_the_servers_log(running):
    """Malformed requests by the hundred leave a line of each kind."""
    log = running.state / "server.log"
    before = log.stat().st_size
    nonsense = [
        b"\x16\x03\x01\x02\x00\x01\r\n\r\n",  # TLS
        b"GET / HTTP/1.1\r\nHost: HOST\r\nAuthorization: Basic Y3BiOnDDpHNz\r\n\r\n",  # not ASCII within
        b"POST /api/flows/filter HTTP/1.1\r\nHost: HOST\r\nAuthorization: Basic \xe4\r\nContent-Length: 0\r\n\r\n",
        b"POST /api/flows/filter HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nHost: HOST\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
        b"GET /%ff%fe%00 HTTP/1.1\r\nHost: HOST\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: HOST\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /api/events/in HTTP/1.1\r\nHost: HOST\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    ]
    for request in nonsense * 50:
        with socket.create_connection(("127.0.0.1", running.port), timeout=30) as client:
            client.sendall(request.replace(b"HOST", b"127.0.0.1:%d" % running.port))
            assert client.recv(100).split()[1] in (b"400", b"401", b"403", b"404", b"200")
    written = log.read_bytes()[before:]
    assert b"Traceback" not in written
    assert written.count(b"\n") < 2 * len(nonsense), written


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
