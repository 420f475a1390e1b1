"""A PostgreSQL server on loopback, where PostgreSQL and its driver are installed."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest


def _programs():
    """The folder of initdb and pg_ctl: on the path, or where Debian keeps those of each version."""
    if initdb := shutil.which("initdb"):
        return Path(initdb).parent
    kept = [f.parent for f in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    return max(kept, key=lambda folder: int(folder.parent.name), default=None)


PROGRAMS = _programs()
DRIVER = find_spec("psycopg2")
needs_driver = pytest.mark.skipif(not DRIVER, reason="needs the driver psycopg2")


def uri(port, password="hunter2", name="mlflow"):
    return f"postgresql://cpb:{password}@127.0.0.1:{port}/{name}"


def place_artifacts(database, folder):
    """Make the experiment as a person does who gives a bare database a place for artifacts."""
    from mlflow.tracking import MlflowClient

    from tasks.tracking.experiment import EXPERIMENT

    MlflowClient(database).create_experiment(EXPERIMENT, folder.as_uri())


@contextlib.contextmanager
def postgres_server(*databases):
    """Run a server with the user cpb (password hunter2) and these empty databases; yields its port and a control.

    Skips the test where PostgreSQL or its driver is not installed.
    """
    if not DRIVER:
        pytest.skip("needs the driver psycopg2")
    if PROGRAMS is None:
        pytest.skip("needs PostgreSQL's initdb")
    with tempfile.TemporaryDirectory(dir="/tmp") as name, socket.socket() as free:
        folder = Path(name)
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        (folder / "password").write_text("hunter2")
        as_user = (
            ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.getuid() == 0 else []
        )
        if as_user:
            for path in (folder, folder / "password"):
                shutil.chown(path, "postgres", "postgres")

        def run(*command):
            subprocess.run([*as_user, *command], cwd=folder, check=True, capture_output=True, timeout=240)

        # Nothing of it outlives the test, so it need not wait for the disk.
        data, options = (
            str(folder / "data"),
            f"-p {port} -c listen_addresses=127.0.0.1 -c fsync=off -k {folder}",
        )
        initdb = [PROGRAMS / "initdb", "--no-sync", "-D", data, "-U", "cpb", "-A", "scram-sha-256"]
        run(*initdb, f"--pwfile={folder}/password")

        def control(action):
            run(
                PROGRAMS / "pg_ctl",
                "-D",
                data,
                "-o",
                options,
                "-l",
                str(folder / "log"),
                "-w",
                "-m",
                "fast",
                action,
            )

        control("start")
        try:
            create = "import psycopg2, sys; c = psycopg2.connect(sys.argv[1]); c.autocommit = True; "
            create += "[c.cursor().execute(f'CREATE DATABASE {name}') for name in sys.argv[2:]]"
            command = [sys.executable, "-c", create, uri(port, name="postgres"), *databases]
            subprocess.run(command, check=True, timeout=240)
            yield port, control
        finally:
            with contextlib.suppress(subprocess.CalledProcessError):
                control("stop")
