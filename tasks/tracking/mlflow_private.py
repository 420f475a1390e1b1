"""Undocumented parts of MLflow that cpb uses. Each was read and tested in the version named with it.

Starting and restricting its server is in `artifact_guard.py`.

Check this file before changing the pinned MLflow version; `tests/tracking/test_mlflow_private.py` calls each function.
"""

import logging
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import requests
    from mlflow.tracking import MlflowClient

CHECKED = "3.17.2"

_IDS_A_STATEMENT = 500  # databases limit the parameters of a statement

_PLACES = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)
"""Tables and columns that contain artifact locations."""

PROXIED = "mlflow-artifacts:"
"""Scheme of artifacts stored by a tracking server (3.17.2, `mlflow.store.artifact.mlflow_artifacts_repo`)."""


def quiet() -> None:
    """Configure MLflow to send no telemetry and to print no migrations, addresses or tracebacks.

    3.17.2: `mlflow.store.db.utils` logs a traceback for each statement that fails.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "5")  # waits a minute; 7 would wait over four
    for name in ("mlflow.store.db.utils", "mlflow.store.model_registry", "alembic"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def write_schema(path: Path) -> None:
    """Write MLflow's current SQLite schema to an empty file, built in memory: half the time of a migration on disk.

    3.17.2: `mlflow.store.db.utils.create_sqlalchemy_engine`, `_initialize_tables` (as MLflow does for a new store).
    """
    quiet()
    from mlflow.store.db import utils

    engine = utils.create_sqlalchemy_engine("sqlite:///:memory:")
    utils._initialize_tables(engine)
    with engine.connect() as connection, closing(sqlite3.connect(path)) as target:
        source: Any = connection.connection.driver_connection
        source.backup(target)
        # Readers (the UI) and writers do not block each other, and a commit needs one fsync instead of three.
        target.execute("PRAGMA journal_mode=WAL")
    engine.dispose()


def local_path(uri: str) -> Path | None:
    """Return the path of a local artifact URI, else None.

    3.17.2: `mlflow.utils.uri.is_local_uri`, `mlflow.utils.file_utils.local_file_uri_to_path`.
    """
    from mlflow.utils.file_utils import local_file_uri_to_path
    from mlflow.utils.uri import is_local_uri

    return Path(local_file_uri_to_path(uri)) if is_local_uri(uri) else None


def move_artifacts(database: Path, places: "Mapping[str, str]") -> None:
    """Change the recorded location of all artifacts at or below the keys of `places`, in one transaction.

    3.17.2: the columns of `mlflow.store.tracking.dbmodels.models` and `mlflow.store.model_registry.dbmodels.models`
    that contain a location; no public call changes them.
    """
    with closing(sqlite3.connect(database)) as connection, connection:
        for old, new in places.items():
            for table, column in _PLACES:
                connection.execute(
                    f"UPDATE {table} SET {column} = :new || substr({column}, length(:old) + 1) "
                    f"WHERE {_is_below(column)}",
                    {"old": old, "new": new},
                )


def _is_below(column: str) -> str:
    return f"({column} = :old OR substr({column}, 1, length(:old) + 1) = :old || '/')"


def ask_server(uri: str, endpoint: str, timeout_s: float) -> "requests.Response":
    """Send one GET request to a tracking server, with the credentials of MLflow's client; no retry.

    3.17.2: `mlflow.utils.credentials.get_default_host_creds`, `mlflow.utils.rest_utils.http_request`.
    """
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    options: dict[str, Any] = {"max_retries": 0, "timeout": timeout_s, "raise_on_status": False}
    return http_request(get_default_host_creds(uri), endpoint, "GET", **options)


def close_connections(uri: str, *, forget: bool = False) -> None:
    """Close all connections to a database, before a fork or after its file was replaced; the next call reconnects.

    Args:
        forget: also remove its engines, for a copy that is about to be deleted.

    3.17.2: MLflow keeps engines for the life of the process, in `_engine_map` of its SQL stores for runs and models.
    """
    from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore as Models
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore as Runs

    for engines in (Runs._engine_map, Models._engine_map):
        engine = engines.pop(uri, None) if forget else engines.get(uri)
        if engine is not None:
            engine.dispose()


def delete_runs_for_good(client: "MlflowClient", run_ids: "Sequence[str]", models: str) -> None:
    """Delete all rows of runs from a SQL store in one transaction; MLflow's public `delete_run` only marks them.

    Args:
        models: type of the logged models that are deleted with their run.

    3.17.2: equivalent to `SqlAlchemyStore._hard_delete_run`, which `mlflow gc` calls for each run, with its list of
    tables. That method leaves the runs' inputs and datasets; here a dataset is deleted with its last input. Logged
    models: `SqlAlchemyStore._hard_delete_logged_model`.
    """
    from mlflow.store.tracking.dbmodels.models import (
        SqlDataset,
        SqlInput,
        SqlInputTag,
        SqlLoggedModel,
        SqlLoggedModelMetric,
        SqlLoggedModelParam,
        SqlLoggedModelTag,
        SqlRun,
    )
    from mlflow.store.tracking.sqlalchemy_store import _RUN_DELETE_CASCADE_MODELS

    with client._tracking_client.store.ManagedSessionMaker(read_only=False) as session:

        def delete(model: Any, condition: Any) -> None:
            session.query(model).filter(condition).delete(synchronize_session=False)

        for start in range(0, len(run_ids), _IDS_A_STATEMENT):
            ids = run_ids[start : start + _IDS_A_STATEMENT]
            own = (SqlInput.destination_type == "RUN") & SqlInput.destination_id.in_(ids)
            inputs = session.query(SqlInput.input_uuid, SqlInput.source_id).filter(own).all()
            delete(SqlInputTag, SqlInputTag.input_uuid.in_([row.input_uuid for row in inputs]))
            delete(SqlInput, own)
            for dataset in {row.source_id for row in inputs}:
                if not session.query(SqlInput).filter(SqlInput.source_id == dataset).count():
                    delete(SqlDataset, SqlDataset.dataset_uuid == dataset)
            delete(SqlLoggedModelMetric, SqlLoggedModelMetric.run_id.in_(ids))
            own_model = SqlLoggedModel.source_run_id.in_(ids) & (SqlLoggedModel.model_type == models)
            made = [row.model_id for row in session.query(SqlLoggedModel.model_id).filter(own_model)]
            for model in (SqlLoggedModelParam, SqlLoggedModelTag, SqlLoggedModel):
                delete(model, model.model_id.in_(made))
            for model in _RUN_DELETE_CASCADE_MODELS:
                delete(model, model.run_uuid.in_(ids))
            delete(SqlRun, SqlRun.run_uuid.in_(ids))


def delete_version_for_good(client: "MlflowClient", name: str, version: str) -> None:
    """Delete a model version's row and tags; the public `delete_model_version` blanks the row and keeps the tags.

    3.17.2: `MlflowClient._get_registry_client().store`, `_get_sql_model_version`; tags are deleted in cascade.
    """
    store: Any = client._get_registry_client().store
    with store.ManagedSessionMaker(read_only=False) as session:
        session.delete(store._get_sql_model_version(session, name, int(version)))


def delete_remote_files(uri: str) -> None:
    """Delete all remote artifacts of a run.

    3.17.2: `mlflow.store.artifact.artifact_repository_registry.get_artifact_repository`, as in `mlflow gc`.
    """
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    get_artifact_repository(uri).delete_artifacts()


WORKFLOW = "workflowType=machine_learning"
"""Query of an experiment's page that shows runs and models instead of traces, which are MLflow's default.

3.17.2: `server/js`, read by the switch "Model training" at the top left; without it the browser's last choice counts.
"""
