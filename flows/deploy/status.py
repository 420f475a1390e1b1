"""`status`: what runs, how each deployment's last run ended, how fresh the data is, and what is wrong."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from flows.deploy import services, stored
from flows.deploy.api import PAGE, answers_without_password, client_of
from flows.deploy.liveness import EndedRun, end_dead_runs
from flows.deploy.prepare import POOL
from flows.deploy.project import data_home
from flows.deploy.services import Name, Service
from flows.summary import NOT_YET
from schemas.errors import CpbError
from schemas.identity import stored_series
from tasks.forecasting.watch import alarms
from tasks.notices import findings
from tasks.notices.event import Event, Kind

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun

LATE_AFTER = timedelta(minutes=15)
"""A scheduled run that no worker has taken for so long is missing; a worker looks every 10 seconds."""

BETWEEN_RUNS = timedelta(hours=2)
"""How much older than after a run the data may be: an hourly run comes within the hour, and takes its time."""

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
    """Everything that `cpb deploy status` shows. `home`: the store; `problems`: what is wrong."""

    up: bool
    home: Path
    services: dict[Name, Service | None]
    deployments: list[Deployment] = field(default_factory=list)
    data: list[stored.Newest] = field(default_factory=list)
    disk: stored.Disk | None = None
    ended: list[EndedRun] = field(default_factory=list)
    problems: list[Event] = field(default_factory=list)


def status() -> Status:
    """Look at everything once; runs whose process is gone are ended first."""
    found: dict[Name, Service | None] = {name: services.find(name) for name in services.NAMES}
    server, worker = found["server"], found["worker"]
    home = worker.data_home if worker else data_home()
    result = Status(all(s and s.alive for s in found.values()), home, found)
    result.problems += [_dead(s) for s in found.values() if s and not s.alive]
    if server and not worker:
        result.problems.append(_problem("no worker", "no worker was started; run `cpb deploy up`"))
    if server and server.alive:
        try:
            _ask(server, worker, result)
        except CpbError as error:
            result.problems.append(_problem(error.code, str(error)))
    result.data, damaged = stored.newest(home)
    result.problems += [_problem(text, text) for text in damaged]
    if server:
        result.problems += findings.of_stale(home, stored_series(home, "forecasts"), grace=BETWEEN_RUNS)
    for market in sorted({series.market for series in stored_series(home, "forecasts")}):
        result.problems += findings.of_alarms(alarms(home, market))
    result.disk = stored.disk(home)
    if result.disk.free < stored.MIN_FREE_BYTES:
        free = f"only {result.disk.free / 1e6:.0f} MB are free where {home} lies; free some"
        result.problems.append(_problem("disk", free))
    return result


def _ask(server: Service, worker: Service | None, result: Status) -> None:
    if answers_without_password(server):
        open_to_all = "the server asks for no password; `cpb deploy up` starts one that does"
        result.problems.append(_problem("no password", open_to_all))
        return
    with client_of(server) as client:
        result.ended = end_dead_runs(client, server.home, server.since)
        if worker and worker.alive and not _polls(client, worker):
            log = services.log_file("worker")
            result.problems.append(_problem("polls", f"the worker does not reach the server; see {log}"))
        for deployment in _deployments(client):
            result.deployments.append(deployment)
        result.problems += [*_bad_endings(result.deployments), *_late_runs(client)]


def _problem(about: str, text: str) -> Event:
    return Event("deployment", about, text)


def _dead(service: Service) -> Event:
    log = services.log_file(service.name)
    text = f"the {service.name} does not run any more; `cpb deploy up` starts it again (log: {log})"
    return Event("service dead", service.name, text)


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


def _bad_endings(deployments: list[Deployment]) -> Iterator[Event]:
    for deployment in deployments:
        last = deployment.last
        if last and last.outcome not in ("Completed", "Cancelled", NOT_YET):
            why = f": {last.message.splitlines()[0][:200]}" if last.message else ""
            when = f"{last.ended:%Y-%m-%d %H:%M} UTC"
            text = f"the last run of {deployment.name} ({last.name}) ended {last.outcome} at {when}{why}"
            kind: Kind = "run partial" if last.outcome == "Partial" else "run failed"
            flow = deployment.name.partition("/")[0]
            yield Event(kind, f"{flow} Crashed" if last.outcome == "Crashed" else flow, text)


def _late_runs(client: "SyncPrefectClient") -> Iterator[Event]:
    from prefect.client.schemas.filters import FlowRunFilter

    before = datetime.now(UTC) - LATE_AFTER
    late = FlowRunFilter.model_validate(
        {"state": {"name": {"any_": ["Late"]}}, "expected_start_time": {"before_": before}}
    )
    for run in client.read_flow_runs(flow_run_filter=late, limit=5):
        if run.work_pool_name == POOL:
            text = (
                f"run {run.name} was due at {run.expected_start_time:%Y-%m-%d %H:%M} UTC and has not started"
            )
            yield Event("run missing", str(run.deployment_id), text)
