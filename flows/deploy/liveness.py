"""Which process a flow run belongs to, and the end of runs whose process is gone.

A killed process cannot say that its run has ended: on the server it would stay Running, and hold its slots, for
ever. So each run carries its process as a label. The next `up`, `status`, `run` or flow run looks at all runs that
have not ended. Only the host that a process ran on may call it dead; of other hosts' runs the heartbeats count.
Runs that are not cpb's are left alone: a Prefect database may serve several projects.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter
from prefect.client.schemas.objects import FlowRun
from prefect.events.filters import EventFilter
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Crashed, State

from flows.deploy.prepare import POOL, worker_process
from flows.deploy.project import prefect_home
from flows.deploy.services import PAGE, flow_runs
from tasks.storage.processes import ProcessId

LABEL = "cpb.process"
_WORKER_LABEL = "prefect.worker.name"
_OPEN = ["RUNNING", "PENDING", "CANCELLING"]
SILENT_AFTER = timedelta(minutes=15)
"""Without a sign of life for this long a run of another host counts as dead (Prefect's heartbeats: every 3 minutes)."""


@dataclass(frozen=True)
class EndedRun:
    """A flow run that was marked as ended because its process is gone."""

    name: str
    id: UUID
    state: str


def claim_run(flow: Flow[..., Any], flow_run: FlowRun, state: State) -> None:
    """Label a flow run with the calling process, and end runs that others left; a flow's `on_running` hook."""
    with get_client(sync_client=True) as client:
        client.update_flow_run_labels(flow_run.id, {LABEL: str(ProcessId.current())})
        end_dead_runs(client, prefect_home())


def end_dead_runs(
    client: SyncPrefectClient, home: Path, server_since: datetime | None = None
) -> list[EndedRun]:
    """Mark every run as Crashed (one that was being cancelled as Cancelled) whose process is gone; free its slots.

    Args:
        home: Prefect's folder on this host, which holds the server's leases if the server runs here.
        server_since: since when the server has been able to receive heartbeats; None if not known, and then nothing
            is concluded from their absence.
    """
    dead = [run for run in open_runs(client) if _is_ours(run) and _is_dead(client, run, server_since)]
    ended = [end_run(client, run, "its process is gone") for run in dead]
    clean_up(client, home)
    return ended


def open_runs(client: SyncPrefectClient) -> list[FlowRun]:
    """Return all flow runs that were started and have not ended."""
    some = FlowRunFilter.model_validate({"state": {"type": {"any_": _OPEN}}})
    return flow_runs(client, flow_run_filter=some)


def process_of(run: FlowRun) -> ProcessId | None:
    """Return the process that a run belongs to: its own, or the worker's that is about to start it."""
    return _labelled(run, LABEL) or _labelled(run, _WORKER_LABEL)


def _labelled(run: FlowRun, label: str) -> ProcessId | None:
    return worker_process(str((run.labels or {}).get(label, "")))


def runs_of_worker(client: SyncPrefectClient, worker: ProcessId | None) -> list[FlowRun]:
    """Return the open runs that a worker started, and those of dead workers, whose processes may live on alone.

    Runs of another living worker are left out: several project folders may share one Prefect database.
    """
    started = [(run, _labelled(run, _WORKER_LABEL)) for run in open_runs(client)]
    return [run for run, by in started if by and (by == worker or by.is_alive() is False)]


def end_run(client: SyncPrefectClient, run: FlowRun, why: str, cancel: bool = False) -> EndedRun:
    """Mark a run as Crashed or Cancelled."""
    cancel = cancel or bool(run.state and run.state.is_cancelling())
    process = process_of(run)
    where = f" (process {process.pid} on {process.host})" if process else ""
    state: State = (Cancelled if cancel else Crashed)(message=f"Ended by cpb: {why}{where}.")
    client.set_flow_run_state(run.id, state, force=True)
    return EndedRun(run.name, run.id, str(state.name))


def clean_up(client: SyncPrefectClient, home: Path) -> None:
    """End the task runs, and free the slots, of flow runs that were killed: neither ends by itself."""
    killed = FlowRunFilter.model_validate({"state": {"type": {"any_": ["CRASHED", "CANCELLED"]}}})
    still_open = TaskRunFilter.model_validate({"state": {"type": {"any_": [*_OPEN, "SCHEDULED"]}}})
    for task in client.read_task_runs(flow_run_filter=killed, task_run_filter=still_open, limit=PAGE):
        if task.flow_run_id and _is_ours(client.read_flow_run(task.flow_run_id)):
            crashed: State = Crashed(message="Ended by cpb: its flow run has ended.")
            client.set_task_run_state(task.id, crashed, force=True)
    _free_slots(client, home)


def _is_ours(run: FlowRun) -> bool:
    return run.work_pool_name == POOL or process_of(run) is not None


def _is_dead(client: SyncPrefectClient, run: FlowRun, server_since: datetime | None) -> bool:
    process = process_of(run)
    alive = process.is_alive() if process else None
    if alive is not None:
        return not alive
    now = datetime.now(UTC)
    silent_since = now - SILENT_AFTER
    if server_since is None or server_since > silent_since:
        return False
    changed = run.state.timestamp if run.state else run.created
    return bool(changed and changed < silent_since) and not _beats(client, run, silent_since)


def _beats(client: SyncPrefectClient, run: FlowRun, since: datetime) -> bool:
    """Whether a run has sent a heartbeat."""
    wanted = EventFilter.model_validate(
        {
            "event": {"name": ["prefect.flow-run.heartbeat"]},
            "resource": {"id": [f"prefect.flow-run.{run.id}"]},
            "occurred": {"since": since},
        }
    )
    return bool(client.read_events(wanted, limit=1).events)


def _free_slots(client: SyncPrefectClient, home: Path) -> None:
    """Free the slots of concurrency limits whose holder, a flow run, has ended.

    A killed process does not give its slot back, and neither does the worker that sees it die: it would stay taken
    until its lease runs out. Leases are read from the server's lease storage on disk, as its API names a lease to
    its holder alone.
    """
    for lease, holder in _held_by_runs(home / "concurrency_leases"):
        with suppress(ObjectNotFound):  # a run of another server
            run = client.read_flow_run(holder)
            if run.state and run.state.is_final() and _is_ours(run):
                client.release_concurrency_slots_with_lease(lease)


def _held_by_runs(folder: Path) -> list[tuple[UUID, UUID]]:
    """Return the id of each lease that a flow run holds, and the run's."""
    if not folder.is_dir():
        return []
    from prefect.server.concurrency.lease_storage.filesystem import ConcurrencyLeaseStorage

    storage = ConcurrencyLeaseStorage(folder)
    files = folder.glob(f"{'?' * 8}-*.json")
    read = (asyncio.run(storage.read_lease(UUID(file.stem))) for file in files)
    held = ((lease.id, lease.metadata.holder) for lease in read if lease and lease.metadata)
    return [(lease, holder.id) for lease, holder in held if holder and holder.type == "flow_run"]
