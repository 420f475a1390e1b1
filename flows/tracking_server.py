"""`cpb tracking-server`: MLflow's own server over one database, for several machines, behind a password.

It keeps the artifacts itself, so that no machine needs another's folders. MLflow's app is the one that
`mlflow server` runs; starting it here is what puts the guard in front of it (`flows/tracking_guard.py`).
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from flows.console import say
from flows.password_file import PasswordFile
from flows.tracking_guard import Guard
from schemas.errors import CpbError, UsageError
from schemas.hosts import Hosts
from tasks.storage.processes import ProcessId
from tasks.storage.urls import public_url
from tasks.tracking.mlflow_private import served_app
from tasks.tracking.ui import Address, check_port, serve_until_stopped

if TYPE_CHECKING:
    from starlette.types import ASGIApp

DATABASE, ARTIFACTS = "MLFLOW_BACKEND_STORE_URI", "MLFLOW_ARTIFACTS_DESTINATION"
"""MLflow's own variables: the database's URI may hold a password, which a command line would show."""
_HOSTS = "CPB_TRACKING_HOSTS"
"""Hands the names to the processes that serve."""
_LOOK_S = 1.0
_COMMAND = "CPB_TRACKING_COMMAND"
"""Tells them which process is the command that they serve for."""


def password_file() -> PasswordFile:
    """Return where the server's password lies: `~/.config/cpb/tracking-auth`."""
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "cpb"
    return PasswordFile(
        folder / "tracking-auth",
        missing="no `cpb tracking-server` of this user has run here; start it, or copy the file from its machine",
        remedy="stop the server, delete it, and start `cpb tracking-server`, which makes a new one",
    )


def serve_tracking(
    host: str, port: int, workers: int, allowed_hosts: Sequence[str], artifacts: str | None,
    ready: Callable[[Address], None],
) -> None:  # fmt: skip
    """Run the server until interrupted (Ctrl-C or SIGTERM), and stop it cleanly.

    Args:
        allowed_hosts: names by which it may be called, besides loopback and the address it is called at.
        artifacts: URI of the place that it keeps artifacts in; default `MLFLOW_ARTIFACTS_DESTINATION`, else the
            folder `mlartifacts` here.
        ready: called once it answers.

    Raises:
        UsageError: no database is named, or a name is none.
        CpbError: the database cannot be used, or records artifacts in a folder of one machine; the port is taken, the
            password file is not safe, or MLflow does not start.
    """
    database = os.environ.get(DATABASE)
    if not database:
        raise UsageError(
            f"{DATABASE} is not set: name the database there, as in {DATABASE}=postgresql://HOST/NAME, with user "
            "and password before HOST (in the environment, because every user sees a command line)",
            code="database", field=DATABASE,
        )  # fmt: skip
    from tasks.tracking.database import is_database, named_in
    from tasks.tracking.head import prepare_database

    if not is_database(database):
        raise UsageError(
            f"{DATABASE} {public_url(database)} is no database: give one, as in postgresql://HOST/NAME, with user and "
            "password before HOST",
            code="database", field=DATABASE,
        )  # fmt: skip
    hosts = Hosts.of(allowed_hosts)
    place = artifacts or os.environ.get(ARTIFACTS) or str(Path("mlartifacts").absolute())
    if "@" in urlsplit(place).netloc:
        raise UsageError(
            f"--artifacts {public_url(place)} must hold no user or password, which every user sees on a "
            "command line: they belong into the environment or files of the storage's driver, such as AWS_PROFILE",
            code="artifacts", field="artifacts",
        )  # fmt: skip
    check_port(host, port)
    password_file().make()
    with named_in(DATABASE):
        prepare_database(database)
    log = password_file().path.with_name(f"tracking-server-{port}.log")
    say(f"starting MLflow's server, about ten seconds (log: {log})")
    command = [sys.executable, "-m", "uvicorn", "--factory", f"{__name__}:guarded_app", "--host", host,
               "--port", str(port), "--workers", str(workers), "--log-level", "warning", "--no-access-log",
               "--no-server-header", "--no-proxy-headers"]  # fmt: skip
    environment = os.environ | {
        ARTIFACTS: place,
        _HOSTS: ",".join(sorted(hosts.names)),
        _COMMAND: str(ProcessId.current()),
    }
    url = f"http://{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{port}"
    serve_until_stopped(command, environment, url, log, lambda: ready(Address(url, {}, url)))


def guarded_app() -> "ASGIApp":
    """Return MLflow's app behind the guard, for uvicorn's processes."""
    try:
        auth = password_file().read()
    except CpbError as error:
        sys.exit(f"cpb: {error}")
    command = ProcessId.parse(os.environ[_COMMAND])
    threading.Thread(target=_end_with, args=(command, os.getppid()), daemon=True, name="command").start()
    hosts = [name for name in os.environ.get(_HOSTS, "").split(",") if name]
    return Guard(served_app(os.environ[DATABASE], os.environ[ARTIFACTS]), auth, hosts)


def _end_with(command: ProcessId, parent: int) -> None:
    """End all processes that serve once the command, or the one that started this, is gone: they hold the port."""
    while command.is_alive() and os.getppid() == parent:
        time.sleep(_LOOK_S)
    os.killpg(os.getpgrp(), signal.SIGTERM)  # a session of its own, see `serve_until_stopped`
