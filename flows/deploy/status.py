"""`status`: running processes, the last run of each deployment, free space, and problems, such as stale data."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.sorting import FlowRunSort

from flows.deploy.services import (
    PAGE,
    POOL,
    ROOT,
    client_of,
    data_home,
    find,
    is_unscheduled,
    last_port,
    log_file,
)
from flows.prefect import NOT_YET
from schemas.errors import CpbError
from schemas.identity import stored_series
from tasks.forecasting.staleness import BETWEEN_RUNS, find_stale, stale_sentence
from tasks.forecasting.watch import alarms

MIN_FREE_BYTES = 1_000_000_000

_TAG = "folder:"
"""Before the folder in a tag of each deployment in prefect.yaml, which its runs take from it."""


@dataclass(frozen=True)
class Deployment:
    """A deployment: its newest ended run and the start of its next; None if there is no such run yet.

    `running`, `queued`: the names of its runs that are at work, and of those that are due and wait for another run to
    end, or for a worker. `paused`: it, its schedules, its queue or the pool is paused, so none begins by
    itself. `made_in`, `ended_in`: the other folder, of those that share Prefect's database, that has made it, or whose
    run the ended one was; None if it is this one.
    """

    name: str
    outcome: str | None
    message: str
    ended: datetime | None
    next: datetime | None
    running: list[str]
    queued: list[str]
    paused: bool
    made_in: str | None = None
    ended_in: str | None = None


@dataclass
class Status:
    """Content of `cpb deploy status`. `pids`: of the running processes. `problems`: a sentence each."""

    port: int | None
    pids: dict[str, int]
    free_bytes: int
    deployments: list[Deployment] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def read_status() -> Status:
    """Collect the status."""
    server, worker = find("server"), find("worker")
    home = data_home()
    if worker:  # `up` may have been called with another CPB_HOME
        home = Path(worker.environ()["CPB_HOME"])
    pids = {name: process.pid for name, process in (("server", server), ("worker", worker)) if process}
    place = next(folder for folder in (home, *home.parents) if folder.exists())
    free = shutil.disk_usage(place).free
    result = Status(last_port(), pids, free)
    if result.port:
        for name in sorted({"server", "worker"} - pids.keys()):
            sentence = f"the {name} does not run; `cpb deploy up` starts it (log: {log_file(name)})"
            result.problems.append(sentence)
        if server:
            try:
                with client_of(result.port) as client:
                    result.deployments += _deployments(client)
            except CpbError as error:
                result.problems.append(str(error))
        # Only of a deployment that should be up: after `down` everything grows old as intended.
        stale = find_stale(home, stored_series(home, "forecasts"), grace=BETWEEN_RUNS)
        for market in sorted({old.series.market for old in stale}):  # usually all of one for the same reason
            of_market = [old for old in stale if old.series.market == market]
            result.problems.append(stale_sentence(home, of_market))
    for deployment in result.deployments:
        if deployment.made_in:
            result.problems.append(
                f"{deployment.name} is a deployment of {deployment.made_in}, which has the same Prefect database; "
                "`cpb deploy down`, then `cpb deploy up`, takes it over"
            )
        elif not deployment.ended_in and deployment.outcome not in (None, "Completed", "Cancelled", NOT_YET):
            why = (
                f": {deployment.message[:200]}"
                if deployment.message
                else f". See its log: {log_file('worker')}"
            )
            result.problems.append(
                f"the last run of {deployment.name} ended {deployment.outcome} at {deployment.ended:%Y-%m-%d %H:%M} "
                f"UTC{why}"
            )
    for market in sorted({series.market for series in stored_series(home, "forecasts")}):
        result.problems += [str(alarm) for alarm in alarms(home, market) if alarm.state == "drifted"]
    if free < MIN_FREE_BYTES:
        result.problems.append(f"only {free / 1e6:.0f} MB are free on the disk of {home}; free some")
    return result


def _deployments(client: SyncPrefectClient) -> Iterator[Deployment]:
    def runs(states: list[str], sort: FlowRunSort, limit: int = PAGE) -> list[FlowRun]:
        some = {"deployment_id": {"any_": [deployment.id]}, "state": {"type": {"any_": states}}}
        only = FlowRunFilter.model_validate(some)
        return client.read_flow_runs(flow_run_filter=only, sort=sort, limit=limit)

    flows, now = {flow.id: flow.name for flow in client.read_flows(limit=PAGE)}, datetime.now(UTC)
    for deployment in client.read_deployments(limit=PAGE):
        if deployment.work_pool_name == POOL:
            ended = runs(["COMPLETED", "FAILED", "CRASHED", "CANCELLED"], FlowRunSort.END_TIME_DESC, 1)
            state = ended[0].state if ended else None
            # Due but not begun: they wait for the queue, or for a worker that does not run.
            scheduled = runs(["SCHEDULED"], FlowRunSort.EXPECTED_START_TIME_ASC)
            due = [run for run in scheduled if (run.expected_start_time or now) <= now]
            later = [run for run in scheduled if run not in due]
            yield Deployment(
                f"{flows[deployment.flow_id]}/{deployment.name}",
                state.name if state else None,
                (state.message if state else None) or "",
                state.timestamp if state else None,
                later[0].expected_start_time if later else None,
                [run.name for run in runs(["RUNNING", "PENDING", "CANCELLING"], FlowRunSort.START_TIME_ASC)],
                [run.name for run in due],
                _is_paused(client, deployment),
                _elsewhere(deployment.tags),
                _elsewhere(ended[0].tags) if ended else None,
            )


def _elsewhere(tags: Sequence[str]) -> str | None:
    folders = (tag.removeprefix(_TAG) for tag in tags if tag.startswith(_TAG))
    return next((folder for folder in folders if Path(folder).resolve() != ROOT), None)


def _is_paused(client: SyncPrefectClient, deployment: DeploymentResponse) -> bool:
    if deployment.paused or is_unscheduled(deployment) or client.read_work_pool(POOL).is_paused:
        return True
    return bool(deployment.work_queue_id and client.read_work_queue(deployment.work_queue_id).is_paused)
