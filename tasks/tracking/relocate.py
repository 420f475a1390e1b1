"""Corrects the artifact location of a SQLite store that was moved or copied.

MLflow records absolute locations in the experiment, in every run and in every registered version. Used unchanged, a
copy would read, write and prune the files of the original store. cpb places artifacts in the folder `artifacts` beside
the database; if the record differs, the files on the disk show why.
"""

import logging
import sqlite3
from pathlib import Path

from schemas.errors import CpbError
from tasks.tracking.connection import Store, alone, search_lazily
from tasks.tracking.database import artifacts_beside, failure, sqlite_path
from tasks.tracking.mlflow_private import is_mlflow_database, local_path, move_artifacts

_SQLITE_HEADER = b"SQLite format 3\0"

log = logging.getLogger("cpb")


def relocate(store: Store) -> bool:
    """Make a moved or copied SQLite store use the artifacts beside its database; return whether it was changed.

    Done in one transaction. A custom location, remote or without a database beside it, is left unchanged.

    Raises:
        CpbError: it is the copy of a database without its artifacts.
    """
    if _old_place(store) is None:
        return False
    with alone(store):
        old = _old_place(store)
        if old is None:  # done by the process that held the lock before
            return False
        return _relocate(store, *old)


def _old_place(store: Store) -> tuple[str, Path, Path] | None:
    """Return the recorded location as URI and as path, and the folder beside the database, if they differ."""
    database = sqlite_path(store.uri)
    if database is None:
        return None
    recorded, beside = store.artifacts, artifacts_beside(database)
    old = local_path(recorded)
    if old is None or old.resolve() == beside.resolve():
        return None
    if old.exists() and beside.exists() and old.samefile(beside):  # mounted twice
        return None
    return recorded, old, beside


def _relocate(store: Store, recorded: str, old: Path, beside: Path) -> bool:
    database, served = sqlite_path(store.uri), sqlite_path(store.served)
    if database is None or served is None:
        raise TypeError(f"{store.uri} is no SQLite store")
    try:
        runs = _runs_below(store, recorded)
        left, here = runs & _names(old), runs & _names(beside)
        other = _database_beside(old, database)
        is_moved = beside.is_dir() and bool(here or not left)
        if not is_moved and other is None:
            if old.exists() or store.read_only:
                return False
            if runs:  # MLflow would create that folder again
                raise CpbError(
                    f"the artifacts of the MLflow store {database} lay in {old}, which does not exist: copy or mount "
                    f"that folder; if they are lost, make an empty folder {beside} to go on without them",
                    code="copied-store", field=str(database),
                )  # fmt: skip
        if not is_moved and left:
            raise CpbError(
                f"the MLflow store {database} is a copy of a database without its artifacts, which lie beside {other}; "
                f"copy the folder {old} to {beside}, or set MLFLOW_TRACKING_URI to sqlite:///{other}",
                code="copied-store", field=str(database),
            )  # fmt: skip
        move_artifacts(served, {recorded: beside.as_uri(), str(old): str(beside)})
    except sqlite3.Error as error:
        raise failure(store.uri, error) from error
    if not store.read_only:
        only_there = len(left - here)
        rest = f"; the files of {only_there} of its runs lie in {old} alone: copy them" if only_there else ""
        log.warning(
            "the MLflow store %s was moved or copied: its artifacts are now those in %s, no longer those in %s%s",
            database, beside, old, rest,
        )  # fmt: skip
    return True


def _runs_below(store: Store, place: str) -> set[str]:
    """Return the ids of the runs whose artifacts are recorded below a location (a URI)."""
    found = search_lazily(store, deleted=True)
    return {run.info.run_id for run in found if run.info.artifact_uri.startswith(f"{place}/")}


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def _database_beside(artifacts: Path, own: Path) -> Path | None:
    """Return an MLflow database, other than `own`, in the parent folder of the artifacts."""
    folder = artifacts.parent
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_file() and not path.samefile(own) and _is_sqlite(path) and is_mlflow_database(path):
            return path
    return None


def _is_sqlite(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_SQLITE_HEADER)) == _SQLITE_HEADER
