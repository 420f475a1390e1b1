"""Which process a flow run belongs to, and the end of runs whose process is gone.

A killed process cannot say that its run has ended: on the server it would stay Running, and hold its slots, for
ever. So each run carries its process as a label. The next `up`, `status`, `run` or flow run looks at all runs that
have not ended. Only the host that a process ran on may call it dead; of other hosts' runs the heartbeats count.
Runs that are not cpb's are left alone: a Prefect database may serve several projects.
"""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
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
from flows.deploy.services import PAGE
from tasks.storage.processes import ProcessId

if TYPE_CHECKING:
    from prefect.server.concurrency.lease_storage import ConcurrencyLimitLeaseMetadata
    from prefect.server.utilities.leasing import ResourceLease

    Lease = ResourceLease[ConcurrencyLimitLeaseMetadata]

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
    found: list[FlowRun] = []
    while page := client.read_flow_runs(flow_run_filter=some, limit=PAGE, offset=len(found)):
        found += page
        if len(page) < PAGE:
            break
    return found


def process_of(run: FlowRun) -> ProcessId | None:
    """Return the process that a run belongs to: its own, or the worker's that is about to start it."""
    labels = run.labels or {}
    for text in (labels.get(LABEL), labels.get(_WORKER_LABEL)):
        if text and (process := worker_process(str(text))):
            return process
    return None


def runs_of_worker(client: SyncPrefectClient, worker: ProcessId | None) -> list[FlowRun]:
    """Return the open runs that a worker started, and those of dead workers, whose processes may live on alone.

    Runs of another living worker are left out: several project folders may share one Prefect database.
    """
    found = []
    for run in open_runs(client):
        starter = worker_process(str((run.labels or {}).get(_WORKER_LABEL, "")))
        if starter and (starter == worker or starter.is_alive() is False):
            found.append(run)
    return found


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
    end_task_runs(client)
    free_slots(client, home)


def end_task_runs(client: SyncPrefectClient) -> None:
    """Mark task runs that are open, although their flow run has crashed or was cancelled."""

    killed = FlowRunFilter.model_validate({"state": {"type": {"any_": ["CRASHED", "CANCELLED"]}}})
    still_open = TaskRunFilter.model_validate({"state": {"type": {"any_": [*_OPEN, "SCHEDULED"]}}})
    for task in client.read_task_runs(flow_run_filter=killed, task_run_filter=still_open, limit=PAGE):
        if task.flow_run_id and _is_ours(client.read_flow_run(task.flow_run_id)):
            crashed: State = Crashed(message="Ended by cpb: its flow run has ended.")
            client.set_task_run_state(task.id, crashed, force=True)


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


def free_slots(client: SyncPrefectClient, home: Path) -> int:
    """Free the slots of concurrency limits whose holder, a flow run, has ended; return how many.

    A killed process does not give its slot back, and neither does the worker that sees it die: it would stay taken
    until its lease runs out. Leases are read from the server's lease storage on disk, as its API names a lease to
    its holder alone.
    """
    ended = [lease for lease in _leases(home) if _has_ended(client, lease)]
    for lease in ended:
        client.release_concurrency_slots_with_lease(lease.id)
    return len(ended)


def _leases(home: Path) -> list["Lease"]:
    folder = home / "concurrency_leases"
    if not folder.is_dir():
        return []
    from prefect.server.concurrency.lease_storage.filesystem import ConcurrencyLeaseStorage

    async def read() -> list["Lease"]:
        storage = ConcurrencyLeaseStorage(folder)
        found = [await storage.read_lease(UUID(file.stem)) for file in folder.glob(f"{'?' * 8}-*.json")]
        return [lease for lease in found if lease]

    return asyncio.run(read())


def _has_ended(client: SyncPrefectClient, lease: "Lease") -> bool:

    holder = lease.metadata.holder if lease.metadata else None
    if holder is None or holder.type != "flow_run":
        return False
    try:
        run = client.read_flow_run(holder.id)
    except ObjectNotFound:  # of another server
        return False
    return bool(run.state and run.state.is_final()) and _is_ours(run)
