"""`serve_ui`: MLflow's own interface over cpb's store, in this process and behind the guard, for this user alone."""

import os
import secrets
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from flows.ops.listeners import UI
from flows.ops.passwords import USER
from flows.ops.serve import run_server
from tasks.storage.urls import public_url

if TYPE_CHECKING:
    from starlette.types import ASGIApp


@dataclass(frozen=True)
class Address:
    """Where MLflow's interface is, and how to get in.

    Args:
        url: of the server, for programs.
        runs: the table of the experiment's runs; of those of the last view, the best first, once there is one.
        views: what a chart shows -> its address (`tasks.tracking.views`); none of them signs in.
        password: of the user `USER` in this run; empty if the store is a server, which has its own users.
    """

    url: str
    runs: str
    views: dict[str, str]
    password: str = ""


def serve_ui(
    host: str = "127.0.0.1", port: int = 5000, ready: Callable[[Address], None] = lambda where: None
) -> None:
    """Run MLflow's own interface over cpb's store, for this user alone, until interrupted.

    MLflow itself requires no password, and anyone with write access can read and write files as its user. So each run
    has a random password (HTTP Basic) in this process alone. A single process without job runner takes 280 MB: MLflow's
    own command starts 15 processes (2.1 GB). A store that is itself a server has its own interface: then only its URL
    is reported.

    Args:
        ready: called once the interface accepts requests.

    Raises:
        CpbError: there is no store yet, the port is in use, or MLflow does not start.
    """
    from tasks.tracking.home_store import is_server
    from tasks.tracking.store import read_store
    from tasks.tracking.views import runs_page, views

    store = read_store()
    shown = views(store)

    def address(url: str, password: str = "") -> Address:
        links = {view.about: view.link(url, store) for view in shown}
        # Without a filter MLflow shows the flows' runs, with all that compares them folded up below.
        runs = shown[-1].link(url, store, chart=False) if shown else runs_page(url, store)
        return Address(url, runs, links, password)

    if is_server(store.uri):
        ready(address(public_url(store.uri)))
        return
    # In no file: a new one each time, which ends with the process.
    password = secrets.token_urlsafe(32)
    # For another --host the guard's check of Host counts alone.
    hosts = "localhost,localhost:*,127.0.0.1,127.0.0.1:*" if host == "127.0.0.1" else "*"
    run_server(
        UI,
        partial(_mlflow_app, store.uri, store.artifacts, hosts),
        host,
        port,
        lambda url: ready(address(url, password)),
        auth=f"{USER}:{password}",
    )


def _mlflow_app(uri: str, artifacts: str, hosts: str) -> "ASGIApp":
    """Return the app that `mlflow server` runs, over this store, without job runner.

    Args:
        uri: of the store.
        artifacts: root URI of the artifacts of new experiments.
        hosts: the names that MLflow answers to, as its `--allowed-hosts`.

    `mlflow.server.handlers.initialize_backend_stores` and `mlflow.server.fastapi_app.app`, which reads the
    variables when it is imported.
    """
    # Before the imports: MLflow reads both when its app is imported.
    os.environ |= {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_SERVER_ALLOWED_HOSTS": hosts}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Starlette's WSGI adapter is deprecated
        from mlflow.server.fastapi_app import app
        from mlflow.server.handlers import initialize_backend_stores

    initialize_backend_stores(uri, uri, artifacts)
    served: ASGIApp = app
    return served
