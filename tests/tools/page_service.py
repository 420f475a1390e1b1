"""The service without a socket, and a real server on a free port of loopback."""

import socket
import threading
import time
from contextlib import contextmanager

import uvicorn
from fastapi.testclient import TestClient

from flows.ops.guard import Guard
from flows.ops.listeners import PAGE
from webapp.app import create_app


def client_of(folder, **options):
    """A client of the guarded service over `folder/data`, without a socket."""
    return TestClient(Guard(create_app(folder / "data"), PAGE), base_url="http://127.0.0.1:8000", **options)


@contextmanager
def serve(app, hosts=()):
    """Serve an application behind the guard from a thread; yields the port."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(Guard(app, PAGE, hosts), log_level="critical"))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    deadline = time.monotonic() + 120
    while not server.started:
        assert time.monotonic() < deadline, "the server does not start"
        time.sleep(0.02)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(10)
