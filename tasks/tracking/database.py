"""Checks once, within seconds, whether a store can be used, and reports any error of it in one sentence.

MLflow itself would retry for one to two minutes.
"""

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

from schemas.errors import CpbError
from schemas.scope import default_folder
from tasks.storage.files import draft_name
from tasks.storage.locks import locked, temporary_lock
from tasks.storage.urls import public_url, without_credentials
from tasks.tracking.mlflow_private import ask_server, write_schema

TIMEOUT_S = 7
EXPERIMENT = "cpb"
"""Name of the experiment that holds all runs."""
UNUSABLE = "store"
"""Code of the error for a store that cannot be used."""

_MAX_REASON_CHARS = 300
_LIBRARIES = ("mlflow", "sqlalchemy", "alembic")
_ENDPOINT = f"/api/2.0/mlflow/experiments/get-by-name?experiment_name={EXPERIMENT}"


def quiet() -> None:
    """Let MLflow send no telemetry, and print no migrations, addresses or tracebacks of failed statements."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "5")  # waits a minute; 7 would wait over four
    for name in ("mlflow.store.db.utils", "mlflow.store.model_registry", "alembic"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def tracking_uri() -> str:
    """Return `MLFLOW_TRACKING_URI`, or the SQLite store `mlruns/mlflow.db` in `default_folder`.

    SQLite paths are made absolute: MLflow caches one engine per URI, and a relative path would still refer to the old
    file after a change of directory.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{default_folder() / 'mlruns/mlflow.db'}"
    database = sqlite_path(uri)
    return f"sqlite:///{database}" if database else uri


def sqlite_path(uri: str) -> Path | None:
    """Return the absolute database file of a `sqlite:///` URI, None for any other kind of store."""
    if not uri.startswith("sqlite:///"):
        return None
    return Path(uri.removeprefix("sqlite:///")).absolute()


def is_server(uri: str) -> bool:
    """Whether the store is a tracking server, reached over HTTP."""
    return urlsplit(uri).scheme in ("http", "https")


def check(uri: str) -> None:
    """Connect to the store once, for at most `TIMEOUT_S`.

    Raises:
        CpbError: it cannot be used now.
    """
    import sqlalchemy
    from mlflow.exceptions import MlflowException
    from sqlalchemy.pool import NullPool

    try:
        if is_server(uri):
            response = ask_server(uri, _ENDPOINT, TIMEOUT_S)
            if response.status_code != 404:  # it has no experiment `cpb` yet
                response.raise_for_status()
            return
        limit = "connect_timeout" if uri.startswith(("postgres", "mysql")) else "timeout"
        engine = sqlalchemy.create_engine(uri, poolclass=NullPool, connect_args={limit: TIMEOUT_S})
        sqlalchemy.inspect(engine).get_table_names()
    except (MlflowException, sqlalchemy.exc.SQLAlchemyError, OSError, ValueError, ImportError) as error:
        raise store_error(uri, error) from None  # the exception may hold the URI


@contextmanager
def store_errors(uri: str = "") -> Iterator[None]:
    """Raise any error of MLflow or its database in the block as a `CpbError` of one sentence.

    Args:
        uri: of the store; default `tracking_uri()`.
    """
    try:
        yield
    except Exception as error:
        if any(base.__module__.partition(".")[0] in _LIBRARIES for base in type(error).__mro__):
            raise store_error(uri or tracking_uri(), error) from None
        raise


def store_error(uri: str, error: BaseException) -> CpbError:
    """Return an error of a database, a server or MLflow as one sentence without credentials.

    The reason is the first line of the innermost message: the driver's, not the wrapper's.
    """
    causes = [error]
    while cause := causes[-1].__cause__ or causes[-1].__context__:
        causes.append(cause)
    of_driver = [origin for cause in causes if (origin := getattr(cause, "orig", None))]
    of_network = [cause for cause in reversed(causes) if isinstance(cause, OSError)]
    innermost = next(iter((*of_driver, *of_network)), error)
    lines = [line.strip() for line in str(innermost).splitlines() if line.strip()] or [
        type(innermost).__name__
    ]
    store, reason = f"the MLflow store {public_url(uri)}", without_credentials(lines[0])[:_MAX_REASON_CHARS]
    password = uri.partition("://")[2].rpartition("@")[0].partition(":")[2]
    if isinstance(error, ValueError) or re.search("[@/?#]", password):  # URL and reason may show a part of it
        store = "the MLflow store of MLFLOW_TRACKING_URI"
        reason = "its URL cannot be parsed; in a user name or password write @, : and / as %40, %3A and %2F"
    return CpbError(
        f"{store} cannot be used: {reason.rstrip('.')}", code=UNUSABLE, field="MLFLOW_TRACKING_URI"
    )


def make_sqlite(database: Path) -> None:
    """Create MLflow's SQLite schema at `database` atomically: it is either absent or complete.

    MLflow's own first use corrupts the migration if two processes start together, and a kill during it leaves a
    partial schema that no later start repairs.

    Raises:
        CpbError: its folder cannot be created or written.
    """
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        with locked(_lock_file(f"sqlite:///{database}")):
            if not database.exists():  # another process may have been first
                _write_whole_schema(database)
    except (OSError, CpbError) as error:
        raise CpbError(
            f"the MLflow store {database} cannot be created ({getattr(error, 'strerror', None) or error}); "
            "set MLFLOW_TRACKING_URI to a writable place",
            code=UNUSABLE,
        ) from error


@contextmanager
def exclusive(uri: str) -> Iterator[None]:
    """Lock the store against other processes and threads of this machine; the kernel releases the lock on exit."""
    with locked(_lock_file(uri)):
        yield


def _lock_file(uri: str) -> Path:
    database = sqlite_path(uri)
    if database:
        return database.parent / f".{database.name}.lock"
    return temporary_lock(f"store-{sha256(uri.encode()).hexdigest()[:16]}.lock")


def _write_whole_schema(database: Path) -> None:
    part = draft_name(database)
    part.touch()  # SQLite would create it writable by its owner only, whatever the umask
    quiet()
    try:
        write_schema(part)
        part.rename(database)
    finally:
        part.unlink(missing_ok=True)
