"""Runs of dead processes: marked KILLED by the next process that writes to the store, with the reason.

While a flow's run is open, a thread updates a heartbeat tag on it every ten minutes, for other machines that share the
store: a training may take hours between two steps.

A flow's or fleet's run records the process that opened it; a member belongs to its fleet's process. A process of this
host and boot is looked up; a process of an earlier boot is dead. Other hosts' processes are judged by heartbeat only.
"""

import logging
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from schemas.errors import CpbError
from tasks.storage.processes import ProcessId
from tasks.tracking.connection import Store, search
from tasks.tracking.tags import HEARTBEAT, PARENT, PROCESS, REASON

if TYPE_CHECKING:
    from mlflow.entities import Run

LEASE = timedelta(hours=1)
"""Time without a heartbeat after which a process of another host counts as dead."""
LEASE_UNKNOWN = timedelta(days=7)
"""The same for runs without a recorded process, such as runs created by a person: counted from their start."""

log = logging.getLogger("cpb")

INTERVAL_S = 600.0
"""Seconds between two heartbeats."""


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
    """Return why a run marked as running cannot be running, or "" if it may be."""
    owner = run.data.tags.get(PROCESS)
    parent = run.data.tags.get(PARENT)
    if owner:
        return _death_of(owner, run, running.get(parent or ""), now)
    if parent:  # a member is written by the process of its fleet
        return _death(running[parent], running, now) if parent in running else "its fleet's run has ended"
    return _expired(_started(run), LEASE_UNKNOWN, now, "nothing is known about its process")


def _death_of(owner: str, run: "Run", parent: "Run | None", now: datetime) -> str:
    try:
        process = ProcessId.parse(owner)
    except ValueError:
        return _expired(_started(run), LEASE_UNKNOWN, now, "nothing is known about its process")
    alive = process.is_alive()
    if alive is None:
        beats = [_heartbeat(one) for one in (run, parent) if one is not None]
        return _expired(max(beats), LEASE, now, f"no heartbeat from process {process.pid} on {process.host}")
    return "" if alive else f"its process {process.pid} on {process.host} died"


def _expired(last: datetime, lease: timedelta, now: datetime, what: str) -> str:
    return f"{what} since {last:%Y-%m-%d %H:%M} UTC" if now - last > lease else ""


def _heartbeat(run: "Run") -> datetime:
    try:
        return datetime.fromisoformat(run.data.tags[HEARTBEAT])
    except (KeyError, ValueError):
        return _started(run)


def _started(run: "Run") -> datetime:
    return datetime.fromtimestamp(run.info.start_time / 1000, UTC)


def heartbeat_tag(now: datetime | None = None) -> dict[str, str]:
    """Return the tag with the time at which a run's process was last known to be alive."""
    return {HEARTBEAT: (now or datetime.now(UTC)).isoformat(timespec="seconds")}


def start_heartbeat(store: Store, run_id: str, interval_s: float = INTERVAL_S) -> None:
    """Start a daemon thread that updates the heartbeat tag of a run until `stop_heartbeat`."""
    stop_heartbeat(run_id)
    stopped = _beating[run_id] = threading.Event()

    def beat() -> None:
        while not stopped.wait(interval_s):
            try:
                store.client.set_tag(run_id, HEARTBEAT, heartbeat_tag()[HEARTBEAT])
            except CpbError as error:  # the store is unavailable: the next beat tries again
                log.debug("no heartbeat for run %s: %s", run_id, error)

    threading.Thread(target=beat, name=f"cpb-heartbeat-{run_id}", daemon=True).start()


def stop_heartbeat(run_id: str) -> None:
    """Stop the heartbeat of a run, if it was started in this process."""
    if stopped := _beating.pop(run_id, None):
        stopped.set()


_beating: dict[str, threading.Event] = {}
"""The runs with a heartbeat in this process, each with its stop event."""
