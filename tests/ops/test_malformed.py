"""A body that turns out to be malformed while the application answers ends the connection, without a traceback."""

import logging
import socket
import threading
import time

import pytest
import uvicorn

from flows.ops.half_sent import HalfSentEnds
from tests.tools.ports import free_port

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


async def answering(scope, receive, send):
    """Answer in two parts without reading the body, or after all of it, as the path says."""
    if scope["path"] == "/read":
        while (await receive()).get("more_body"):
            pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"ab", "more_body": True})
    while scope["path"] == "/slow" and (await receive())["type"] != "http.disconnect":
        pass
    await send({"type": "http.response.body", "body": b"cd"})


@pytest.fixture
def port():
    port = free_port()
    config = uvicorn.Config(answering, port=port, http=HalfSentEnds, lifespan="off", log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield port
    server.should_exit = True
    thread.join(30)


def answer_to(port, *parts):
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        for part in parts:
            client.sendall(part)
            time.sleep(0.1)
        try:
            return client.makefile("rb").read()
        except ConnectionResetError:
            return b"reset"


@pytest.mark.parametrize("path", [b"/", b"/read", b"/slow"])
@pytest.mark.parametrize("body", [b"zz\r\n", b"FFFFFFFFFFFFFFFFFFFFFFFFF\r\n", b"3\r\nabcXX"])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_malformed_body_is_refused_or_ends_the_answer_that_has_begun(port, caplog, path, body, at_once):
    head = HEAD.replace(b"/", path, 1)
    logging.getLogger("uvicorn").propagate = True
    with caplog.at_level(logging.WARNING):
        got = answer_to(port, head + body) if at_once else answer_to(port, head, body)
        assert got.startswith((b"HTTP/1.1 400", b"HTTP/1.1 200")) or got in (b"", b"reset")
        assert answer_to(port, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").endswith(b"abcd")
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
