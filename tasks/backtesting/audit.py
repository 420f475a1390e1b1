"""Look-ahead detection: compute on data cut at random times and compare with the computation on all data.

A causal value does not change when later candles are removed. Every column that changes is reported. The second method
is training on shuffled inputs (`with_shuffled_features`, `with_shuffled_candles`): a model without information that
still beats the reference must have information from the future.

`audit` applies both to a backtest.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import polars as pl
import torch

import cpbmodels
from cpbmodels.data import HORIZON, RETURNS
from cpbmodels.data.columns import candle_columns, feature_frame
from cpbmodels.data.series import Series
from cpbmodels.data.touch import SIDES, Touch
from cpbmodels.data.wide import WIDE_COLUMNS
from cpbmodels.fleet.bank import Bank, MemberPlan, make_task
from cpbmodels.fleet.extremes import with_touch
from schemas.backtesting import BacktestSpec
from schemas.errors import counted
from schemas.failure import Failure
from schemas.fleets import FleetSpec, base_of
from schemas.handover import SplitBounds
from schemas.identity import SeriesId
from tasks.backtesting.folds import FoldSeries, plan_folds
from tasks.backtesting.methods import BASELINES
from tasks.judging.baselines import Fit, ewma_walk, reference
from tasks.judging.member import judge_member
from tasks.judging.scores import Array, Rows
from tasks.market.klines import read_klines
from tasks.running.progress import report_progress
from tasks.signals.feature_files import series_of
from tasks.training.plan import fleet_names
from tasks.training.shard_training import train_members

log = logging.getLogger("cpb")

LEAK = "LOOK-AHEAD"
"""Marks a finding of look-ahead in messages."""

MIN_RATIO_WITHOUT_SKILL = 0.99
"""A model trained on shuffled inputs with a lower CRPS ratio must have information from elsewhere."""

MIN_FORECASTS = 1000
"""With fewer forecasts the ratio may be lower by chance, so the difference must also be significant."""

FORECAST_TOLERANCE = 1e-4
"""Relative tolerance: models forecast in float32, and the order of their sums depends on the length of the data."""

Computation = Callable[[pl.DataFrame], Mapping[str, Array]]
"""Klines -> named arrays with a row per candle (and any further axes)."""

Reading = Callable[[Series], Array]
"""Series -> an array with a row per candle."""


def check_lookahead(
    compute: Computation, klines: pl.DataFrame, first: int, cuts: int = 5, tolerance: float = 1e-7
) -> dict[str, str]:
    """Return, for each array of `compute` that changes with the future, a sentence; empty if it is causal.

    Args:
        compute: the computation to check.
        klines: klines that meet the contract.
        first: earliest row before which the klines are cut.
        cuts: number of random cuts.
        tolerance: relative; only the order of summation may differ between the computations.
    """
    whole = compute(klines)
    leaks: dict[str, str] = {}
    for cut in np.unique(np.random.default_rng(0).integers(first, klines.height, cuts)).tolist():
        for name, values in compute(klines.head(cut)).items():
            without, with_future = values.reshape(cut, -1), whole[name][:cut].reshape(cut, -1)
            # Sums over many rows differ in their last bits; values near zero are compared on the scale of the column.
            scale = np.nanmax(np.abs(without), initial=0.0)
            same = np.isclose(with_future, without, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
            if not same.all():
                row, column = np.argwhere(~same)[-1]
                leaks.setdefault(
                    name,
                    f"{name}: row {row} is {with_future[row, column]:.6g} with the future and "
                    f"{without[row, column]:.6g} without it (data cut before row {cut})",
                )
    return leaks


def chain(series: SeriesId, bounds: SplitBounds, readings: Mapping[str, Reading]) -> Computation:
    """Return the computation of a series' columns and window list, and of further readings of it."""

    def compute(klines: pl.DataFrame) -> dict[str, Array]:
        frame = feature_frame(klines, bounds.timeframe)
        columns = {n: frame[n].to_numpy().astype(np.float64) for n in frame.columns if n != "open_time"}
        cut = series_of(frame, series, bounds)
        columns["window list"] = cut.usable(30).astype(float)
        return columns | {name: read(cut) for name, read in readings.items()}

    return compute


def forecasts(forecast: Callable[[Series, Rows], Array]) -> Reading:
    """Return the reading of values [N, H, …] from every usable row of the test span; NaN at other rows."""

    def read(series: Series) -> Array:
        rows = np.flatnonzero(series.usable(30))
        rows = rows[rows >= series.spans["test"][0]]
        quantiles = forecast(series, rows)
        values = np.full((len(series), *quantiles.shape[1:]), np.nan)
        values[rows] = quantiles
        return values

    return read


def baseline(fit: Fit) -> Reading:
    """Return the forecasts of a baseline that is fitted on the series it is read from."""
    return forecasts(
        lambda series, rows: fit(series, series.origins("train", 30, HORIZON), HORIZON).quantiles(
            series, rows
        )
    )


def model(member: cpbmodels.Member) -> Reading:
    """Return the forecasts of a trained model."""
    return forecasts(lambda series, rows: cpbmodels.predict([member], [series], [rows])[0].quantiles)


