"""The look-ahead check of a backtest: what is recomputed without the future, and what is trained on shuffled inputs."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import polars as pl

import cpbmodels
from cpbmodels.data import RETURNS
from cpbmodels.data.columns import feature_frame
from cpbmodels.data.series import Series
from cpbmodels.data.wide import WIDE_COLUMNS
from schemas.backtesting import BacktestSpec
from schemas.errors import counted
from schemas.failure import Failure
from schemas.fleets import FleetSpec, base_of
from tasks.backtesting.folds import FoldSeries, plan_folds
from tasks.backtesting.lookahead import (
    FORECAST_TOLERANCE,
    baseline,
    chain,
    check_lookahead,
    first_cut,
    firsts,
    model,
    stale_columns,
    stops,
    training_inputs,
)
from tasks.backtesting.methods import BASELINES
from tasks.backtesting.shuffled import LEAK, trial_finding, with_shuffled_candles, with_shuffled_features
from tasks.judging.baselines import ewma_walk, reference
from tasks.judging.member import judge_member
from tasks.market.klines import read_klines
from tasks.running.progress import report_progress
from tasks.signals.feature_files import series_of
from tasks.training.plan import fleet_names
from tasks.training.shard_training import train_members

log = logging.getLogger("cpb")


@dataclass
class Audit:
    """Result of the look-ahead check.

    `findings`: leaks. `checked`: parts that were recomputed without future data. `trials`: results of training on
    shuffled inputs. `failures`: series that could not be checked.
    """

    findings: list[str] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    trials: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    @property
    def leaking(self) -> bool:
        """Whether any part uses future data."""
        return any(LEAK in sentence for sentence in (*self.findings, *self.trials))

    @property
    def text(self) -> str:
        """The result as a sentence."""
        same = f"no look-ahead found: {', '.join(self.checked)} are the same without the future"
        unchecked = [f"{failure.subject} could not be checked: {failure.reason}" for failure in self.failures]
        return "; ".join([*(self.findings or ([same] if self.checked else [])), *self.trials, *unchecked])


def audit(spec: BacktestSpec, folds: Sequence[FoldSeries]) -> Audit:
    """Check the columns and window lists of every series, and everything else for a single series per timeframe.

    Everything else uses each timeframe's first series that all architectures can be trained on, in its newest fold:
    scaling, training windows, baselines and forecasts are recomputed without future data, and models are trained on
    shuffled inputs.
    """
    result = Audit()
    timeframes = dict.fromkeys(fold.id.timeframe for fold in folds)
    for done, timeframe in enumerate(timeframes):
        report_progress("check look-ahead", done, len(timeframes), "timeframes")
        # The newest fold has the longest past, so a leak of any length shows; folds of a series share its columns.
        newest = {fold.id: fold for fold in folds if fold.id.timeframe == timeframe}.values()  # oldest first
        checked = [
            fold for fold in newest if _guarded(spec, fold, result, partial(_check_columns, fold, result))
        ]
        part = f"columns and windows of {counted(len(checked), 'coin')}"
        chosen = next((fold for fold in checked if _can_be_trained(spec, fold)), None)
        if chosen and _guarded(spec, chosen, result, partial(_check_models, spec, chosen, result)):
            part += f", training, baselines and forecasts of {chosen.id.label}"
        result.checked.append(f"{part} at {timeframe}")
    report_progress("check look-ahead", 1, 1, "timeframes")
    return result


def _guarded(
    spec: BacktestSpec, fold: FoldSeries, result: Audit, check: Callable[[pl.DataFrame], None]
) -> bool:
    """Run a check of a series' klines; record a failure and return False: other series are still checked."""
    try:
        klines = read_klines(spec.scope.home, fold.id, since=spec.scope.since, as_of=spec.scope.as_of)
        check(klines)
    except Exception as error:
        result.failures.append(Failure.of(fold.id, "evaluate", error))
        log.debug("%s could not be checked for look-ahead", fold.id, exc_info=error)
        return False
    return True


