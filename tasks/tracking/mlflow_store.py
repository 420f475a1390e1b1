"""Opens MLflow's store: created safely on first use, relocated and reconciled when opened.

Reconciling marks the runs of dead processes as KILLED, with the reason. A flow's or fleet's run records the process
that opened it; a member belongs to its fleet's process. A process of this host and boot is looked up; a process of an
earlier boot is dead. Processes of other hosts are judged by the time at which they opened the run.
"""

import logging
import os
import sqlite3
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.errors import CpbError
from schemas.scope import default_folder
from tasks.storage.processes import ProcessId
from tasks.storage.urls import local_path, public_url
from tasks.tracking.connection import Store, alone, connect, search, search_lazily
from tasks.tracking.database import (
    artifacts_beside,
    check,
    failure,
    is_writable,
    make_sqlite,
    read_only_uri,
    sqlite_path,
)
from tasks.tracking.mlflow_private import move_artifacts
from tasks.tracking.tags import OPENED, PARENT, PROCESS, REASON

if TYPE_CHECKING:
    from mlflow.entities import Run

_SQLITE_HEADER = b"SQLite format 3\0"

log = logging.getLogger("cpb")

_opened: dict[str, Store] = {}
_opened_for_writing: set[str] = set()
"""The opened stores by the URI that MLflow reads, and those of them that were opened for writing."""


def tracking_uri() -> str:
    """Return `MLFLOW_TRACKING_URI`, or the SQLite store `mlruns/mlflow.db` in `default_folder`.

    SQLite paths are made absolute: MLflow caches one engine per URI, and a relative path would still refer to the old
    file after a change of directory.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{default_folder() / 'mlruns/mlflow.db'}"
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
    if database and not database.exists():
        if not create:
            raise CpbError(
                f"no runs yet: {database} does not exist; train first, as in `cpb demo`", code="no-store"
            )
        make_sqlite(database)
    served = read_only_uri(database) if database and not is_writable(database) else uri
    if create and served != uri:
        raise CpbError(
            f"the MLflow store {public_url(uri)} cannot be written; allow writing there, "
            "or set MLFLOW_TRACKING_URI to another store",
            code="read-only-store",
        )
    if served != uri:  # SQLite is told that the file does not change: MLflow shall open it anew for each call
        os.environ["MLFLOW_SQLALCHEMYSTORE_POOLCLASS"] = "NullPool"
    if served not in _opened or (create and served not in _opened_for_writing):
        check(served, write=create)
    if served not in _opened:
        store = connect(uri, served)
        _relocate(store)
        _opened[served] = store
    if create and served not in _opened_for_writing:
        reconcile(_opened[served])
        _opened_for_writing.add(served)
    return _opened[served]


def _relocate(store: Store) -> None:
    """Make a moved or copied SQLite store use the artifacts beside its database, in one transaction.

    MLflow records absolute locations in the experiment, in every run and in every registered version. Used unchanged,
    a copy would read, write and prune the files of the original store. A location that a person chose, remote or
    without a database beside it, is left unchanged.

    Raises:
        CpbError: it is the copy of a database without its artifacts.
    """
    database = sqlite_path(store.uri)
    if database is None or _is_in_place(store, beside := artifacts_beside(database)):
        return
    with nullcontext() if store.read_only else alone(store):
        if _is_in_place(store, beside):  # done by the process that held the lock before
            return
        recorded = store.artifacts
        old = local_path(recorded)
        assert old is not None
        uris = (run.info.artifact_uri for run in search_lazily(store, deleted=True))
        runs = {Path(uri).parent.name for uri in uris if uri.startswith(f"{recorded}/")}
        own = beside.is_dir() and (not old.exists() or any((beside / run).exists() for run in runs))
        if not own and old.exists() and not _has_database(old.parent, database):
            return
        if not own and runs:
            raise CpbError(
                f"the MLflow store {database} was moved or copied without its artifacts, recorded in {old}: copy or "
                f"mount that folder as {beside}, or create an empty folder there to continue without them",
                code="copied-store", field=str(database),
            )  # fmt: skip
        if store.read_only:
            raise CpbError(
                f"the MLflow store {database} was moved or copied, and may only be read: open it once where it can be "
                "written, so that its artifacts are found",
                code="copied-store", field=str(database),
            )  # fmt: skip
        try:
            move_artifacts(database, {recorded: beside.as_uri(), str(old): str(beside)})
        except sqlite3.Error as error:
            raise failure(store.uri, error) from error
    log.warning(
        "the MLflow store %s was moved or copied: its artifacts are now those in %s, no longer those in %s",
        database, beside, old,
    )  # fmt: skip


def _is_in_place(store: Store, beside: Path) -> bool:
    """Whether artifacts are recorded in the folder beside the database, maybe mounted twice, or remote."""
    old = local_path(store.artifacts)
    if old is None or old.resolve() == beside.resolve():
        return True
    return old.exists() and beside.exists() and old.samefile(beside)


def _has_database(folder: Path, own: Path) -> bool:
    """Whether a SQLite file other than `own` lies in a folder: then the artifacts there belong to that store."""
    for path in folder.iterdir():
        if path.is_file() and not path.samefile(own):
            with path.open("rb") as file:
                if file.read(len(_SQLITE_HEADER)) == _SQLITE_HEADER:
                    return True
    return False


LEASE = timedelta(days=2)
"""Time after which the process of another host counts as dead: this host cannot look it up."""


def reconcile(store: Store, now: datetime | None = None) -> list[str]:
    """Mark the runs of dead processes as KILLED and return their ids. Costs one search if no run is open."""
    dead = dead_runs(store, now)
    for run_id, why in dead.items():
        # Read again: the process may have ended its run and exited since the search.
        run = store.client.get_run(run_id)
        if run.info.status != "RUNNING":
            continue
        store.client.set_tag(run_id, REASON, why)
        store.client.set_terminated(run_id, "KILLED")
        log.info("run %s was marked as killed: %s", run.info.run_name, why)
    return list(dead)


def dead_runs(store: Store, now: datetime | None = None) -> dict[str, str]:
    """Return the ids of runs marked as running whose process is dead, with the reason; writes nothing."""
    now = now or datetime.now(UTC)
    running = {run.info.run_id: run for run in search(store, "attributes.status = 'RUNNING'")}
    return {run_id: why for run_id, run in running.items() if (why := _death(run, running, now))}


def _death(run: "Run", running: dict[str, "Run"], now: datetime) -> str:
    """Return why a run marked as running cannot be running, or "" if it may be, as a run opened by a person."""
    tags = run.data.tags
    parent = running.get(tags.get(PARENT, ""))
    if PROCESS not in tags:  # a member is written by the process of its fleet
        gone = "its fleet's run has ended" if PARENT in tags else ""
        return _death(parent, running, now) if parent else gone
    process = ProcessId.parse(tags[PROCESS])
    who, alive = f"process {process.pid} on {process.host}", process.is_alive()
    if alive is None:
        begun = max(_opened_at(known) for known in (run, parent) if known is not None)
        return f"nothing is known about {who} since {begun:%Y-%m-%d %H:%M} UTC" if now - begun > LEASE else ""
    return "" if alive else f"its {who} died"


def _opened_at(run: "Run") -> datetime:
    opened = run.data.tags.get(OPENED)
    return (
        datetime.fromisoformat(opened) if opened else datetime.fromtimestamp(run.info.start_time / 1000, UTC)
    )