def stops(member: cpbmodels.Member) -> Reading:
    """Return the moves touched with a chance of 5 %, by a table of extremes that is fitted on the series read."""

    def moves(series: Series, rows: Rows) -> Array:
        fitted = with_touch(member, [series], "cpu")
        (forecast,) = cpbmodels.predict([fitted], [series], [rows])
        chances = Touch(forecast.touch, np.exp(forecast.quantiles), np.ones(len(rows)))
        prices: Array = np.stack([chances.stop(0.05, side) for side in SIDES], axis=-1)
        return np.log(prices)

    return forecasts(moves)


def training_inputs(member: cpbmodels.Member) -> Reading:
    """Return the inputs of such a model's training per candle: 1 training and 2 validation origins, and the scaling."""

    def read(series: Series) -> Array:
        bank = Bank.build([series], member.options, torch.device("cpu"), torch.float32)
        task = make_task(bank, [series], MemberPlan((0,), 0, series.symbol), member.options)
        windows = np.zeros((len(series), 1))
        windows[task.train], windows[task.validation] = 1, 2
        scaling = np.concatenate([task.mean, task.inverse])
        return np.hstack([windows, np.broadcast_to(scaling, (len(series), len(scaling)))])

    return read


def stale_columns(series: Series, recomputed: Series) -> list[str]:
    """Return the columns of a stored series that differ when recomputed from its klines."""
    pairs = {name: (series.columns((name,)), recomputed.columns((name,))) for name in series.names}
    pairs |= {
        "volatility": (series.volatility, recomputed.volatility),
        "segment": (series.segments, recomputed.segments),
    }
    return [name for name, (a, b) in pairs.items() if not np.array_equal(a, b, equal_nan=True)]


def with_shuffled_features(series: Series) -> Series:
    """Return the series with the feature rows of its training and validation spans shuffled within each span.

    Targets (prices, returns) and volatility are unchanged. The features then contain no information about the targets,
    so the CRPS ratio on the unchanged test span must not be below 0.99.
    """
    random = np.random.default_rng(0)
    features = series.features.copy()
    moved = [i for i, name in enumerate(series.names) if name not in RETURNS]
    complete = np.isfinite(features).all(axis=1)
    for name in ("train", "validation"):
        first, last = series.spans[name]
        rows = first + np.flatnonzero(complete[first:last])
        features[rows[:, None], moved] = features[random.permutation(rows)[:, None], moved]
    return replace(series, features=features)


def with_shuffled_candles(series: Series) -> Series:
    """Return the series with the candles of its training and validation spans shuffled, for models that read returns.

    The target is computed from the returns, so shuffling only the features would keep information. Prices, columns of
    candles and volatility are recomputed from the shuffled log-returns; the returns of the test span are unchanged.
    """
    random = np.random.default_rng(0)
    returns = series.columns(RETURNS)
    whole = np.isfinite(returns).all(axis=1)
    for name in ("train", "validation"):
        first, last = series.spans[name]
        rows = first + np.flatnonzero(whole[first:last])
        returns[rows] = returns[random.permutation(rows)]
    moves = np.where(whole[:, None], returns, 0.0)
    # Returns of a row are relative to the close of the previous row; column 3 is the return of the close.
    close = np.cumsum(moves[:, 3])
    prices = np.exp(moves + (close - moves[:, 3])[:, None])
    names, columns, volatility = candle_columns(prices, series.segments)
    features = series.features.copy()
    features[:, [series.names.index(name) for name in names]] = columns
    return replace(series, prices=prices, features=features, volatility=volatility)


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
    exact = {f"training of {name}": training_inputs(member) for name, member in trained.items()}
    exact |= {f"baseline {name}": baseline(fit) for name, fit in fits.items()}
    first = first_cut(fold.series)
    leaks = check_lookahead(chain(fold.id, fold.bounds, exact), klines, first, 4)
    if not leaks:  # models read the same columns: a leak in them would be reported twice
        readings = {f"model {name}": model(member) for name, member in trained.items()}
        readings |= {f"stops of {name}": stops(member) for name, member in trained.items()}
        models = chain(fold.id, fold.bounds, readings)
        leaks = check_lookahead(models, klines, first, 4, FORECAST_TOLERANCE)
    _add_leaks(result, fold, leaks)
    result.trials += [_trial(spec, name, fleets[name], fold, member) for name, member in trained.items()]


def _add_leaks(result: Audit, fold: FoldSeries, leaks: Mapping[str, str]) -> None:
    if leaks:
        result.findings.append(f"{LEAK}: {'; '.join(leaks.values())} ({fold.id})")


def first_cut(series: Series) -> int:
    """Return the earliest cut: some rows into the test span, because forecasts of that span are compared."""
    start = series.spans["test"][0]
    return start + min(200, (len(series) - start) // 3)


def _train(spec: BacktestSpec, fleet: FleetSpec, fold: FoldSeries, series: Series) -> cpbmodels.Member:
    """Train in this process, because a shuffled series is not stored in a file."""
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


def trial_finding(ratio: float, n: int, verdict: str) -> str:
    """Return the interpretation of the CRPS ratio of a model trained on shuffled inputs, with n test forecasts."""
    if ratio >= MIN_RATIO_WITHOUT_SKILL:
        return "no skill, as expected"
    if n >= MIN_FORECASTS or verdict.startswith("better than"):
        return f"{LEAK}: skill from shuffled inputs"
    return "too few forecasts to be significant"
