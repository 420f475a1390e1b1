"""Where runs are kept: MLflow's store, made safely on first use.

A new SQLite store is migrated in memory and moved into place complete (half the time of a migration on
disk), under a file lock: MLflow's own first use corrupts the migration when two processes start together,
and a kill in the middle leaves a half-made schema that no later start repairs.
"""

import fcntl
import hashlib
import logging
import os
import sqlite3
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from schemas.errors import CpbError

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

EXPERIMENT = "cpb"
_KIND = {"mlflow.experimentKind": "custom_model_development"}  # the interface need not guess, nor ask
DEFAULT_DATABASE = Path("mlruns/mlflow.db")


@dataclass(frozen=True)
class Store:
    """An opened tracking store: its URI, MLflow's client and the experiment's id."""

    uri: str
    client: "MlflowClient"
    experiment_id: str


_opened: dict[str, Store] = {}


def tracking_uri() -> str:
    """Return `MLFLOW_TRACKING_URI`, or the SQLite store `mlruns/mlflow.db` of this folder.

    SQLite paths come back absolute: MLflow keeps one engine per URI, and a relative one would go on pointing
    at the old file after a change of folder.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{DEFAULT_DATABASE}"
    database = sqlite_path(uri)
    return f"sqlite:///{database}" if database else uri


def sqlite_path(uri: str) -> Path | None:
    """Return the absolute database file of a `sqlite:///` URI, None for any other kind of store."""
    if not uri.startswith("sqlite:///"):
        return None
    return Path(uri.removeprefix("sqlite:///")).absolute()


def public_uri(uri: str) -> str:
    """Return the URI without user name and password, for messages."""
    parts = urlsplit(uri)
    return uri if "@" not in parts.netloc else parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def open_store(uri: str | None = None, *, create: bool = True) -> Store:
    """Open the store and the experiment `cpb`, creating both where missing; cached per process.

    Args:
        uri: the store's URI; default `tracking_uri()`.
        create: False to refuse to make a new store (for commands that only read).

    Raises:
        CpbError: the store is missing (with `create=False`), not MLflow's, too old, or unreachable.
    """
    uri = uri or tracking_uri()
    database = sqlite_path(uri)
    if database and not database.exists():
        if not create:
            raise CpbError(f"no runs yet: {database} does not exist; train first, as in `cpb demo`")
        _opened.pop(uri, None)
        try:
            _make_database(database)
        except OSError as error:
            raise CpbError(
                f"the MLflow store {database} cannot be made ({error.strerror}); "
                "set MLFLOW_TRACKING_URI to a place that can be written"
            ) from error
    if uri not in _opened:
        _opened[uri] = _connect(uri, database)
    return _opened[uri]


def _connect(uri: str, database: Path | None) -> Store:
    if urlsplit(uri).scheme in ("http", "https"):
        _check_server(uri)
    _quiet()
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with _exclusive(_lock_file(uri, database)):
            client = MlflowClient(tracking_uri=uri, registry_uri=uri)
            return Store(uri, client, _experiment(client, database))
    except ModuleNotFoundError as error:
        raise CpbError(
            f"the MLflow store {public_uri(uri)} needs the Python package {error.name}, which is not installed; "
            f"install it with pip, or set MLFLOW_TRACKING_URI to another store"
        ) from error
    except (MlflowException, SQLAlchemyError) as error:
        reason = str(error).splitlines()[0].replace(uri, public_uri(uri))
        if "filesystem tracking backend" in reason:
            raise CpbError(
                f"MLflow keeps no runs in a plain folder any more ({public_uri(uri)}); "
                "set MLFLOW_TRACKING_URI to sqlite:///FILE or to a server's http address"
            ) from error
        damaged = "not a database" in reason or "malformed" in reason
        remedy = "restore it from a backup" if damaged else "back it up, then run `mlflow db upgrade`"
        raise CpbError(
            f"the MLflow store {public_uri(uri)} cannot be opened ({reason}); "
            f"{remedy}, or set MLFLOW_TRACKING_URI to another store"
        ) from error


def _check_server(uri: str) -> None:
    """Fail at once where nothing answers at an HTTP store: MLflow itself would go on asking for minutes."""
    try:
        urllib.request.urlopen(
            public_uri(uri), timeout=10
        ).close()  # it takes a password for part of the name
    except urllib.error.HTTPError:
        return  # it answers; what it thinks of us, the first call will say
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise CpbError(
            f"the MLflow server {public_uri(uri)} cannot be reached ({reason}); "
            "start it, or unset MLFLOW_TRACKING_URI to use mlruns/mlflow.db"
        ) from error


def _experiment(client: "MlflowClient", database: Path | None) -> str:
    from mlflow.entities import LifecycleStage

    found = client.get_experiment_by_name(EXPERIMENT)
    if found is None:
        # A server places artifacts by itself; beside a database on this machine we say where.
        location = (database.parent / "artifacts").as_uri() if database else None
        return client.create_experiment(EXPERIMENT, artifact_location=location, tags=_KIND)
    if found.lifecycle_stage == LifecycleStage.DELETED:
        client.restore_experiment(found.experiment_id)
    return found.experiment_id


def _make_database(database: Path) -> None:
    """Create MLflow's SQLite schema at `database` in one step: it is either absent or complete."""
    database.parent.mkdir(parents=True, exist_ok=True)
    with _exclusive(_lock_file("", database)):
        if database.exists():  # another process was first
            return
        handle, name = tempfile.mkstemp(dir=database.parent, prefix=f".{database.name}.")
        os.close(handle)
        part = Path(name)
        try:
            _write_schema(part)
            part.chmod(0o644)
            part.rename(database)
        finally:
            part.unlink(missing_ok=True)


def _write_schema(path: Path) -> None:
    _quiet()
    from mlflow.store.db import utils

    engine = utils.create_sqlalchemy_engine("sqlite:///:memory:")
    utils._initialize_tables(engine)  # MLflow's own path for a new store; the version is pinned
    with engine.connect() as connection, sqlite3.connect(path) as target:
        source = connection.connection.driver_connection
        if not isinstance(source, sqlite3.Connection):
            raise TypeError(f"expected a sqlite3 connection, got {type(source)}")
        source.backup(target)
        # Readers (the UI) and writers no longer wait for each other, and a commit costs one fsync, not three.
        target.execute("PRAGMA journal_mode=WAL")
    target.close()
    engine.dispose()


def _lock_file(uri: str, database: Path | None) -> Path:
    if database:
        return database.parent / f".{database.name}.lock"
    digest = hashlib.sha256(uri.encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"cpb-store-{os.getuid()}-{digest}.lock"


@contextmanager
def alone(store: Store) -> Iterator[None]:
    """Hold the store against other processes and threads of this machine: look, then write, as one step."""
    with _exclusive(_lock_file(store.uri, sqlite_path(store.uri))):
        yield


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Hold an inter-process lock; the kernel frees it when the holder dies."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _quiet() -> None:
    """Import MLflow without telemetry and without its migration log lines."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    for name in ("mlflow.store.db.utils", "mlflow.store.model_registry", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
