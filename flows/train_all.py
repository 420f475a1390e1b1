"""`train-all`: klines -> features -> fleets -> scores -> champions -> Hub folder -> forecasts.

One member's failure never stops the others: it is reported with its reason, its run is marked failed, and
the flow ends partial. Every step finds its own finished work by digest, so the same command after kill -9
does only what is left.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from prefect import flow
from prefect.states import Completed, State
from prefect.task_runners import ThreadPoolTaskRunner

from flows.console import say as say_to_people
from flows.remarks import of_fleet, standing
from flows.deploy.liveness import claim_run
from flows.prefect_server import check_server
from flows.runner import Runner, ThroughPrefect, plain_failures
from flows.summary import Summary, Training
from flows.warm import warm_folders
from schemas.config import PRESET_SEEDS, TrainConfig, check_profile, parse_architectures
from schemas.errors import CpbError, MemberError
from schemas.records import Failure, FleetRecord, SeriesRecord
from schemas.scope import Scope
from tasks.evaluate import evaluate
from tasks.features import features
from tasks.forecast import forecast
from tasks.hub.publish import check_ready
from tasks.ingest import ingest
from tasks.promote import promote
from tasks.publish import publish
from tasks.signals.splits import SplitBounds, split_bounds
from tasks.signals.store import load_series
from tasks.tracking.runs import COMPLETE as RUN_COMPLETE
from tasks.tracking.runs import FAILED as RUN_FAILED
from tasks.tracking.runs import PARTIAL as RUN_PARTIAL
from tasks.tracking.runs import REASON, finish, start_parent
from tasks.train import train
from tasks.training.job import code_digest, plan_job
from tasks.training.keep import FleetsInUse, is_training
from tasks.training.launch import plan_slots

Say = Callable[[str], None]
Progress = Callable[[dict[str, Any]], None]


def run_training(
    config: TrainConfig,
    steps: Runner,
    say: Say = say_to_people,
    *,
    tail: bool = False,
    fresh: bool = False,
    name: str = "train-all",
    on_progress: Progress | None = None,
) -> Training:
    """Ingest, compute features, train, judge and log; `fresh` forgets what earlier runs trained.

    Raises:
        CpbError: nothing could be ingested, or nothing trained; a run that was begun is marked failed.
    """
    summary = Summary()
    records = _data(config, steps, say, summary, tail)
    bounds = _bounds(records)
    records = _usable(records, bounds, summary, say)
    run = start_parent(_run_key(config, records), config.model_dump(mode="json"), _tags(config), name)
    summary.run_id, summary.series = run.run_id, len(records)
    in_use = FleetsInUse(config.scope.home)
    with _failing(run.run_id):
        fleets = _fleets(config, steps, say, records, bounds, summary, fresh, on_progress)
        judged = [steps.one(evaluate, config, run.run_id, f, tuple(summary.failures)) for f in fleets]
    summary.members = sum(len(fleet.run_ids) for fleet in judged)
    say(f"judged {summary.members} members against the random walk")
    return Training(summary, judged, in_use)


def run_train_all(
    config: TrainConfig,
    steps: Runner,
    say: Say = say_to_people,
    *,
    tail: bool = False,
    on_progress: Progress | None = None,
) -> Summary:
    """Run the whole job and return its summary; errors as in `run_training`."""
    if config.repo:
        check_ready(config.repo)  # hours before the token is needed
    training = run_training(config, steps, say, tail=tail, on_progress=on_progress)
    with _failing(training.summary.run_id):
        return _deliver(config, training, steps, say, tail)


def _deliver(config: TrainConfig, training: Training, steps: Runner, say: Say, tail: bool) -> Summary:
    """Promote, publish and forecast what was trained."""
    summary = training.summary
    summary.champions = len(steps.one(promote, training.judged, config.scope.source))
    training.fleets.release()
    # None: classifiers forecast no price, and simulated models give way to real ones.
    if summary.champions:
        try:
            summary.published = steps.one(publish, config.scope.home, config.repo, config.scope.source)
        except CpbError as error:  # the Hub is away: models, runs and forecasts are good all the same
            _fail(summary, say, "all", "all", "publish", str(error))
    issued = steps.one(forecast, config.scope, tail)
    # Standing, not new: a run that was killed after its forecasts and repeated ends like an undisturbed one.
    summary.forecast_rows = issued.standing
    for failure in issued.failures:
        _fail(summary, say, failure.symbol, failure.timeframe, "forecast", failure.reason)
    packaged = f", packaged in {summary.published}" if summary.published else ""
    say(f"{summary.champions} champions, {summary.forecast_rows} forecast rows{packaged}")
    finish(summary.run_id, RUN_PARTIAL if summary.failures else RUN_COMPLETE)
    return summary


@contextmanager
def _failing(run_id: str) -> Iterator[None]:
    """Mark the flow's run as failed, with the reason, where an expected error ends it."""
    try:
        yield
    except CpbError as error:
        finish(run_id, RUN_FAILED, {REASON: str(error)})
        raise


