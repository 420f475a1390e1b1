"""Opens MLflow's store: created safely on first use, reconciled when opened for writing.

Reconciling marks the runs of dead processes as KILLED, with the reason. A flow's or fleet's run records the process
that opened it; a member belongs to its fleet's process. A process of this host and boot is looked up; a process of an
earlier boot is dead. Runs of other hosts stay open: only these can look their processes up.
"""

import logging
import os
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from schemas.errors import CpbError
from tasks.storage.processes import ProcessId
from tasks.storage.urls import public_url
from tasks.tracking.connection import Store, connect, search
from tasks.tracking.database import check, is_server, make_sqlite, sqlite_path, store_errors, tracking_uri
from tasks.tracking.tags import PARENT, PROCESS, REASON

if TYPE_CHECKING:
    from mlflow.entities import Run

log = logging.getLogger("cpb")

_opened: dict[str, Store] = {}
_reconciled: set[str] = set()
"""The opened stores by their URI, and those of them that were opened for writing."""


def open_store(uri: str | None = None, *, create: bool = True) -> Store:
    """Open the store and the experiment `cpb`, creating both if missing; cached per process.

    Args:
        uri: the store's URI; default `tracking_uri()`.
        create: False does not create a missing store, and reconciles no runs.

    Raises:
        CpbError: the store is missing (with `create=False`), cannot be used, is of another version of cpb, or was moved
            away from its artifacts.
    """
    uri = uri or tracking_uri()
    database = sqlite_path(uri)
    if database and not database.exists():
        if not create:
            raise CpbError(
                f"no runs yet: {database} does not exist; train first, as in `cpb demo`", code="no-store"
            )
        make_sqlite(database)
    if uri not in _opened:
        check(uri)
        with store_errors(uri):
            _opened[uri] = connect(_with_user_in_environment(uri))
    if create and uri not in _reconciled:
        with store_errors(uri):
            reconcile(_opened[uri])
        _reconciled.add(uri)
    return _opened[uri]


def _with_user_in_environment(uri: str) -> str:
    """Return a server's URI without user and password, which MLflow's messages would repeat; MLflow reads both from
    the environment.
    """
    parts = urlsplit(uri)
    if not is_server(uri) or not parts.username:
        return uri
    os.environ["MLFLOW_TRACKING_USERNAME"] = unquote(parts.username)
    os.environ["MLFLOW_TRACKING_PASSWORD"] = unquote(parts.password or "")
    return public_url(uri)


def reconcile(store: Store) -> list[str]:
    """Mark the runs of dead processes as KILLED and return their ids. Costs one search if no run is open."""
    dead = dead_runs(store)
    for run_id, why in dead.items():
        # Read again: the process may have ended its run and exited since the search.
        run = store.client.get_run(run_id)
        if run.info.status != "RUNNING":
            continue
        store.client.set_tag(run_id, REASON, why)
        store.client.set_terminated(run_id, "KILLED")
        log.info("run %s was marked as killed: %s", run.info.run_name, why)
    return list(dead)


def dead_runs(store: Store) -> dict[str, str]:
    """Return the ids of runs marked as running whose process is dead, with the reason; writes nothing."""
    running = {run.info.run_id: run for run in search(store, "attributes.status = 'RUNNING'")}
    return {run_id: why for run_id, run in running.items() if (why := _death(run, running))}


def _death(run: "Run", running: dict[str, "Run"]) -> str:
    """Return why a run marked as running cannot be running, or "" if it may be, as a run opened by a person."""
    tags = run.data.tags
    if PROCESS not in tags:  # a member is written by the process of its fleet
        parent = running.get(tags.get(PARENT, ""))
        gone = "its fleet's run has ended" if PARENT in tags else ""
        return _death(parent, running) if parent else gone
    process = ProcessId.parse(tags[PROCESS])
    return f"its process {process.pid} on {process.host} died" if process.is_alive() is False else ""
