"""The service tells of itself once it can be asked."""

import socket
import threading
import urllib.request

import pytest
import uvicorn
from fastapi.testclient import TestClient

from flows.cli.serve import serve
from flows.ops.listeners import PAGE
from flows.ops.serve import _Server, run_server, url_of
from schemas.errors import CpbError
from tests.tools.ports import free_port


async def app(scope, receive, send):
    """Answer every request with nothing."""
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


def test_it_can_be_asked_when_it_says_so():
    answered = []

    def ready():
        port = server.servers[0].sockets[0].getsockname()[1]

        def ask():
            with urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=30) as answer:
                answered.append(answer.status)
            server.should_exit = True

        threading.Thread(target=ask).start()

    server = _Server(uvicorn.Config(app, port=0, lifespan="off", log_level="critical"), ready)
    server.run()
    assert answered == [204]


@pytest.mark.parametrize(
    ("host", "alone"),
    [
        *((host, True) for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost")),
        *((host, False) for host in ("0.0.0.0", "::", "192.168.1.5", "example.org")),
    ],
)
def test_whoever_listens_beyond_this_machine_is_warned_in_one_sentence(host, alone, monkeypatch, capsys):
    monkeypatch.setattr("flows.ops.serve.run_server", lambda *given, **_: given[4]("http://URL"))
    serve(host, 8000)
    *warning, last = capsys.readouterr().err.splitlines()
    assert last.startswith("forecasts at http://URL")
    assert (warning == []) == alone
    for sentence in warning:
        assert sentence.startswith(f"warning: everybody who reaches port 8000 of {host} can read the page")


def test_of_a_host_that_cannot_be_had_nothing_is_said_but_that(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CPB_HOME", str(tmp_path))
    with pytest.raises(CpbError, match="cannot be used"):
        serve("256.1.1.1", 8000)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("host", "names", "typed"),
    [("127.0.0.1", "", ".venv/bin/cpb"), ("0.0.0.0", "", "cpb"), ("127.0.0.1", "box.lan", "cpb")],
)
def test_the_page_has_commands_as_typed_unless_it_is_read_elsewhere(
    host, names, typed, tmp_path, monkeypatch
):
    monkeypatch.setenv("CPB_HOME", str(tmp_path))
    monkeypatch.setattr("sys.argv", [".venv/bin/cpb", "serve"])
    made = []
    monkeypatch.setattr("flows.ops.serve.run_server", lambda *given, **_: made.append(given[1]()))
    serve(host, 8000, names)
    page = TestClient(made[0], base_url="http://127.0.0.1:8000").get("/").text
    assert page.count(f'<html data-program="{typed}" ') == 1


@pytest.mark.parametrize(("host", "url"), [("10.1.2.3", "10.1.2.3"), ("::1", "[::1]"), ("name", "name")])
def test_the_address_of_a_host(host, url):
    assert url_of(host, 80) == f"http://{url}:80"


def test_the_address_of_every_host_is_that_in_the_network_else_loopback(monkeypatch):
    monkeypatch.setattr("socket.socket.getsockname", lambda probe: ("10.1.2.3", 1))
    monkeypatch.setattr("socket.socket.connect", lambda probe, address: None)
    assert url_of("0.0.0.0", 80) == "http://10.1.2.3:80"

    def without_a_network(probe, address):
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr("socket.socket.connect", without_a_network)
    assert (url_of("0.0.0.0", 80), url_of("::", 80)) == ("http://127.0.0.1:80", "http://[::1]:80")


def test_a_host_without_an_address_is_what_must_be_changed(monkeypatch):
    def unknown(*_):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket.socket, "bind", unknown)
    with pytest.raises(CpbError, match="another host with --host"):
        run_server(PAGE, lambda: app, "nope", 1, print)


def test_a_server_that_cannot_start_says_so_and_is_not_ready():
    said = []
    with pytest.raises(CpbError) as caught:
        run_server(PAGE, lambda: app, "203.0.113.1", 1, said.append)  # an address of no machine
    assert (caught.value.code, said) == ("host", [])

    async def broken(scope, receive, send):
        await receive()
        await send({"type": "lifespan.startup.failed"})

    with pytest.raises(CpbError, match="did not start") as caught:
        run_server(PAGE, lambda: broken, "127.0.0.1", free_port(), said.append)
    assert (caught.value.code, said) == ("server", [])
