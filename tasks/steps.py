"""The steps of both DAGs, in the order in which data passes them.

train-all: ingest · features · plan · train · evaluate · promote · publish · forecast
forecast:  champions · ingest · forecast · score · watch

A step is thin: the implementation is in the subpackages, which do not import an orchestrator.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

from cpbmodels.data import INTERVAL_SECONDS
from schemas.coins import check_known, coins_label
from schemas.decision import Decision
from schemas.errors import BusyError, CpbError, DamagedError, MemberError, install_extra, log
from schemas.failure import Failure
from schemas.handover import (
    FleetJudgement,
    FleetPlan,
    ForecastBatch,
    IngestResult,
    Publication,
    SeriesRecord,
    ShardJob,
    ShardResult,
    TrainingPlan,
)
from schemas.home import home_folder
from schemas.identity import MARKETS, Market, SeriesId, tree_of
from schemas.ledger import Score, Watching
from schemas.run import LOCAL, RAY, RunSpec
from schemas.scope import Scope
from tasks.forecasting.issue import issue_forecasts
from tasks.forecasting.record import score_due
from tasks.forecasting.staleness import STOPPED_AFTER
from tasks.forecasting.watch import check_drift
from tasks.hub.packaged import package, serving
from tasks.hub.publish import check_private, hub_client, publish_tree
from tasks.hub.tree import check_replaceable
from tasks.judging.fleet import judge_fleet
from tasks.judging.judges import Judges
from tasks.market.ingest import update_store
from tasks.market.store_state import FAILED_SERIES, leap_sentence
from tasks.promotion.night import decide_night
from tasks.promotion.night_fleets import fleets_to_train
from tasks.running.step import Retry, step, took
from tasks.signals.feature_files import load_series, write_features
from tasks.signals.splits import shortened, split_bounds
from tasks.storage.packaged import PackagedModel, packaged_models
from tasks.tracking.fleet_log import log_fleet
from tasks.training.fleet_progress import FleetProgress
from tasks.training.local import LocalEngine
from tasks.training.plan import fleet_names, job_key, plan_fleet, plan_member
from tasks.training.queue import Engine, failed_shard
from tasks.training.ray import ADDRESS, connected
from tasks.training.trainers import TrainerDied

RETRY_WAIT_S = 5.0


# If another process is writing, a run waits up to ten minutes: a scheduled run must not be skipped.
@step("ingest", run_name="ingest {scope.title}", retry=Retry(on=BusyError, times=40, wait_s=15))
def ingest(scope: Scope, tail: bool = False) -> IngestResult:
    """Update the store; `tail`: including the newest candles from the REST API.

    Offline, and if the source cannot be reached, the stored candles are used, with a warning that states their age.

    Raises:
        CpbError: as in `tasks.market.ingest.update_store`.
    """
    try:
        state = update_store(scope, tail=tail)
        if scope.offline:
            log.warning("offline: %s", state.notes[0])
    except CpbError as error:
        if error.code != "unreachable":
            raise
        try:
            # No reason to miss a forecast: the stored candles do, and the warning says how old they are.
            state = update_store(scope.model_copy(update={"offline": True}))
        except CpbError as none_stored:
            if none_stored.code != "not-stored":
                raise
            # Both reasons: the source is away, and there is nothing to fall back on.
            raise CpbError(f"{error}; {none_stored}", code=error.code, field=error.field) from error
        log.warning("%s; %s", str(error).partition(";")[0], state.notes[0])
    for warning in state.warnings:
        log.warning("%s", warning)
    failed = [entry for entry in state.series if entry.status == FAILED_SERIES]
    leaps = [entry for entry in state.series if entry.leaps]
    return IngestResult(
        series=tuple(entry.series for entry in state.series if entry.status != FAILED_SERIES),
        failures=tuple(
            Failure(step="ingest", reason=e.reason, code="ingest", series=e.series) for e in failed
        ),
        leaps=tuple(
            Failure(step="ingest", reason=leap_sentence(e.leaps), code="leap", series=e.series) for e in leaps
        ),
        requests=state.requests,
        seconds=state.seconds,
    )


# Two at a time: polars uses all cores for each, and a series of 15m candles takes 200 MB during computation.
@step("features", run_name="features {series.name}", workers=2)
def features(scope: Scope, series: SeriesId) -> SeriesRecord | Failure:
    """Write the features of one series below `HOME/features`, or return the failure."""
    try:
        return write_features(scope.home, series, since=scope.since, as_of=scope.as_of)
    except MemberError as error:
        return Failure.of(series, "features", error)


@step("plan", run_name="plan {spec.scope.title}")
def plan(spec: RunSpec, records: Sequence[SeriesRecord], gpus: bool = False) -> TrainingPlan:
    """Return the fleets of a run, which depend only on the specification and the data, and with `serving` the registry.

    `gpus`: the shards are to be trained on GPUs, and are sized for them.
    """
    # Against the newest candle of the run, not against now: a run with `as_of` of last year plans as it did then.
    newest = max((r.last_us for r in records), default=0)
    oldest = newest - STOPPED_AFTER // timedelta(microseconds=1)
    stopped = [r for r in records if r.last_us < oldest]
    records = [r for r in records if r.last_us >= oldest]
    timeframes = dict.fromkeys(r.series.timeframe for r in records)
    bounds = {}
    for timeframe in timeframes:
        of_timeframe = [r for r in records if r.series.timeframe == timeframe]
        # One split for all series of a timeframe, so that no coin's test span is in another's training span.
        bounds[timeframe] = split_bounds(of_timeframe)
        if sentence := shortened(of_timeframe, 1):
            log.warning("%s", sentence)
    usable, failures = [], []
    for record in records:
        try:
            # Read here already: a damaged file or too short a series is known before a device is busy.
            load_series(spec.scope.home, record, bounds[record.series.timeframe])
            usable.append(record)
        except (MemberError, DamagedError) as error:
            failures.append(Failure.of(record.series, "plan", error))
    to_train, unknown = fleets_to_train(spec, [r.series for r in usable])
    failures += unknown
    # With `serving` two timeframes may name the same recipe: it is one fleet with the members of both.
    wanted = {fleet.model_dump_json(): fleet for fleets in to_train.values() for fleet in fleets}
    planned = []
    for fleet, name in zip(wanted.values(), fleet_names([*wanted.values()]), strict=True):
        members = [
            plan_member(spec, fleet, record, bounds[record.series.timeframe])
            for record in usable
            if fleet in to_train[record.series.timeframe]
        ]
        planned.append(plan_fleet(spec, fleet, members, name=name, gpu=gpus))
    return TrainingPlan(
        series=tuple(usable), fleets=tuple(planned), failures=tuple(failures), stopped=tuple(stopped)
    )


def _shard_name(parameters: dict[str, Any]) -> str:
    return f"train {parameters['progress'].name_of(parameters['job'])}"


@step("train", run_name=_shard_name)
def train(spec: RunSpec, engine: Engine, job: ShardJob, progress: FleetProgress) -> ShardResult:
    """Train a shard below `fleets` of the market's home: continued from its last checkpoint, skipped if done.

    Retried if its trainer died (not after its time limit, which a retry would reach again). If the trainer fails as a
    whole, every member of the shard is a failure.
    """
    # Here and not in the step's policy: `progress.ended` is told once, after the last try.
    run = Retry(on=TrainerDied, times=1, wait_s=RETRY_WAIT_S).around(engine.run, "train")
    try:
        result = run(job, spec.scope.root, spec.train_timeout_s, progress)
        progress.trained(job, result)
        return result
    except CpbError as error:
        return failed_shard(job, error)
    finally:
        progress.ended(job)


@step("evaluate", run_name="evaluate {fleet.name}")
def evaluate(
    spec: RunSpec,
    parent: str,
    fleet: FleetPlan,
    trained: Iterable[tuple[ShardJob, ShardResult]],
    judges: Judges,
    earlier: Sequence[Failure] = (),
) -> FleetJudgement:
    """Return the fleet's judgements and their runs, logged under the flow's run `parent`.

    `trained`: the fleet's shards with their results, in order of completion. A failed member gets a run too, marked
    failed, with the reason: a failure in training or judging, or (`earlier`) of its series before any fleet was
    trained. The run of a fleet without a good member is marked failed too.
    """
    results: dict[str, ShardResult] = {}

    def noted() -> Iterator[tuple[ShardJob, ShardResult]]:
        for shard, result in trained:
            took(result)
            results[result.key] = result
            yield shard, result

    score = judge_fleet(spec.scope.root, fleet, noted(), judges)
    # judged in the order in which shards end, logged in the order of the plan: runs do not depend on the devices' pace
    return log_fleet(spec, parent, fleet, [results[job_key(shard)] for shard in fleet.shards], score, earlier)


@contextmanager
def opened_engine(spec: RunSpec) -> Iterator[Engine]:
    """Yield the engine named by the run, or else the cluster of `RAY_ADDRESS`, or else this machine.

    Opened before anything is fetched: a trainer on a GPU starts meanwhile, and a device that cannot be used is named.

    Raises:
        UsageError: a setting is invalid, or the device is not available.
        CpbError: Ray is not installed, or its cluster cannot be used.
    """
    if (spec.engine or (RAY if os.environ.get(ADDRESS) else LOCAL)) == LOCAL:
        # The fleets that will probably train: their kernels are compiled while candles are fetched.
        to_train, _ = fleets_to_train(spec, spec.scope.series)
        fleets = [fleet for of_timeframe in to_train.values() for fleet in of_timeframe]
        with closing(LocalEngine(spec, fleets)) as local:
            yield local
        return
    if find_spec("ray") is None:
        raise CpbError(
            f"engine ray: the package ray is not installed; run {install_extra('ray')}, or train with --engine local",
            code="extra-missing",
            field="engine",
        )
    with connected(spec) as cluster:
        yield cluster


@step("promote", run_name="promote {spec.timeframes}")
def promote(
    spec: RunSpec,
    fleets: Sequence[FleetJudgement],
    stopped: Sequence[SeriesRecord] = (),
) -> tuple[Decision, ...]:
    """Decide on every series that was judged or has stopped trading, move the aliases, and return the decisions."""
    return decide_night(spec.scope.home, fleets, stopped, spec.force or "")


def check_publishable(spec: RunSpec) -> None:
    """Raise what would stop a run's publishing hours later.

    No token of the Hub; a public repository or Space where private is asked for; a folder in the place of the tree.
    """
    places = [(name, kind) for name, kind in ((spec.repo, "model"), (spec.space, "space")) if name]
    if spec.private:
        check_private(*places)
    elif places:
        hub_client()
    check_replaceable(tree_of(home_folder(), "hub", spec.market))


@step("publish", run_name="publish {market}")
def publish(market: Market, repo: str | None = None, *, private: bool = False) -> Publication:
    """Write the tree of a market's champions to `hub` (`hub-um`, `sim/hub`), and with `repo` to the Hub.

    Both have the record of the market's forecasts and scores, as stored at that moment. A damaged champion or month is
    left out and reported as a failure.

    Args:
        private: create `repo` as private, and refuse it if it exists and is public.

    Raises:
        CpbError: no champion can be published, or the Hub refuses; (code `other-record`) the published record belongs
            to another chain than the stored record.
    """
    # The local tree is whole before anything is sent, so a Hub that is away loses nothing.
    tree, failures = package(home_folder(), market, repo)
    place = publish_tree(tree, repo, private=private) if repo else tree
    return Publication(place=str(place), failures=tuple(failures))


@dataclass(frozen=True)
class Serving:
    """The champions of a market in its packaged folder, and the failures of those left out as damaged."""

    models: tuple[PackagedModel, ...]
    failures: tuple[Failure, ...]

    def of(self, scope: Scope) -> dict[SeriesId, PackagedModel]:
        """Return the models of a scope's series.

        Raises:
            CpbError: there is none, or they are damaged.
            UsageError: a coin is neither among the champions nor in the default universe.
        """
        # Before any is chosen: a misspelt coin beside one that has a champion would be left out without a word.
        known = {model.series.symbol for model in self.models}
        known |= {failure.series.symbol for failure in self.failures if failure.series}
        check_known(scope.symbols, known, "the registry of champions")
        if models := {model.series: model for model in self.models if scope.selects(model.series)}:
            return models
        if damaged := [f for f in self.failures if f.series and scope.selects(f.series)]:
            reasons = "; ".join(failure.reason for failure in damaged)
            raise CpbError(f"no forecast could be made: {reasons}", code=damaged[0].code)
        of = f" of {coins_label(scope.symbols)}" if scope.symbols else ""
        at = f" at {', '.join(scope.timeframes)}" if len(scope.timeframes) < len(INTERVAL_SECONDS) else ""
        elsewhere = [
            f"{number} of market {market}, with which "
            f"`cpb forecast{scope.model_copy(update={'market': market}).options}` forecasts"
            for market in MARKETS
            if (number := sum(scope.selects(model.series) for model in packaged_models(scope.home, market)))
        ]
        raise CpbError(
            f"no forecast could be made: there is no champion{of}{at} in market {scope.market} yet"
            f"{''.join(f', but {text}' for text in elsewhere)}; train first, as in "
            f"`cpb train-all{scope.options}`",
            code="no-champion",
        )


@step("champions", run_name="champions {market}")
def champions(market: Market) -> Serving:
    """Bring a market's packaged folder up to date with the registry; errors as in `tasks.hub.packaged.serving`."""
    models, failures = serving(home_folder(), market)
    return Serving(tuple(models), tuple(failures))


@step("forecast", run_name="forecast {scope.title}")
def forecast(scope: Scope) -> ForecastBatch:
    """Issue the forecasts of every packaged champion in the scope from the newest candles."""
    return issue_forecasts(scope, packaged_models(scope.home, scope.market, scope.series))


@step("score", run_name="score {scope.title}")
def score(scope: Scope) -> Score:
    """Score the stored forecasts of the scope whose target candle has closed."""
    return score_due(scope.home, scope.series, scope.as_of)


@step("watch", run_name="watch {scope.title}")
def watch(scope: Scope) -> Watching:
    """Check whether champions of the scope perform worse than their test spans promised."""
    return check_drift(scope, packaged_models(scope.home, scope.market, scope.series))
