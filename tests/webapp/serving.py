"""The service without a socket, and a real server on a free port of loopback."""

import socket
import threading
import time
from contextlib import contextmanager

import uvicorn
from fastapi.testclient import TestClient

from webapp.app import create_app


def client_of(folder, **options):
    """A client of the service over `folder/data`, without a socket."""
    return TestClient(create_app(folder / "data"), base_url="http://127.0.0.1:8000", **options)


@contextmanager
def serve(app):
    """Serve an application from a thread; yields the port."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started:
        assert time.monotonic() < deadline, "the server does not start"
        time.sleep(0.02)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(10)
