"""`check_lookahead` of a backtest: recomputation without future data, and training on shuffled inputs."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl
import torch

import cpbmodels
from cpbmodels.data.columns import RETURNS, feature_frame
from cpbmodels.data.series import Series
from cpbmodels.data.wide import WIDE_COLUMNS
from cpbmodels.fleet.bank import Bank, MemberPlan, make_task
from schemas.errors import count
from schemas.handover import Failure
from schemas.run import BacktestSpec, base_of
from tasks.backtesting import lookahead
from tasks.backtesting.fleets import plan_folds
from tasks.backtesting.folds import FoldSeries
from tasks.backtesting.lookahead import LEAK
from tasks.backtesting.models import BASELINES
from tasks.judging.baselines import Rows, ewma_walk, reference
from tasks.judging.member import judge_member
from tasks.judging.scores import Array
from tasks.market.klines import read_klines
from tasks.running.progress import tell
from tasks.signals.feature_files import series_of
from tasks.training.trainer import train_members

log = logging.getLogger("cpb")

MIN_RATIO_WITHOUT_SKILL = 0.99
"""A model trained on shuffled inputs with a lower CRPS ratio must have information from elsewhere."""

MIN_FORECASTS = 1000
"""With fewer forecasts the ratio may be lower by chance, so the difference must also be significant."""

FORECAST_TOLERANCE = 1e-4
"""Relative tolerance: models forecast in float32, and the order of their sums depends on the length of the data."""


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
        return bool(self.findings) or any(LEAK in trial for trial in self.trials)

    @property
    def text(self) -> str:
        """The result as a sentence."""
        same = f"no look-ahead found: {', '.join(self.checked)} are the same without the future"
        unchecked = [f"{one.subject} could not be checked: {one.reason}" for one in self.failures]
        return "; ".join([*(self.findings or ([same] if self.checked else [])), *self.trials, *unchecked])


def audit(spec: BacktestSpec, folds: Sequence[FoldSeries]) -> Audit:
    """Check the columns and window lists of every series, and everything else for a single series per timeframe.

    Everything else uses each timeframe's first series that all architectures can be trained on, in its newest fold:
    scaling, training windows, baselines and forecasts are recomputed without future data, and models are trained on
    shuffled inputs.
    """
    result = Audit()
    timeframes = dict.fromkeys(one.id.timeframe for one in folds)
    for done, timeframe in enumerate(timeframes):
        tell("check look-ahead", done, len(timeframes), "timeframes")
        own = [one for one in folds if one.id.timeframe == timeframe]
        newest = [one for one in own if one.fold == max(other.fold for other in own)]
        checked = [
            one for one in newest if _guarded(result, one, lambda one: _check_columns(spec, one, result))
        ]
        part = f"columns and windows of {count(len(checked), 'coin')}"
        chosen = next((one for one in checked if _can_be_trained(spec, one)), None)
        if chosen and _guarded(result, chosen, lambda one: _check_models(spec, one, result)):
            part += f", training, baselines and forecasts of {chosen.id.label}"
        result.checked.append(f"{part} at {timeframe}")
    tell("check look-ahead", 1, 1, "timeframes")
    return result


def _guarded(result: Audit, one: FoldSeries, check: Callable[[FoldSeries], None]) -> bool:
    """Run a check of a series; record a failure and return False, so that the other series are still checked."""
    try:
        check(one)
    except Exception as error:
        result.failures.append(Failure.of(one.id, "evaluate", error))
        log.debug("%s could not be checked for look-ahead", one.id, exc_info=error)
        return False
    return True


def _can_be_trained(spec: BacktestSpec, one: FoldSeries) -> bool:
    return not any(
        cpbmodels.why_not(one.series, base_of(name), spec.preset, **spec.overrides) for name in spec.names
    )


def _klines(spec: BacktestSpec, one: FoldSeries) -> pl.DataFrame:
    scope = spec.scope
    return read_klines(scope.home, one.id, since=scope.since, as_of=scope.as_of)


def _check_columns(spec: BacktestSpec, one: FoldSeries, result: Audit) -> None:
    """Compare the columns and windows with those recomputed from the stored klines, and from truncated klines."""
    klines = _klines(spec, one)
    again = series_of(feature_frame(klines, one.id.timeframe), one.id, one.bounds)
    if stale := lookahead.stale_columns(one.series, again):
        result.findings.append(f"{LEAK}: {one.id}: {', '.join(stale)} differ from what the klines give")
        return
    leaks = lookahead.check_lookahead(
        lookahead.pipeline(one.id, one.bounds, {}), klines, cuts=2, first=first_cut(one.series)
    )
    _add_findings(result, leaks, one)


def _check_models(spec: BacktestSpec, one: FoldSeries, result: Audit) -> None:
    """Check training, baselines and forecasts of every model on a series, and train on shuffled inputs."""
    klines = _klines(spec, one)
    trained = {name: _train(spec, name, one, one.series) for name in spec.names}
    fits = {name: BASELINES[name] for name in spec.baseline_names}
    inputs = {name: training_inputs(member) for name, member in trained.items()}
    exact = lookahead.pipeline(one.id, one.bounds, {"reference": ewma_walk, **fits}, training_inputs=inputs)
    first = first_cut(one.series)
    leaks = lookahead.check_lookahead(exact, klines, cuts=4, first=first)
    if not leaks:  # models read the same columns: a leak in them would be reported twice
        forecasts = {name: _forecast_of(member) for name, member in trained.items()}
        chain = lookahead.pipeline(one.id, one.bounds, {}, forecasts)
        leaks = lookahead.check_lookahead(chain, klines, cuts=4, first=first, tolerance=FORECAST_TOLERANCE)
    _add_findings(result, leaks, one)
    result.trials += [_trial(spec, name, one, member) for name, member in trained.items()]


def _add_findings(result: Audit, leaks: Sequence[lookahead.Leak], one: FoldSeries) -> None:
    if leaks:
        result.findings.append(f"{lookahead.explain(leaks)} ({one.id})")


def first_cut(series: Series) -> int:
    """Return the earliest cut: some rows into the test span, because forecasts of that span are compared."""
    start = series.spans["test"][0]
    return start + min(200, (len(series) - start) // 3)


def _train(spec: BacktestSpec, architecture: str, one: FoldSeries, series: Series) -> cpbmodels.Member:
    """Train in this process, because a shuffled series is not stored in a file."""
    (job,) = plan_folds(spec, architecture, [one]).shards
    profile = None if spec.profile == "auto" else spec.profile
    (member,) = train_members(
        job,
        [(job.members[0], series)],
        device=spec.device,
        profile=profile,
        dtype=spec.dtype,
    )
    return member


def _trial(spec: BacktestSpec, architecture: str, one: FoldSeries, trained: cpbmodels.Member) -> str:
    """Return the result of training on shuffled inputs: candles if the model reads returns, otherwise features."""
    reads_returns = bool(set(trained.config["features"]) & {*RETURNS, *WIDE_COLUMNS})
    shuffle = lookahead.with_shuffled_candles if reads_returns else lookahead.with_shuffled_features
    member = _train(spec, architecture, one, shuffle(one.series))
    origins = one.series.origins("test", member.context, member.horizon)
    forecasts = cpbmodels.predict([member], [one.series], [origins])[0]
    known = reference(one.series, one.series.origins("train", 1, member.horizon), origins, member.horizon)
    score = judge_member(one.series, forecasts, known, architecture=architecture)
    ratio = score.metrics["test_crps_ratio"]
    finding = trial_finding(ratio, len(origins), score.verdict)
    what = "candles" if reads_returns else "features"
    return f"{architecture} trained on shuffled {what}: ratio {ratio:.3f}, {finding}"


def trial_finding(ratio: float, n: int, verdict: str) -> str:
    """Return the interpretation of the CRPS ratio of a model trained on shuffled inputs, with n test forecasts."""
    if ratio >= MIN_RATIO_WITHOUT_SKILL:
        return "no skill, as expected"
    if n >= MIN_FORECASTS or verdict.startswith("better than"):
        return f"{LEAK}: skill from shuffled inputs"
    return "too few forecasts to be significant"


def training_inputs(member: cpbmodels.Member) -> Callable[[Series], Array]:
    """Return the inputs of such a model's training per candle: 1 training and 2 validation origins, and the scaling."""

    def read(series: Series) -> Array:
        bank = Bank.build([series], member.options, torch.device("cpu"), torch.float32)
        task = make_task(bank, [series], MemberPlan((0,), 0, series.symbol), member.options)
        windows = np.zeros((len(series), 1))
        windows[task.train], windows[task.validation] = 1, 2
        scaling = np.concatenate([task.mean, task.inverse])
        return np.hstack([windows, np.broadcast_to(scaling, (len(series), len(scaling)))])

    return read


def _forecast_of(member: cpbmodels.Member) -> lookahead.Forecast:
    def forecaster(series: Series, origins: Rows) -> Array:
        return cpbmodels.predict([member], [series], [origins])[0].quantiles

    return forecaster
