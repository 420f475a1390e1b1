"""Every server of the table, started as its command starts it, in a folder of its own."""

import os
import shlex
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.tools.ports import free_port

ROOT = Path(__file__).resolve().parents[2]


COMMANDS = {  # the arguments of `python -m` that start a server in the foreground
    "page": "flows.cli serve --port {port}",
    "ui": "flows.cli ui --port {port}",
    "prefect": "flows.deploy.services {port} 127.0.0.1",
}


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.2)


def environment(folder):
    """The environment of commands whose store, passwords and records all lie in a folder."""
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith(("CPB_", "MLFLOW_TRACKING", "PREFECT_API"))
    }
    return kept | {
        "PYTHONPATH": str(ROOT),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "CPB_HOME": str(folder / "data"),
        "PREFECT_HOME": str(folder / "prefect"),
        "CPB_DEPLOY_STATE": str(folder / "state"),
        "CPB_MARK": str(folder),
    }


def processes_of(folder):
    """All processes that were started with the environment of a folder."""
    processes = []
    for process in psutil.process_iter():
        with suppress(psutil.AccessDenied, psutil.NoSuchProcess):
            if process.environ().get("CPB_MARK") == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
    return processes


@contextmanager
def started(listener, folder):
    """Start a server and yield its process and port once it listens; everything of it is gone afterwards."""
    port = free_port()
    with (folder / f"{listener.name}.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *shlex.split(COMMANDS[listener.name].format(port=port))],
            cwd=folder,
            env=environment(folder),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_until(lambda: listens(port) or process.poll() is not None)
        assert process.poll() is None, Path(log.name).read_text()
        yield process, port
    finally:
        for left in processes_of(folder):
            left.kill()
        process.wait()
