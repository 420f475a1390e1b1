"""A connection whose request stays incomplete ends; complete requests are answered, however slowly they came."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import uvicorn

from flows.ops import half_sent
from flows.ops.half_sent import REQUEST_S, HalfSentEnds
from flows.ops.listeners import PAGE
from tests.tools.ports import free_port
from tests.tools.started_servers import started

HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /healthz HTTP/1.1\r\nHost: localhost\r\n"
MOST_OF_A_SOCKET = 4_194_304
"""What Linux buffers of an answer that nobody reads (tcp_wmem): of a longer one the server has still a part."""
ENDED_S = 3 * REQUEST_S
"""A connection that is open for so long was not ended; not a measurement."""


def ends(port, *parts, then=None):
    """Send parts, then `then` once a second; return what came back once the server has ended the connection."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(1)
        for part in parts:
            client.sendall(part)
        came, deadline = b"", time.monotonic() + ENDED_S
        while time.monotonic() < deadline:
            try:
                if then is not None:
                    client.sendall(then)
                if not (read := client.recv(65536)):
                    return came
                came += read
            except TimeoutError:
                continue
            except OSError:  # reset
                return came
    return None


HALVES = {
    "nothing": ((), None),
    "half a request line": ((b"GET /hea",), None),
    "a trickled request line": ((b"GET /",), b"a"),
    "half a header line": ((HEAD, b"Accept: text"), None),
    "trickled headers": ((HEAD,), b"X-A: b\r\n"),
    "trickled empty lines": ((), b"\r\n"),
    "a body never sent": ((POST, b"Content-Length: 10\r\n\r\n"), None),
    "a trickled body": ((POST, b"Content-Length: 1000000\r\n\r\n"), b"x"),
    "half a chunk": ((POST, b"Transfer-Encoding: chunked\r\n\r\n5\r\nab"), None),
    "trickled chunks": ((POST, b"Transfer-Encoding: chunked\r\n\r\n"), b"1\r\na\r\n"),
    "a body of GET, trickled": ((HEAD, b"Content-Length: 1000000\r\n\r\n"), b"x"),
    "idle after an answer": ((HEAD, b"\r\n"), None),
    "half a request after an answer": ((HEAD, b"\r\n", HEAD), None),
    "trickled headers after an answer": ((HEAD, b"\r\n", HEAD), b"X-A: b\r\n"),
    "trickled empty lines after an answer": ((HEAD, b"\r\n"), b"\r\n"),
}


@pytest.mark.slow
def test_what_is_not_complete_ends_and_what_is_complete_is_answered(tmp_path):
    def slowly(port):
        """A request that takes most of its time, three times on one connection."""
        came = b""
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.settimeout(60)
            for _ in range(3):
                for part in (HEAD[:9], HEAD[9:], b"Accept: ", b"*/*\r\n", b"\r\n"):
                    client.sendall(part)
                    time.sleep(1.5)
                came += client.recv(65536)
        return came

    def late(port):
        """An answer that is read long after its request was complete."""
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            client.sendall(
                b"GET /plotly/plotly.min.js HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            )
            time.sleep(REQUEST_S + 5)
            return b"".join(iter(lambda: client.recv(65536), b""))

    with started(PAGE, tmp_path) as (_, port), ThreadPoolExecutor(len(HALVES) + 2) as pool:
        slow, read_late = pool.submit(slowly, port), pool.submit(late, port)
        ended = {name: pool.submit(ends, port, *parts, then=then) for name, (parts, then) in HALVES.items()}
        answers = {name: answer.result() for name, answer in ended.items()}
        assert [name for name, answer in answers.items() if answer is None] == []
        assert slow.result().count(b"HTTP/1.1 200 ") == 3
        head, _, body = read_late.result().partition(b"\r\n\r\n")
        assert f"content-length: {len(body)}\r\n".encode() in head.lower()
        assert len(body) > MOST_OF_A_SOCKET
    told = {name: answer.split(b" ")[1] if answer else None for name, answer in answers.items()}
    assert (told["nothing"], told["half a header line"], told["idle after an answer"]) == (
        None,
        b"408",
        b"200",
    )


async def kept(scope, receive, send):
    """An application that reads its body, as MLflow's does, and answers with the number of its bytes."""
    if scope["type"] == "lifespan":
        return
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"%d" % size})


@pytest.fixture
def upload_port(monkeypatch):
    """The port of a server of `kept`, whose requests have a second."""
    monkeypatch.setattr(half_sent, "REQUEST_S", 1)
    port = free_port()
    config = uvicorn.Config(kept, port=port, http=HalfSentEnds, lifespan="off", log_level="critical")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield port
    server.should_exit = True
    thread.join(20)


@pytest.mark.slow
def test_a_long_upload_that_keeps_coming_is_read_to_its_end(upload_port):
    parts = 30
    with socket.create_connection(("127.0.0.1", upload_port)) as client:
        client.settimeout(60)
        client.sendall(POST + b"Content-Length: %d\r\n\r\n" % (parts * 8192))
        for _ in range(parts):  # twice as fast as the slowest upload
            client.sendall(b"x" * 8192)
            time.sleep(0.2)
        assert b"%d\r\n" % (parts * 8192) in client.recv(65536)
