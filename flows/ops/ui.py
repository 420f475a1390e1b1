"""`cpb ui`: MLflow's own interface over cpb's store, in this process and for this user alone.

MLflow itself requires no password, and anyone with write access can read and write files as its user. So each run has
a random password (HTTP Basic) in this process alone, and the guard also checks Host and Origin on every route.
A single process without job runner takes 280 MB: MLflow's own command starts 15 processes (2.1 GB).
"""

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from flows.ops.listeners import UI
from flows.ops.password_file import USER
from flows.ops.serving import check_port, serve
from schemas.errors import CpbError
from tasks.storage.urls import public_url
from tasks.tracking.connection import Store
from tasks.tracking.database import is_server, store_errors
from tasks.tracking.mlflow_private import server_app
from tasks.tracking.mlflow_store import open_store, reconcile

log = logging.getLogger("cpb")


@dataclass(frozen=True)
class Address:
    """Where the interface is, and how to get in.

    Args:
        url: of the server, for programs.
        runs: page of the experiment's runs.
        password: of the user `USER` in this run; empty if the store is a server, which has its own users.
    """

    url: str
    runs: str
    password: str = ""


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
        with store_errors():
            reconcile(store)  # else runs whose process has died are shown as running
    except CpbError as error:  # such as a locked database
        log.warning("%s", error)
    password = secrets.token_urlsafe(32)
    # For another --host the guard's check of Host counts alone.
    hosts = "localhost,localhost:*,127.0.0.1,127.0.0.1:*" if host == "127.0.0.1" else "*"
    serve(
        UI, partial(server_app, store.uri, store.artifacts, hosts), host, port,
        lambda url: ready(Address(url, runs_page(url, store), password)), auth=f"{USER}:{password}",
    )  # fmt: skip


def runs_page(url: str, store: Store) -> str:
    """Return the page of the experiment's runs; without the query MLflow 3.17 opens the page of traces."""
    return f"{url}/#/experiments/{store.experiment_id}/runs?workflowType=machine_learning"
