"""The service tells of itself once it can be asked."""

import threading
import urllib.request

import pytest
import uvicorn

from flows.page_server import Announced, run


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

    server = Announced(uvicorn.Config(app, port=0, lifespan="off", log_level="critical"), ready)
    server.run()
    assert answered == [204]


def test_a_service_that_cannot_start_says_nothing_and_fails(tmp_path, monkeypatch):
    monkeypatch.setenv("CPB_HOME", str(tmp_path))
    told = []
    with pytest.raises(SystemExit) as end:
        run("203.0.113.1", 1, lambda: told.append("ready"))  # an address of no machine
    assert (end.value.code, told) == (3, [])
