"""MLflow's SQLite database as a file: made whole, locked, checked; and what MLflow would print."""

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from schemas.errors import CpbError
from tasks.storage.files import draft_name
from tasks.storage.locks import locked, machine_lock
from tasks.storage.urls import public_url
from tasks.tracking.home_store import (
    sqlite_path,
)
from tasks.tracking.store_errors import UNUSABLE

TIMEOUT_S = 7
CHECKED_MLFLOW = "3.17.2"
"""Version in which the undocumented parts of MLflow were read that this file, `prune` and `flows/ops` use."""


def quiet() -> None:
    """Let MLflow send no telemetry, and print no migrations, addresses or tracebacks of failed statements."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "5")  # waits a minute; 7 would wait over four
    for name in ("mlflow.store.db.utils", "mlflow.store.model_registry", "alembic"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def database_damage(database: Path) -> str:
    """Return the errors that SQLite finds in the structure of a database file; "" for none, or if it cannot be opened.

    A flipped byte inside a value is not found: MLflow stores no digests of values.
    """
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", timeout=TIMEOUT_S, uri=True)) as db:
            errors = "; ".join(row[0] for row in db.execute("PRAGMA integrity_check(3)"))
    except sqlite3.OperationalError:
        # Locked, or not to be opened: that is no damage, and whoever opens the store reports it.
        return ""
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # sqlite3 cannot decode damaged names
        return str(error)
    return "" if errors == "ok" else " ".join(errors.split())[:300]


def make_sqlite(database: Path) -> None:
    """Create MLflow's SQLite schema at `database` atomically: it is either absent or complete.

    MLflow's own first use corrupts the migration if two processes start together, and a kill during it leaves a
    partial schema that no later start repairs.

    Raises:
        CpbError: its folder cannot be created or written.
    """
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        # The lock lies beside the database: every process that could create it sees it there.
        with locked(_lock_file(f"sqlite:///{database}")):
            if not database.exists():  # another process may have been first
                part = draft_name(database)
                part.touch()  # SQLite would create it writable by its owner only, whatever the umask
                try:
                    write_schema(part)
                    part.rename(database)
                finally:
                    part.unlink(missing_ok=True)
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
    # Of all users of the machine: their processes continue each other's runs (`ProcessId.is_alive`).
    return machine_lock(f"cpb-store-{sha256(public_url(uri).encode()).hexdigest()[:16]}.lock")


def write_schema(path: Path) -> None:
    """Write MLflow's current SQLite schema to an empty file, built in memory: half the time of a migration on disk."""
    quiet()
    import sqlalchemy
    from mlflow.store.db import utils

    # MLflow makes the tables itself: their form belongs to its version.
    engine = sqlalchemy.create_engine("sqlite:///:memory:")
    utils._initialize_tables(engine)  # type: ignore[no-untyped-call]
    with engine.connect() as connection, closing(sqlite3.connect(path)) as target:
        source: Any = connection.connection.driver_connection
        source.backup(target)
        # Readers (the UI) and writers do not block each other, and a commit needs one fsync instead of three.
        target.execute("PRAGMA journal_mode=WAL")
    engine.dispose()