def _can_be_trained(spec: BacktestSpec, fold: FoldSeries) -> bool:
    return not any(
        cpbmodels.ineligible_reason(fold.series, base_of(fleet.architecture), fleet.preset, **fleet.overrides)
        for fleet in spec.fleets
    )


def _check_columns(fold: FoldSeries, result: Audit, klines: pl.DataFrame) -> None:
    """Compare the columns and windows with those recomputed from the stored klines, and from truncated klines."""
    again = series_of(feature_frame(klines, fold.id.timeframe), fold.id, fold.bounds)
    if stale := stale_columns(fold.series, again):
        result.findings.append(f"{LEAK}: {fold.id}: {', '.join(stale)} differ from what the klines give")
        return
    _add_leaks(
        result, fold, check_lookahead(chain(fold.id, fold.bounds, {}), klines, first_cut(fold.series), 2)
    )


def _check_models(spec: BacktestSpec, fold: FoldSeries, result: Audit, klines: pl.DataFrame) -> None:
    """Check training, baselines and forecasts of every model on a series, and train on shuffled inputs."""
    fleets = dict(zip(fleet_names(spec.fleets), spec.fleets, strict=True))
    trained = {name: _train(spec, fleet, fold, fold.series) for name, fleet in fleets.items()}
    fits = {"reference": ewma_walk, **{name: BASELINES[name] for name in spec.baseline_names}}
    # Exact values first, by the strict tolerance; forecasts in float32 have a looser one, in which a small leak
    # would hide.
    exact = {f"training of {name}": training_inputs(member) for name, member in trained.items()}
    exact |= {f"baseline {name}": baseline(fit) for name, fit in fits.items()}
    first = first_cut(fold.series)
    leaks = check_lookahead(chain(fold.id, fold.bounds, exact), klines, first, 4)
    if not leaks:  # models read the same columns: a leak in them would be reported twice
        readings = {f"model {name}": model(member) for name, member in trained.items()}
        for part, read in (("stops", stops), ("first touches", firsts)):
            readings |= {f"{part} of {name}": read(member) for name, member in trained.items()}
        models = chain(fold.id, fold.bounds, readings)
        leaks = check_lookahead(models, klines, first, 4, FORECAST_TOLERANCE)
    _add_leaks(result, fold, leaks)
    result.trials += [_trial(spec, name, fleets[name], fold, member) for name, member in trained.items()]


def _add_leaks(result: Audit, fold: FoldSeries, leaks: Mapping[str, str]) -> None:
    if leaks:
        result.findings.append(f"{LEAK}: {'; '.join(leaks.values())} ({fold.id})")


def _train(spec: BacktestSpec, fleet: FleetSpec, fold: FoldSeries, series: Series) -> cpbmodels.Member:
    """Train in this process, because a shuffled series is not stored in a file."""
    # By the plan and the functions of a real training: what is checked is what the backtest trains.
    (job,) = plan_folds(spec, fleet, [fold]).shards
    profile = None if spec.profile == "auto" else spec.profile
    (member,) = train_members(
        job, [(job.members[0], series)], device=spec.device, profile=profile, dtype=fleet.dtype
    )
    return member


def _trial(
    spec: BacktestSpec, name: str, fleet: FleetSpec, fold: FoldSeries, trained: cpbmodels.Member
) -> str:
    """Return the result of training on shuffled inputs: candles if the model reads returns, otherwise features."""
    reads_returns = bool(set(trained.config["features"]) & {*RETURNS, *WIDE_COLUMNS})
    shuffle, inputs = (
        (with_shuffled_candles, "candles") if reads_returns else (with_shuffled_features, "features")
    )
    member = _train(spec, fleet, fold, shuffle(fold.series))
    origins = fold.series.origins("test", member.context, member.horizon)
    prediction = cpbmodels.predict([member], [fold.series], [origins])[0]
    walk = reference(fold.series, fold.series.origins("train", 1, member.horizon), origins, member.horizon)
    score = judge_member(fold.series, prediction, walk, architecture=name)
    ratio = score.metrics["test_crps_ratio"]
    finding = trial_finding(ratio, len(origins), score.verdict)
    return f"{name} trained on shuffled {inputs}: ratio {ratio:.3f}, {finding}"
