"""Undocumented parts of MLflow that cpb uses. Each was read and tested in the version named with it.

Check this file before changing the pinned MLflow version; `tests/tracking/test_mlflow_private.py` calls each function.
"""

import os
import sqlite3
import warnings
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import requests
    from mlflow.tracking import MlflowClient
    from starlette.types import ASGIApp

CHECKED = "3.17.2"


def write_schema(path: Path) -> None:
    """Write MLflow's current SQLite schema to an empty file, built in memory: half the time of a migration on disk.

    3.17.2: `mlflow.store.db.utils._initialize_tables` (as MLflow does for a new store).
    """
    import sqlalchemy
    from mlflow.store.db import utils

    engine = sqlalchemy.create_engine("sqlite:///:memory:")
    utils._initialize_tables(engine)
    with engine.connect() as connection, closing(sqlite3.connect(path)) as target:
        source: Any = connection.connection.driver_connection
        source.backup(target)
        # Readers (the UI) and writers do not block each other, and a commit needs one fsync instead of three.
        target.execute("PRAGMA journal_mode=WAL")
    engine.dispose()


def ask_server(uri: str, endpoint: str, timeout_s: float) -> "requests.Response":
    """Send one GET request to a tracking server, with the credentials of MLflow's client; no retry.

    3.17.2: `mlflow.utils.credentials.get_default_host_creds`, `mlflow.utils.rest_utils.http_request`.
    """
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    options: dict[str, Any] = {"max_retries": 0, "timeout": timeout_s, "raise_on_status": False}
    return http_request(get_default_host_creds(uri), endpoint, "GET", **options)


def delete_runs_for_good(client: "MlflowClient", run_ids: "Sequence[str]", models: "Sequence[str]") -> None:
    """Delete all rows of runs from a SQL store; MLflow's public `delete_run` only marks them.

    Not by `mlflow gc --run-ids`: it also deletes for good every other experiment and logged model that somebody has
    deleted in the store, and each folder of artifacts as a whole.

    Args:
        models: ids of the runs' logged models.

    3.17.2: `SqlAlchemyStore._hard_delete_run` and `_hard_delete_logged_model`, which `mlflow gc` calls for each.
    """
    store: Any = client._tracking_client.store
    for model_id in models:
        store._hard_delete_logged_model(model_id)
    for run_id in run_ids:
        store._hard_delete_run(run_id)


def server_app(uri: str, artifacts: str, hosts: str) -> "ASGIApp":
    """Return the app that `mlflow server` runs, over this store, without job runner.

    Args:
        uri: of the store.
        artifacts: root URI of the artifacts of new experiments.
        hosts: the names that MLflow answers to, as its `--allowed-hosts`.

    3.17.2: `mlflow.server.handlers.initialize_backend_stores` and `mlflow.server.fastapi_app.app`, which reads the
    variables when it is imported.
    """
    os.environ |= {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_SERVER_ALLOWED_HOSTS": hosts}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Starlette's WSGI adapter is deprecated
        from mlflow.server.fastapi_app import app
        from mlflow.server.handlers import initialize_backend_stores

    initialize_backend_stores(uri, uri, artifacts)
    return app
