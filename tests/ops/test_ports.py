"""A port that clients of a server hold: no other user of the machine gets it, and no password goes to it."""

import os
import socket
import subprocess
import sys
from contextlib import closing, suppress

import pytest
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from flows import prefect
from flows.deploy import services
from flows.ops.passwords import make_password
from flows.ops.ports import TAKEN, bind_shared, hold
from schemas.errors import CpbError
from tests.tools.other_user import as_nobody
from tests.tools.ports import free_port

LOOPBACK = "127.0.0.1"


def listening(port, *options, host=LOOPBACK):
    """Return a socket that listens as a stranger's would, with these options set."""
    stranger = socket.socket()
    try:
        for option in options:
            stranger.setsockopt(socket.SOL_SOCKET, option, 1)
        stranger.bind((host, port))
        stranger.listen()
    except OSError:
        stranger.close()
        raise
    return stranger


def taken_by_a_stranger(port):
    """Try each way in which a program can bind the port; return those that succeed."""
    won = []
    for host in (LOOPBACK, "0.0.0.0"):
        for options in (
            [],
            [socket.SO_REUSEADDR],
            [socket.SO_REUSEPORT],
            [socket.SO_REUSEADDR, socket.SO_REUSEPORT],
        ):
            with suppress(OSError), closing(listening(port, *options, host=host)):
                won.append((host, options))
    return won


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user")
def test_another_user_gets_the_port_neither_beside_its_server_nor_after_it(monkeypatch):
    port = free_port()
    server = bind_shared(LOOPBACK, port)
    server.listen()
    held = hold(port)
    with socket.create_connection((LOOPBACK, port)):
        assert as_nobody(lambda: taken_by_a_stranger(port)) == "[]"
        server.close()
        assert as_nobody(lambda: taken_by_a_stranger(port)) == "[]"
    with socket.socket() as client:
        assert client.connect_ex((LOOPBACK, port)) != 0  # nobody gets what is sent
    with closing(bind_shared(LOOPBACK, port)) as again:  # a new server beside those who hold the port
        again.listen()
        with socket.create_connection((LOOPBACK, port)):
            pass
    held.close()
    assert as_nobody(lambda: taken_by_a_stranger(port)) != "[]"


def test_a_port_that_another_program_has_is_neither_held_nor_served():
    port = free_port()
    for options in ([], [socket.SO_REUSEADDR]):
        with closing(listening(port, *options)):
            with pytest.raises(CpbError, match="another program has port") as error:
                hold(port)
            assert error.value.code == TAKEN
            with pytest.raises(CpbError, match="choose another port with --port"):
                bind_shared(LOOPBACK, port)


def test_two_servers_never_share_a_port():
    with closing(bind_shared(LOOPBACK, free_port())) as first:
        first.listen()
        with pytest.raises(CpbError, match="choose another port with --port"):
            bind_shared(*first.getsockname())


def test_the_password_goes_to_no_other_program(tmp_path, monkeypatch):
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    make_password(tmp_path / "cpb-api-auth")
    port = free_port()
    with closing(listening(port, socket.SO_REUSEADDR)) as stranger:
        stranger.settimeout(0.5)
        with (
            pytest.raises(CpbError, match="so nothing is sent there") as error,
            services.client_of(port) as client,
        ):
            client.api_version()
        assert error.value.code == TAKEN
        with pytest.raises(TimeoutError):
            stranger.accept()


def test_a_flow_run_holds_the_port_of_its_server_until_its_process_ends(monkeypatch):
    monkeypatch.setattr(prefect, "_HELD", {})
    port = free_port()
    url, secret = f"http://{LOOPBACK}:{port}/api", "cpb:secret"
    with temporary_settings({PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: secret}):
        prefect.hold_server()
        prefect.hold_server()
    with closing(prefect._HELD[port]), pytest.raises(OSError, match="in use"):
        listening(port, socket.SO_REUSEADDR)
    # nothing is held without a password, on another host, or beside a server that does not share its port
    for api, auth in ((url, None), (f"http://example.org:{port}", secret), ("http://127.0.0.1:x", secret)):
        monkeypatch.setattr(prefect, "_HELD", {})
        with temporary_settings({PREFECT_API_URL: api, PREFECT_API_AUTH_STRING: auth}):
            prefect.hold_server()
        assert prefect._HELD == {}
    with (
        closing(listening(port, socket.SO_REUSEADDR)),
        temporary_settings({PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: secret}),
    ):
        prefect.hold_server()
    assert prefect._HELD == {}


def test_the_worker_sends_nothing_where_it_cannot_hold_the_port(tmp_path):
    port = free_port()
    env = os.environ | {"PREFECT_HOME": str(tmp_path), "PREFECT_API_URL": f"http://{LOOPBACK}:{port}/api"}
    with closing(listening(port, socket.SO_REUSEADDR)) as stranger:
        stranger.settimeout(0.5)
        done = subprocess.run(
            [sys.executable, "-m", "flows.deploy.worker", str(port), str(os.getpid())],
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode != 0
        assert "another program has port" in done.stderr
        with pytest.raises(TimeoutError):
            stranger.accept()
