"""Runs marked as running whose process is dead.

A flow's or fleet's run records the process that opened it; a member belongs to its fleet's process. A process of this
host and boot is looked up; a process of an earlier boot is dead. Only its own host can look a process up: a run of
another host counts as dead when neither it nor a run below it has begun or ended for `MAX_SILENT_DAYS`.
"""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from schemas.errors import log
from tasks.storage.process_ids import ProcessId
from tasks.tracking.calls import search
from tasks.tracking.experiment import Store
from tasks.tracking.tags import (
    OPENED_AT,
    PARENT,
    PROCESS,
    REASON,
)

if TYPE_CHECKING:
    from mlflow.entities import Run
MAX_SILENT_DAYS = 7
"""Days without a sign of life after which a running run of another host counts as dead: containers get a new host name
each time, and a host may never come back. A run that lives nevertheless is ended by its process as usual."""


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
    return {run_id: why for run_id, run in running.items() if (why := _death(store, run, running))}


def _death(store: Store, run: "Run", running: dict[str, "Run"]) -> str:
    """Return why a run marked as running cannot be running, or "" if it may be, as a run opened by a person."""
    tags = run.data.tags
    if PROCESS not in tags:  # a member is written by the process of its fleet
        parent = running.get(tags.get(PARENT, ""))
        gone = "its fleet's run has ended" if PARENT in tags else ""
        return _death(store, parent, running) if parent else gone
    process = ProcessId.parse(tags[PROCESS])
    # None: another host's, of which this one knows nothing but what it wrote.
    if (is_alive := process.is_alive()) is None and _is_silent(store, run):
        return f"its process {process.pid} on {process.host} has given no sign of life for {MAX_SILENT_DAYS} days"
    return f"its process {process.pid} on {process.host} died" if is_alive is False else ""


def _is_silent(store: Store, run: "Run") -> bool:
    """Whether neither a run nor one below it has begun or ended in the last `MAX_SILENT_DAYS`."""
    signs = [datetime.fromtimestamp((ms or 0) / 1000, UTC) for ms in (run.info.start_time, run.info.end_time)]
    # A continued run keeps its first start; when it was opened last is in its tag.
    with suppress(KeyError, ValueError):
        signs.append(datetime.fromisoformat(run.data.tags[OPENED_AT]))
    if datetime.now(UTC) - max(signs) < timedelta(days=MAX_SILENT_DAYS):
        return False
    # A long fleet writes its members while its flow's own run says nothing for days.
    return all(_is_silent(store, below) for below in search(store, f"tags.`{PARENT}` = '{run.info.run_id}'"))
