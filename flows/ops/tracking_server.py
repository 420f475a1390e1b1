"""`cpb tracking-server`: MLflow's own app over one database, for several machines, behind a password.

It keeps the artifacts itself, so that no machine needs another's folders.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from flows.console import say
from flows.ops.guard import Hosts, SignIn
from flows.ops.listeners import TRACKING
from flows.ops.password_file import PasswordFile, config_folder
from flows.ops.serving import check_port, serve
from schemas.errors import UsageError
from tasks.storage.urls import public_url

DATABASE, ARTIFACTS = "MLFLOW_BACKEND_STORE_URI", "MLFLOW_ARTIFACTS_DESTINATION"
"""MLflow's own variables: the database's URI may hold a password, which a command line would show."""


def password_file() -> PasswordFile:
    """Return where the server's password lies: `~/.config/cpb/tracking-auth`."""
    return PasswordFile(
        config_folder() / "tracking-auth",
        missing="no `cpb tracking-server` of this user has run here; start it, or copy the file from its machine",
        remedy="stop the server, delete it, and start `cpb tracking-server`, which makes a new one",
    )


def artifacts_place() -> str:
    """Return where a server that clients send artifacts to keeps them."""
    return os.environ.get(ARTIFACTS) or str(Path("mlartifacts").absolute())


def serve_tracking(
    host: str, port: int, allowed_hosts: Sequence[str], artifacts: str | None, ready: Callable[[str], None]
) -> None:
    """Run the server until interrupted (Ctrl-C or SIGTERM), and stop it cleanly.

    Args:
        allowed_hosts: names by which it may be called, besides loopback and the address it is called at.
        artifacts: URI of the place that it keeps artifacts in; default `MLFLOW_ARTIFACTS_DESTINATION`, else the
            folder `mlartifacts` here.
        ready: called with its address once it answers.

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
    from tasks.tracking.connection import prepare_database
    from tasks.tracking.database import is_database, named_in

    if not is_database(database):
        raise UsageError(
            f"{DATABASE} {public_url(database)} is no database: give one, as in postgresql://HOST/NAME, with user and "
            "password before HOST",
            code="database", field=DATABASE,
        )  # fmt: skip
    Hosts.of(allowed_hosts)  # refused before the database is touched
    place = artifacts or artifacts_place()
    if "@" in urlsplit(place).netloc:
        raise UsageError(
            f"--artifacts {public_url(place)} must hold no user or password, which every user sees on a "
            "command line: they belong into the environment or files of the storage's driver, such as AWS_PROFILE",
            code="artifacts", field="artifacts",
        )  # fmt: skip
    check_port(host, port)
    sign_in = SignIn(password_file().make())
    with named_in(DATABASE):
        prepare_database(database)
    say("starting MLflow's server, about ten seconds")
    from tasks.tracking.artifact_guard import served_app  # imports MLflow, which the database has loaded

    app = partial(served_app, database, place)
    serve(TRACKING, app, host, port, ready, hosts=allowed_hosts, sign_in=sign_in)
