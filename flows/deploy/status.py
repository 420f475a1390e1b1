"""`status`: what runs, how each deployment's last run ended, how fresh the data is, and what is wrong."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from flows.deploy import services, stored
from flows.deploy.api import PAGE, answers_without_password, client_of
from flows.deploy.liveness import EndedRun, end_dead_runs
from flows.deploy.prepare import POOL
from flows.deploy.project import data_home
from flows.deploy.services import Name, Service
from schemas.errors import CpbError

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun

LATE_AFTER = timedelta(minutes=15)
"""A scheduled run that no worker has taken for so long is missing; a worker looks every 10 seconds."""

_ENDED = ["COMPLETED", "FAILED", "CRASHED", "CANCELLED"]
_ACTIVE = ["RUNNING", "PENDING", "CANCELLING"]


@dataclass(frozen=True)
class LastRun:
    """The newest run of a deployment that has ended."""

    id: str
    name: str
    outcome: str
    message: str
    ended: datetime
    age_s: float


@dataclass(frozen=True)
class Deployment:
    """One deployment. `last` and `next` are None where there is none yet."""

    name: str
    last: LastRun | None
    active: int
    next: datetime | None


@dataclass
class Status:
    """Everything that `cpb deploy status` shows. `problems`: one sentence each; empty where nothing is wrong."""

    up: bool
    services: dict[Name, Service | None]
    deployments: list[Deployment] = field(default_factory=list)
    data: list[stored.Newest] = field(default_factory=list)
    disk: stored.Disk | None = None
    ended: list[EndedRun] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def status() -> Status:
    """Look at everything once; runs whose process is gone are ended first."""
    found: dict[Name, Service | None] = {name: services.find(name) for name in services.NAMES}
    server, worker = found["server"], found["worker"]
    result = Status(all(s and s.alive for s in found.values()), found)
    result.problems += [_dead(s) for s in found.values() if s and not s.alive]
    if server and not worker:
        result.problems.append("no worker was started; run `cpb deploy up`")
    if server and server.alive:
        try:
            _ask(server, worker, result)
        except CpbError as error:
            result.problems.append(str(error))
    home = worker.data_home if worker else data_home()
    result.data, damaged = stored.newest(home)
    result.problems += damaged
    result.disk = stored.disk(home)
    if result.disk.free < stored.MIN_FREE_BYTES:
        result.problems.append(f"only {result.disk.free / 1e6:.0f} MB are free where {home} lies; free some")
    return result


def _ask(server: Service, worker: Service | None, result: Status) -> None:
    if answers_without_password(server):
        result.problems.append("the server asks for no password; `cpb deploy up` starts one that does")
        return
    with client_of(server) as client:
        result.ended = end_dead_runs(client, server.home, server.since)
        if worker and worker.alive and not _polls(client, worker):
            result.problems.append(f"the worker does not reach the server; see {services.log_file('worker')}")
        for deployment in _deployments(client):
            result.deployments.append(deployment)
        result.problems += [*_bad_endings(result.deployments), *_late_runs(client)]


def _dead(service: Service) -> str:
    log = services.log_file(service.name)
    return f"the {service.name} does not run any more; `cpb deploy up` starts it again (log: {log})"


def _polls(client: "SyncPrefectClient", worker: Service) -> bool:
    listed = {one.name: one.status for one in client.read_workers_for_work_pool(POOL)}
    return str(listed.get(str(worker.process), "")).endswith("ONLINE")


def _deployments(client: "SyncPrefectClient") -> Iterator[Deployment]:
    flows = {flow.id: flow.name for flow in client.read_flows(limit=PAGE)}
    for deployment in client.read_deployments(limit=PAGE):
        if deployment.work_pool_name != POOL:
            continue
        ended = _runs(client, deployment.id, _ENDED, "END_TIME_DESC", 1)
        due = _runs(client, deployment.id, ["SCHEDULED"], "EXPECTED_START_TIME_ASC", 1)
        active = len(_runs(client, deployment.id, _ACTIVE, "ID_DESC", PAGE))
        name = f"{flows.get(deployment.flow_id, '?')}/{deployment.name}"
        yield Deployment(name, _last(ended), active, due[0].expected_start_time if due else None)


def _runs(
    client: "SyncPrefectClient", deployment: object, states: list[str], sort: str, limit: int
) -> list["FlowRun"]:
    from prefect.client.schemas.filters import FlowRunFilter
    from prefect.client.schemas.sorting import FlowRunSort

    some = FlowRunFilter.model_validate(
        {"deployment_id": {"any_": [deployment]}, "state": {"type": {"any_": states}}}
    )
    return client.read_flow_runs(flow_run_filter=some, sort=FlowRunSort[sort], limit=limit)


def _last(runs: list["FlowRun"]) -> LastRun | None:
    if not runs or not runs[0].state:
        return None
    run, state = runs[0], runs[0].state
    ended = run.end_time or state.timestamp
    age = (datetime.now(UTC) - ended).total_seconds()
    return LastRun(str(run.id), run.name, str(state.name), str(state.message or ""), ended, round(age, 1))


def _bad_endings(deployments: list[Deployment]) -> Iterator[str]:
    for deployment in deployments:
        last = deployment.last
        if last and last.outcome not in ("Completed", "Cancelled"):
            why = f": {last.message.splitlines()[0][:200]}" if last.message else ""
            when = f"{last.ended:%Y-%m-%d %H:%M} UTC"
            yield f"the last run of {deployment.name} ({last.name}) ended {last.outcome} at {when}{why}"


def _late_runs(client: "SyncPrefectClient") -> Iterator[str]:
    from prefect.client.schemas.filters import FlowRunFilter

    before = datetime.now(UTC) - LATE_AFTER
    late = FlowRunFilter.model_validate(
        {"state": {"name": {"any_": ["Late"]}}, "expected_start_time": {"before_": before}}
    )
    for run in client.read_flow_runs(flow_run_filter=late, limit=5):
        if run.work_pool_name == POOL:
            yield f"run {run.name} was due at {run.expected_start_time:%Y-%m-%d %H:%M} UTC and has not started"
