"""`status`: running processes, the last run of each deployment, age of the data, and problems."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.sorting import FlowRunSort
from prefect.states import State

from flows.deploy import services
from flows.deploy.liveness import EndedRun, end_dead_runs, polls
from flows.deploy.services import (
    PAGE,
    POOL,
    ROOT,
    Name,
    Service,
    client_of,
    data_home,
    prefect_home,
    state_folder,
)
from flows.summary import NOT_YET
from schemas.errors import CpbError
from schemas.identity import INTERVAL_SECONDS, SeriesId, stored_series
from schemas.scope import default_folder
from tasks.forecasting.drift import alarms
from tasks.forecasting.staleness import BETWEEN_RUNS, find_stale

LATE_AFTER = timedelta(minutes=15)
"""A scheduled run that no worker has started after this time is missing; workers poll every 10 seconds."""

MIN_FREE_BYTES = 1_000_000_000

_ENDED = ["COMPLETED", "FAILED", "CRASHED", "CANCELLED"]
_ACTIVE = ["RUNNING", "PENDING", "CANCELLING"]


@dataclass(frozen=True)
class Newest:
    """Newest data of all series of a market's timeframe. Both are ends of candles, UTC; None if there is no data."""

    market: str
    timeframe: str
    candle: datetime | None
    forecast: datetime | None


@dataclass(frozen=True)
class Disk:
    """Bytes in use by folder, and free bytes on the store's disk."""

    used: dict[str, int]
    free: int


@dataclass(frozen=True)
class LastRun:
    """The newest ended run of a deployment."""

    id: str
    name: str
    outcome: str
    message: str
    ended: datetime
    age_s: float


@dataclass(frozen=True)
class Deployment:
    """A deployment. `last` and `next` are None if there is no such run yet."""

    name: str
    last: LastRun | None
    active: int
    next: datetime | None


@dataclass
class Status:
    """Content of `cpb deploy status`. `problems`: a sentence each."""

    up: bool
    services: dict[Name, Service | None]
    deployments: list[Deployment] = field(default_factory=list)
    data: list[Newest] = field(default_factory=list)
    disk: Disk | None = None
    ended: list[EndedRun] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def status() -> Status:
    """Collect the status; runs whose process has died are ended first."""
    found: dict[Name, Service | None] = {name: services.find(name) for name in services.NAMES}
    server, worker = found["server"], found["worker"]
    home = worker.data_home if worker else data_home()
    result = Status(all(s and s.alive for s in found.values()), found)
    result.problems += [_dead(s) for s in found.values() if s and not s.alive]
    if server and not worker:
        result.problems.append("no worker was started; run `cpb deploy up`")
    if server and server.alive:
        try:
            _ask(server, worker, result)
        except CpbError as error:
            result.problems.append(str(error))
    result.data, damaged = newest(home)
    result.problems += damaged
    stale = find_stale(home, stored_series(home, "forecasts"), grace=BETWEEN_RUNS) if server else []
    if stale:  # in one sentence: usually all for the same reason
        others = ", ".join(f"{late.series.name} {late.what}" for late in stale[1:])
        result.problems.append(str(stale[0]) + (f"; also too old: {others}" if others else ""))
    for market in sorted({series.market for series in stored_series(home, "forecasts")}):
        result.problems += [str(alarm) for alarm in alarms(home, market) if alarm.state == "drifted"]
    result.disk = disk(home)
    if result.disk.free < MIN_FREE_BYTES:
        free = f"only {result.disk.free / 1e6:.0f} MB are free on the disk of {home}; free some"
        result.problems.append(free)
    return result


def _ask(server: Service, worker: Service | None, result: Status) -> None:
    with client_of(server) as client:
        result.ended = end_dead_runs(client, server.since)
        if worker and worker.alive and not polls(client, worker):
            log = services.log_file("worker")
            result.problems.append(f"the worker does not reach the server; see {log}")
        result.deployments += _deployments(client)
        result.problems += [*_bad_endings(result.deployments), *_late_runs(client)]


def _dead(service: Service) -> str:
    log = services.log_file(service.name)
    return f"the {service.name} no longer runs; `cpb deploy up` starts it again (log: {log})"


