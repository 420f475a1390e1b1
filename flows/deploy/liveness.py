"""What a deployment keeps in order on the server: pool, deployments, missed runs, and runs whose process has died.

A killed process cannot report the end of its run: on the server the run would stay Running, and hold its slots,
forever. So each run has its process as a label, and the next `up`, `status`, `run` or flow run checks all open runs.
Only the host of a process can tell that it is dead; for runs on other hosts the heartbeats decide. Runs that are not
cpb's are ignored: a Prefect database may serve several projects.
"""

import logging
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote
from uuid import UUID

from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter, WorkPoolFilter
from prefect.client.schemas.objects import FlowRun
from prefect.events.filters import EventFilter
from prefect.states import Cancelled, Crashed, State

from flows.deploy.services import (
    PAGE,
    POOL,
    ROOT,
    Service,
    deployments_file,
    environment,
    flow_runs,
    log_file,
)
from flows.prefect_server import password_file
from schemas.errors import CpbError
from tasks.storage.processes import ProcessId

log = logging.getLogger("cpb")

_DEPLOY_S = 120.0


def make_pool(client: SyncPrefectClient) -> None:
    """Create the work pool."""
    from prefect.workers.process import ProcessWorker  # slow to import

    template = ProcessWorker.get_default_base_job_template()
    client.create_work_pool(
        WorkPoolCreate(name=POOL, type="process", base_job_template=template), overwrite=True
    )


def forget_dead_workers(client: SyncPrefectClient) -> None:
    """Remove dead workers of this host from the pool's list, to which each start adds a worker."""
    for worker in client.read_workers_for_work_pool(POOL):
        if (process := worker_process(worker.name)) and process.is_alive() is False:
            client.request(
                "DELETE", "/work_pools/{work_pool_name}/workers/{name}",
                path_params={"work_pool_name": POOL, "name": quote(worker.name)},
            )  # fmt: skip


def polls(client: SyncPrefectClient, worker: Service) -> bool:
    """Whether the server hears from a worker."""
    listed = {entry.name: entry.status for entry in client.read_workers_for_work_pool(POOL)}
    return str(listed.get(str(worker.process), "")).endswith("ONLINE")


def worker_process(name: str) -> ProcessId | None:
    """Return the process that a worker's name contains; None for a worker not started by cpb."""
    try:
        return ProcessId.parse(name)
    except ValueError:
        return None


def deploy(server: Service) -> None:
    """Run `prefect deploy --all` and check its exit code, not its output.

    Prefect has no public function that reads prefect.yaml.

    Raises:
        CpbError: the command fails, or does not end within `_DEPLOY_S`.
    """
    secret = {"PREFECT_API_AUTH_STRING": password_file(server.home).read()}
    log = log_file("deploy")
    try:
        with log.open("wb") as output:
            command = ["prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(deployments_file())]
            subprocess.run(
                [sys.executable, "-m", *command],
                cwd=ROOT, env=environment(server.port, server.home) | secret, timeout=_DEPLOY_S, check=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
    except subprocess.SubprocessError as error:
        code = getattr(error, "returncode", None)
        how = f"did not end within {_DEPLOY_S:.0f} s" if code is None else f"ended with code {code}"
        raise CpbError(f"`prefect deploy --all` {how}; see {log}", code="deploy-failed") from None


def drop_missed_runs(client: SyncPrefectClient) -> int:
    """Delete runs scheduled while no worker was running: a worker would execute all of them in sequence."""
    due = FlowRunFilter.model_validate(
        {"state": {"type": {"any_": ["SCHEDULED"]}}, "expected_start_time": {"before_": datetime.now(UTC)}}
    )
    pool = WorkPoolFilter.model_validate({"name": {"any_": [POOL]}})
    missed = [
        run for run in flow_runs(client, flow_run_filter=due, work_pool_filter=pool) if run.auto_scheduled
    ]
    for run in missed:
        client.delete_flow_run(run.id)
    if missed:
        log.warning("%d scheduled runs were missed while nothing was running; they are dropped", len(missed))
    return len(missed)


LABEL = "cpb.process"
_WORKER_LABEL = "prefect.worker.name"
_OPEN = ["RUNNING", "PENDING", "CANCELLING"]
SILENT_AFTER = timedelta(minutes=15)
"""A run on another host without a heartbeat for this long counts as dead (Prefect's heartbeats: every 3 minutes)."""


@dataclass(frozen=True)
class EndedRun:
    """A flow run that was marked as ended because its process has died."""

    name: str
    id: UUID
    state: str


def claim_run(flow: Flow[..., Any], flow_run: FlowRun, state: State) -> None:
    """Label a flow run with the calling process, and end runs of dead processes; a flow's `on_running` hook."""
    with get_client(sync_client=True) as client:
        client.update_flow_run_labels(flow_run.id, {LABEL: str(ProcessId.current())})
        end_dead_runs(client)


def end_dead_runs(client: SyncPrefectClient, server_since: datetime | None = None) -> list[EndedRun]:
    """Mark every run whose process has died as Crashed, or as Cancelled if it was being cancelled.

    Args:
        server_since: time from which the server could receive heartbeats; None if unknown: then missing heartbeats
            are ignored.
    """
    dead = [run for run in open_runs(client) if _is_ours(run) and _is_dead(client, run, server_since)]
    ended = [end_run(client, run, "its process is gone") for run in dead]
    clean_up(client)
    return ended


def open_runs(client: SyncPrefectClient) -> list[FlowRun]:
    """Return all flow runs that have started and not ended."""
    some = FlowRunFilter.model_validate({"state": {"type": {"any_": _OPEN}}})
    return flow_runs(client, flow_run_filter=some)


def process_of(run: FlowRun) -> ProcessId | None:
    """Return the process of a run: its own, or that of the worker about to start it."""
    return _labelled(run, LABEL) or _labelled(run, _WORKER_LABEL)


def _labelled(run: FlowRun, label: str) -> ProcessId | None:
    return worker_process(str((run.labels or {}).get(label, "")))


def runs_of_worker(client: SyncPrefectClient, worker: ProcessId | None) -> list[FlowRun]:
    """Return the open runs of a worker and of dead workers, whose flow run processes may still be alive.

    Runs of other live workers are left out: several project folders may share a Prefect database.
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


def clean_up(client: SyncPrefectClient) -> None:
    """End the task runs of killed flow runs: Prefect does so for cancelled flow runs only, and not immediately."""
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
    """Whether a run has sent a heartbeat since a time."""
    wanted = EventFilter.model_validate(
        {
            "event": {"name": ["prefect.flow-run.heartbeat"]},
            "resource": {"id": [f"prefect.flow-run.{run.id}"]},
            "occurred": {"since": since},
        }
    )
    return bool(client.read_events(wanted, limit=1).events)
