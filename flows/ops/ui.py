"""`cpb ui`: MLflow's own interface over cpb's store, in this process and for this user alone.

MLflow itself requires no password, and anyone with write access can read and write files as its user. So each run has
a random password: a browser signs in with a link that is valid once and for a minute, a program with HTTP Basic.
A single process without job runner takes 280 MB: MLflow's own command starts 15 processes (2.1 GB).
"""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from flows.ops.guard import SignIn
from flows.ops.listeners import UI
from flows.ops.password_file import PasswordFile, config_folder
from flows.ops.serving import check_port, serve
from flows.ops.tracking_server import artifacts_place
from schemas.errors import CpbError
from tasks.storage.urls import public_url
from tasks.tracking.connection import Store
from tasks.tracking.database import PROXIED, is_server
from tasks.tracking.mlflow_store import open_store, reconcile

log = logging.getLogger("cpb")


@dataclass(frozen=True)
class Address:
    """Where the interface is, and how to get in.

    Args:
        url: of the server, for programs.
        runs: page of the experiment's runs.
        sign_in: the link that signs a browser in; empty if the store is a server, which has its own sign-in.
        auth_file: file with the password of this run.
    """

    url: str
    runs: str
    sign_in: str = ""
    auth_file: Path | None = None


def serve_ui(
    host: str = "127.0.0.1", port: int = 5000, ready: Callable[[Address], None] = lambda where: None
) -> None:
    """Run MLflow's interface until interrupted (Ctrl-C, SIGTERM or SIGHUP).

    A store that is itself a server has its own interface: then only its URL is reported.

    Args:
        ready: called once the interface accepts requests.

    Raises:
        CpbError: there is no store yet, the port is in use, or MLflow does not start.
    """
    store = open_store(create=False)
    if is_server(store.uri):
        url = public_url(store.uri)
        ready(Address(url, runs_page(url, store)))
        return
    check_port(host, port)
    try:
        reconcile(store)  # else runs whose process has died are shown as running
    except CpbError as error:  # such as a locked database
        log.warning("%s", error)
    location = store.artifacts
    from tasks.tracking.artifact_guard import served_app  # imports MLflow, already loaded for the store

    proxied = location.startswith(PROXIED)  # the database of a tracking server, which stores the files
    app = partial(served_app, store.served, artifacts_place() if proxied else location, proxied=proxied)
    file = password_file(port)
    sign_in = SignIn(file.renew(), cookie=f"cpb-{port}", landing=runs_page("", store))
    with ExitStack() as running:
        running.callback(file.path.unlink, missing_ok=True)

        def announce(url: str) -> None:
            ready(Address(url, runs_page(url, store), sign_in.new_link(url), file.path))

        serve(UI, app, host, port, announce, sign_in=sign_in)


def password_file(port: int) -> PasswordFile:
    """Return the password file of a run: `~/.config/cpb/ui-auth-PORT`."""
    return PasswordFile(
        config_folder() / f"ui-auth-{port}",
        missing="no `cpb ui` of this user runs on that port",
        remedy="delete it, and start `cpb ui`, which makes a new one",
    )


def runs_page(url: str, store: Store) -> str:
    """Return the page of the experiment's runs; without the query MLflow 3.17 opens the page of traces."""
    return f"{url}/#/experiments/{store.experiment_id}/runs?workflowType=machine_learning"