def _deployments(client: SyncPrefectClient) -> Iterator[Deployment]:
    flows = {flow.id: flow.name for flow in client.read_flows(limit=PAGE)}

    def runs(states: list[str], sort: FlowRunSort, limit: int) -> list[FlowRun]:
        some = {"deployment_id": {"any_": [deployment.id]}, "state": {"type": {"any_": states}}}
        return client.read_flow_runs(
            flow_run_filter=FlowRunFilter.model_validate(some), sort=sort, limit=limit
        )

    for deployment in client.read_deployments(limit=PAGE):
        if deployment.work_pool_name != POOL:
            continue
        last = [_last(run, run.state) for run in runs(_ENDED, FlowRunSort.END_TIME_DESC, 1) if run.state]
        due = [run.expected_start_time for run in runs(["SCHEDULED"], FlowRunSort.EXPECTED_START_TIME_ASC, 1)]
        active = len(runs(_ACTIVE, FlowRunSort.ID_DESC, PAGE))
        name = f"{flows.get(deployment.flow_id, '?')}/{deployment.name}"
        yield Deployment(name, next(iter(last), None), active, next(iter(due), None))


def _last(run: FlowRun, state: State) -> LastRun:
    ended = run.end_time or state.timestamp
    age = (datetime.now(UTC) - ended).total_seconds()
    return LastRun(str(run.id), run.name, str(state.name), str(state.message or ""), ended, round(age, 1))


def _bad_endings(deployments: list[Deployment]) -> Iterator[str]:
    for deployment in deployments:
        last = deployment.last
        if last and last.outcome not in ("Completed", "Cancelled", NOT_YET):
            why = f": {last.message.splitlines()[0][:200]}" if last.message else ""
            when = f"{last.ended:%Y-%m-%d %H:%M} UTC"
            yield f"the last run of {deployment.name} ({last.name}) ended {last.outcome} at {when}{why}"


def _late_runs(client: SyncPrefectClient) -> Iterator[str]:
    before = datetime.now(UTC) - LATE_AFTER
    late = FlowRunFilter.model_validate(
        {"state": {"name": {"any_": ["Late"]}}, "expected_start_time": {"before_": before}}
    )
    for run in client.read_flow_runs(flow_run_filter=late, limit=5):
        if run.work_pool_name == POOL:
            yield f"run {run.name} was due at {run.expected_start_time:%Y-%m-%d %H:%M} UTC and has not started"


def newest(home: Path) -> tuple[list[Newest], list[str]]:
    """Return the newest data of each market and timeframe, and a message per file that cannot be read."""
    damaged: list[str] = []
    found: dict[tuple[str, str], dict[str, datetime]] = {}
    for tree, what in (("klines", "candle"), ("provisional", "candle"), ("forecasts", "forecast")):
        for series in stored_series(home, tree):
            if time := _newest_of(series, series.folder(home, tree), what, damaged):
                times = found.setdefault((series.market, series.timeframe), {})
                times[what] = max(time, times.get(what, time))
    return [
        Newest(*key, times.get("candle"), times.get("forecast")) for key, times in sorted(found.items())
    ], damaged


def disk(home: Path) -> Disk:
    """Return the deployment's disk usage."""
    folders = {
        "store": home,
        "runs": default_folder(ROOT) / "mlruns",
        "prefect": prefect_home(),
        "logs": state_folder(),
    }
    place = next(folder for folder in (home, *home.parents) if folder.exists())
    return Disk(
        {name: sum(_sizes(folder)) for name, folder in folders.items()}, shutil.disk_usage(place).free
    )


def _newest_of(series: SeriesId, folder: Path, what: str, damaged: list[str]) -> datetime | None:
    """Return the close of the newest candle, or the issue time of the newest forecast, from a series' last file."""
    import polars as pl

    files = sorted(folder.glob("*.parquet"))
    if not files:
        return None
    column, length_s = (
        ("issued_at", 0) if what == "forecast" else ("open_time", INTERVAL_SECONDS.get(series.timeframe, 0))
    )
    try:
        frame = pl.read_parquet(files[-1], columns=[column], glob=False, hive_partitioning=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        damaged.append(f"{files[-1]} cannot be read ({str(error).splitlines()[0][:100]}); run `cpb verify`")
        return None
    time = frame[column].max()
    return time + timedelta(seconds=length_s) if isinstance(time, datetime) else None


def _sizes(folder: Path) -> Iterator[int]:
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                yield (Path(path) / name).lstat().st_size
            except OSError:  # removed meanwhile, such as a temporary file
                continue
