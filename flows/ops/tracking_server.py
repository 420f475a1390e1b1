"""`cpb tracking-server`: MLflow's own app over a database, for several machines, behind a password.

It stores the artifacts itself, so that no machine needs another machine's folders.
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
    """Return the file of the server's password: `~/.config/cpb/tracking-auth`."""
    return PasswordFile(
        config_folder() / "tracking-auth",
        missing="no `cpb tracking-server` of this user has run here; start it, or copy the file from its machine",
        remedy="stop the server, delete it, and start `cpb tracking-server`, which makes a new one",
    )


def artifacts_place() -> str:
    """Return the place where the server stores artifacts sent by clients."""
    return os.environ.get(ARTIFACTS) or str(Path("mlartifacts").absolute())


def serve_tracking(
    host: str, port: int, allowed_hosts: Sequence[str], artifacts: str | None, ready: Callable[[str], None]
) -> None:
    """Run the server until interrupted (Ctrl-C or SIGTERM), and stop it cleanly.

    Args:
        allowed_hosts: allowed host names, in addition to loopback and the address at which a request arrived.
        artifacts: URI of the place for artifacts; default `MLFLOW_ARTIFACTS_DESTINATION`, else the folder `mlartifacts`
            in the current folder.
        ready: called with the server's URL once it accepts requests.

    Raises:
        UsageError: no database is given, or a host name is invalid.
        CpbError: the database cannot be used, or records artifacts in a folder of a single machine; the port is in use,
            the password file is not safe, or MLflow does not start.
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
            f"{DATABASE} {public_url(database)} is not a database: give a database, as in postgresql://HOST/NAME, with "
            "user and password before HOST",
            code="database", field=DATABASE,
        )  # fmt: skip
    Hosts.of(allowed_hosts)  # validated before the database is accessed
    place = artifacts or artifacts_place()
    if "@" in urlsplit(place).netloc:
        raise UsageError(
            f"--artifacts {public_url(place)} must not contain a user or password, which every user sees on a "
            "command line: they belong in the environment or files of the storage's driver, such as AWS_PROFILE",
            code="artifacts", field="artifacts",
        )  # fmt: skip
    check_port(host, port)
    sign_in = SignIn(password_file().make())
    with named_in(DATABASE):
        prepare_database(database)
    say("starting MLflow's server, about ten seconds")
    from tasks.tracking.artifact_guard import served_app  # imports MLflow, already loaded for the database

    app = partial(served_app, database, place)
    serve(TRACKING, app, host, port, ready, hosts=allowed_hosts, sign_in=sign_in)