def _data(config: TrainConfig, steps: Runner, say: Say, summary: Summary, tail: bool) -> list[SeriesRecord]:
    scope = config.scope
    report = steps.one(ingest, scope, tail)
    failed = {(s.symbol, s.timeframe): s.reason for s in report.series if s.status == "failed"}
    for (symbol, timeframe), reason in failed.items():
        _fail(summary, say, symbol, timeframe, "ingest", reason)
    wanted = [(s, t) for s in scope.symbols for t in scope.timeframes if (s, t) not in failed]
    say(f"ingested {len(wanted)} series ({report.requests} requests, {report.seconds:.1f} s)")
    outcomes = steps.each(features, [(scope, symbol, timeframe) for symbol, timeframe in wanted], 2)
    for (symbol, timeframe), outcome in zip(wanted, outcomes, strict=True):
        if outcome.error:
            _fail(summary, say, symbol, timeframe, "features", str(outcome.error))
    return [o.value for o in outcomes if o.value]


def _fail(summary: Summary, say: Say, symbol: str, timeframe: str, step: str, reason: str) -> None:
    summary.failures.append(Failure(symbol=symbol, timeframe=timeframe, step=step, reason=reason))
    say(f"FAILED {symbol} {timeframe} in {step}: {_plain(summary.failures[-1])}")


def _plain(failure: Failure) -> str:
    """The reason without the series' name, where it begins with it."""
    return failure.reason.removeprefix(f"{failure.symbol} {failure.timeframe}: ")


def _bounds(records: list[SeriesRecord]) -> dict[str, SplitBounds]:
    timeframes = dict.fromkeys(r.timeframe for r in records)
    return {t: split_bounds([r for r in records if r.timeframe == t]) for t in timeframes}


def _usable(
    records: list[SeriesRecord], bounds: dict[str, SplitBounds], summary: Summary, say: Say
) -> list[SeriesRecord]:
    """Return the series with candles enough in every span; the others become failures, once, here."""
    usable = []
    for record in records:
        try:
            load_series(record.path, bounds[record.timeframe], record.symbol)
            usable.append(record)
        except MemberError as error:
            _fail(summary, say, record.symbol, record.timeframe, "features", str(error))
    if not usable:
        reasons = "; ".join(f"{f.symbol} {f.timeframe}: {_plain(f)}" for f in summary.failures[:3])
        raise CpbError(f"no series can be trained ({reasons}); check --coins, --since, --as-of and --source")
    return usable


