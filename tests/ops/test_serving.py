"""The service tells of itself once it can be asked."""

import socket
import threading
import urllib.request

import pytest
import uvicorn

from flows.ops.listeners import PAGE
from flows.ops.serve import _Server, run_server
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
