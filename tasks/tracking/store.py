"""Opens MLflow's store: created safely on first use, relocated and reconciled when opened."""

import os
import shutil
import weakref
from pathlib import Path

from schemas.errors import CpbError
from tasks.storage.urls import public_url
from tasks.tracking.connection import Store, connect
from tasks.tracking.database import check, is_writable, make_sqlite, snapshot, sqlite_path
from tasks.tracking.mlflow_private import close_connections
from tasks.tracking.reconcile import reconcile
from tasks.tracking.relocate import relocate

DEFAULT_DATABASE = Path("mlruns/mlflow.db")

_opened: dict[str, Store] = {}
_opened_for_writing: set[str] = set()
_files: dict[str, tuple[int, int] | None] = {}
"""Device and inode of each SQLite database when it was opened."""
_snapshots: dict[str, tuple[float, ...]] = {}
"""Modification times of a read-only database's files at its snapshot."""


def tracking_uri() -> str:
    """Return `MLFLOW_TRACKING_URI`, or the SQLite store `mlruns/mlflow.db` in the current directory.

    SQLite paths are made absolute: MLflow caches one engine per URI, and a relative path would still refer to the old
    file after a change of directory.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{DEFAULT_DATABASE}"
    database = sqlite_path(uri)
    return f"sqlite:///{database}" if database else uri


def open_store(uri: str | None = None, *, create: bool = True) -> Store:
    """Open the store and the experiment `cpb`, creating both if missing; cached per process.

    Args:
        uri: the store's URI; default `tracking_uri()`.
        create: False opens for reading only, also a read-only store; a missing store is not created.

    Raises:
        CpbError: the store is missing (with `create=False`), not MLflow's, locked, too old, unreachable, or the copy
            of a database without its artifacts.
    """
    uri = uri or tracking_uri()
    database = sqlite_path(uri)
    if database:
        _let_go_if_replaced(uri, database)
    if database and not database.exists():
        if not create:
            raise CpbError(
                f"no runs yet: {database} does not exist; train first, as in `cpb demo`", code="no-store"
            )
        make_sqlite(database)
    if database and not is_writable(database):
        return _open_snapshot(uri, database, create)
    if uri not in _opened or (create and uri not in _opened_for_writing):
        check(uri, write=create)
    if uri not in _opened:
        store = connect(uri, uri)
        relocate(store)
        _opened[uri] = store
        if database:
            _files[uri] = _file(database)
    if create and uri not in _opened_for_writing:
        reconcile(_opened[uri])
        _opened_for_writing.add(uri)
    return _opened[uri]


def _file(database: Path) -> tuple[int, int] | None:
    """Return the device and inode of the file at this path now."""
    try:
        found = database.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _let_go_if_replaced(uri: str, database: Path) -> None:
    """Close a database that was deleted or replaced: MLflow would keep writing to the unlinked file."""
    if uri in _files and _files[uri] != _file(database):
        _opened_for_writing.discard(uri)
        _snapshots.pop(uri, None)
        _files.pop(uri, None)
        if _opened.pop(uri, None):
            close_connections(uri)


def _open_snapshot(uri: str, database: Path, create: bool) -> Store:
    """Open a copy of a read-only database, copied again when the database has changed."""
    if create:
        raise CpbError(
            f"the MLflow store {public_url(uri)} cannot be written; allow writing there, "
            "or set MLFLOW_TRACKING_URI to another store",
            code="read-only-store",
        )
    files = (database, database.with_name(f"{database.name}-wal"))
    state = tuple(file.stat().st_mtime for file in files if file.exists())
    if _snapshots.get(uri) != state:
        copy = _readable_copy(uri, database)
        served = f"sqlite:///{copy}"
        try:
            check(served, write=False)
            store = connect(uri, served)
        except BaseException:
            _drop(served, copy.parent)
            raise
        # A process that displays a store written by another makes many copies: each is deleted with its last reader.
        weakref.finalize(store.client, _drop, served, copy.parent)
        relocate(store)
        _opened[uri], _snapshots[uri] = store, state
    return _opened[uri]


def _drop(served: str, folder: Path) -> None:
    """Delete a copy that is no longer in use."""
    close_connections(served, forget=True)
    shutil.rmtree(folder, ignore_errors=True)


def _readable_copy(uri: str, database: Path) -> Path:
    try:
        return snapshot(database)
    except OSError as error:
        raise CpbError(
            f"the MLflow store {public_url(uri)} cannot be read ({error.strerror}); allow reading it, "
            "or set MLFLOW_TRACKING_URI to another store",
            code="database-unreadable",
        ) from error