def _fleets(
    config: TrainConfig,
    steps: Runner,
    say: Say,
    records: list[SeriesRecord],
    bounds: dict[str, SplitBounds],
    summary: Summary,
    fresh: bool,
    on_progress: Progress | None,
) -> list[FleetRecord]:
    """Train one fleet per architecture, side by side, and return those that were finished."""
    warm = warm_folders(config, records)
    jobs = [plan_job(config, name, records, bounds, warm.get(name)) for name in config.architectures]
    slots = plan_slots(config.device, len(jobs))
    folders = [config.scope.home / "fleets" / job.key for job in jobs]
    for job, folder in zip(jobs, folders, strict=True):
        if fresh and not is_training(folder):  # another process's training of the same job is fresh enough
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        job.save(folder)
    before = [standing(folder) for folder in folders]
    calls = [
        (job, folder, slots, config.train_timeout_s, on_progress)
        for job, folder in zip(jobs, folders, strict=True)
    ]
    fleets = []
    for job, known, outcome in zip(jobs, before, steps.each(train, calls, slots.workers), strict=True):
        if outcome.error:
            for member in job.members:
                reason = f"{job.architecture}: {outcome.error}"
                _fail(summary, say, member.symbol, member.timeframe, "train", reason)
            continue
        fleet: FleetRecord = outcome.value
        for failure in fleet.failures:
            _fail(summary, say, failure.symbol, failure.timeframe, "train", failure.reason)
        fleets.append(fleet)
        count = len(job.members) - len(fleet.failures)
        say(f"trained {job.architecture}: {count} members" + (f" ({known})" if known else ""))
        for sentence in of_fleet(fleet.folder):
            say(f"{job.architecture}: {sentence}")
    if not fleets:
        raise CpbError(f"no fleet could be trained; the first reason: {summary.failures[-1].reason}")
    return fleets


def _run_key(config: TrainConfig, records: list[SeriesRecord]) -> str:
    """Digest of what was asked and of the data it met: the same command on the same data is the same run."""
    asked = config.model_dump(mode="json", exclude={"scope": {"home", "source"}, "train_timeout_s": True})
    data = [(r.symbol, r.timeframe, r.digest) for r in records]
    text = json.dumps([asked, data, code_digest()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _tags(config: TrainConfig) -> dict[str, str]:
    as_of = config.scope.as_of
    return {"preset": config.preset, "as_of": as_of.isoformat() if as_of else "newest"}


_THREADS: Any = ThreadPoolTaskRunner(max_workers=16)  # they wait for a device slot in `tasks.training.launch`


@flow(name="train-all", task_runner=_THREADS, on_running=[claim_run])
@plain_failures
def train_all(
    coins: str = "all",
    timeframes: str = "15m,1h",
    architectures: str | None = None,
    preset: str = "default",
    source: str | None = None,
    since: str | None = None,
    as_of: str | None = None,
    market: str = "spot",
    device: str = "auto",
    profile: str = "auto",
    seed: int = 1,
    seeds: int | None = None,
    repo: str | None = None,
    tail: bool = False,
    warm_start: str | None = None,
) -> State:
    """Train, judge, promote and package the whole universe; parameters are the command line's."""
    config = TrainConfig(
        scope=Scope.of(coins, timeframes, source, market, since, as_of),
        preset=preset,
        architectures=parse_architectures(architectures, preset),
        device=device,
        profile=check_profile(profile),
        seed=seed,
        seeds=seeds or PRESET_SEEDS.get(preset, 1),
        repo=repo,
        warm_start=warm_start,
    )
    summary = run_train_all(config, ThroughPrefect(), tail=tail)
    name = "Partial" if summary.failures else "Completed"
    message = f"{summary.members} members, {len(summary.failures)} failed"
    return Completed(name=name, message=message, data=summary.as_json())


def in_prefect(config: TrainConfig, tail: bool) -> Summary:
    """Run the same job as a Prefect flow run on the server in use."""
    scope = config.scope
    # Called directly, a flow gives the data of the state that it returned.
    check_server()
    result: Any = train_all(
        coins=",".join(scope.symbols),
        timeframes=",".join(scope.timeframes),
        architectures=",".join(config.architectures),
        preset=config.preset,
        source=scope.source,
        since=scope.since.strftime("%Y-%m-%dT%H:%M") if scope.since else None,
        as_of=scope.as_of.strftime("%Y-%m-%dT%H:%M") if scope.as_of else None,
        market=scope.market,
        device=config.device,
        profile=config.profile,
        seed=config.seed,
        seeds=config.seeds,
        repo=config.repo,
        tail=tail,
        warm_start=config.warm_start,
    )
    fields = {k: v for k, v in result.items() if k != "exit"}
    fields["failures"] = [Failure.model_validate(f) for f in fields["failures"]]
    return Summary(**fields)
