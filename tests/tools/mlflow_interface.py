"""MLflow's servers in processes of their own: the interface as `cpb ui` starts it, and a tracking server."""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

from tasks.tracking.database import make_sqlite
from tests.tools.ports import free_port

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def interface(folder, port, first=""):
    """Serve the store of `MLFLOW_TRACKING_URI`; yields the process, and the password once it answers."""
    code = (
        f"{first}\nfrom flows.ops.mlflow_ui import serve_ui\n"
        f"serve_ui(port={port}, ready=lambda where: print(where.password, flush=True))"
    )
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    server = subprocess.Popen(
        [sys.executable, "-c", code], cwd=folder, env=env, stdout=subprocess.PIPE, text=True
    )
    try:
        yield server, server.stdout.readline().strip()
    finally:
        server.terminate()
        try:
            server.wait(120)
        finally:
            server.kill()


@contextmanager
def tracking_server(place):
    """An MLflow server with a store and artifacts below a folder; yields its URL and its database."""
    database, url = place / "server.db", f"http://127.0.0.1:{free_port()}"
    make_sqlite(database)
    command = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--port", url.rpartition(":")[2]]
    command += [
        "--backend-store-uri",
        f"sqlite:///{database}",
        "--artifacts-destination",
        str(place / "kept"),
    ]
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with running(command, f"{url}/health", place / "server.log", environment):
        yield url, database


@contextmanager
def running(command, url, log, environment=None, limit_s=120):
    """Run a server until the block ends; it begins when the server answers at `url`."""
    with log.open("wb") as file:
        server = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True, env=environment)
    end = time.monotonic() + limit_s
    try:
        while True:
            try:
                with urllib.request.urlopen(url, timeout=5):
                    break
            except OSError:
                assert server.poll() is None, log.read_text()
                assert time.monotonic() < end
                time.sleep(0.3)
        yield
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)
