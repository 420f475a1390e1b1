"""Look-ahead detection: compute on data cut at random times and compare with the computation on all data.

A causal value does not change when later candles are removed. Every column that changes is reported. The second method
is training on shuffled inputs (`with_shuffled_features`, `with_shuffled_candles`): a model without information that
still beats the reference must have information from the future.

`audit` applies both to a backtest.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
import torch

import cpbmodels
from cpbmodels.data.columns import RETURNS, candle_columns, feature_frame
from cpbmodels.data.series import Series
from cpbmodels.data.wide import WIDE_COLUMNS
from cpbmodels.fleet.bank import Bank, MemberPlan, make_task
from schemas.errors import count
from schemas.handover import Failure, SplitBounds
from schemas.identity import SeriesId
from schemas.run import BacktestSpec, base_of
from tasks.backtesting.folds import FoldSeries, plan_folds
from tasks.backtesting.judge import BASELINES
from tasks.judging.member import judge_member
from tasks.judging.scores import Array, Fit, Rows, ewma_walk, reference
from tasks.market.klines import read_klines
from tasks.running.parallel import tell
from tasks.signals.feature_files import series_of
from tasks.signals.splits import HORIZON
from tasks.training.trainer import train_members

LEAK = "LOOK-AHEAD"
"""Marks a finding of look-ahead in messages."""

Computation = Callable[[pl.DataFrame], Mapping[str, Array]]
"""Klines -> named arrays with a row per candle (and any further axes)."""

Forecast = Callable[[Series, Rows], Array]
"""(series, origins) -> quantiles [N, H, 19] of a trained model."""


@dataclass(frozen=True)
class Leak:
    """A column whose value at a row changes when the candles from row `cut` on are removed."""

    column: str
    row: int
    cut: int
    uncut_value: float
    cut_value: float

    def __str__(self) -> str:
        return (
            f"{self.column}: row {self.row} is {self.uncut_value:.6g} with the future and "
            f"{self.cut_value:.6g} without it (data cut before row {self.cut})"
        )


def check_lookahead(
    compute: Computation,
    klines: pl.DataFrame,
    *,
    cuts: int = 5,
    first: int | None = None,
    seed: int = 0,
    tolerance: float = 1e-7,
) -> list[Leak]:
    """Return the leaks of `compute`, at most one per column; empty if it is causal.

    Args:
        compute: the computation to check.
        klines: klines that meet the contract.
        cuts: number of random cuts.
        first: earliest cut, in rows; default: half of the data.
        seed: seed of the cuts.
        tolerance: relative; only the order of summation may differ between the computations.
    """
    whole = compute(klines)
    low = klines.height // 2 if first is None else first
    rows = np.random.default_rng(seed).integers(low, klines.height, cuts)
    found: dict[str, Leak] = {}
    for cut in sorted({int(r) for r in rows}):
        part = compute(klines.head(cut))
        for name, values in whole.items():
            leak = _difference(name, values[:cut], part[name], cut, tolerance)
            if leak and name not in found:
                found[name] = leak
    return list(found.values())


def pipeline(
    series: SeriesId,
    bounds: SplitBounds,
    baselines: Mapping[str, Fit],
    models: Mapping[str, Forecast] | None = None,
    training_inputs: Mapping[str, Callable[[Series], Array]] | None = None,
    *,
    context: int = 30,
    horizon: int = HORIZON,
) -> Computation:
    """Return the computation of the whole chain: columns, window list, fitted baselines, models' forecasts.

    Forecasts are made from every usable row of the test span. Baselines are fitted again on the data before the cut, so
    the cut must be in the test span (`first` of `check_lookahead`).

    Args:
        series: the series of the klines.
        bounds: its train, validation and test spans.
        baselines: name -> fit.
        models: name -> forecasts of a trained model.
        training_inputs: name -> array with a row per candle that holds the inputs of the model's training from the
            series: the rows with windows, and the input scaling.
        context: candles before the origin of a window in the window list.
        horizon: candles ahead.
    """

    def compute(klines: pl.DataFrame) -> dict[str, Array]:
        frame = feature_frame(klines, bounds.timeframe)
        columns = {n: frame[n].to_numpy().astype(np.float64) for n in frame.columns if n != "open_time"}
        cut = series_of(frame, series, bounds)
        train = cut.origins("train", context, horizon)
        usable = cut.usable(context)
        columns["window list"] = usable.astype(float)
        columns |= {f"training of {name}": read(cut) for name, read in (training_inputs or {}).items()}
        forecasts: dict[str, Forecast] = {
            f"baseline {name}": fit(cut, train, horizon).quantiles for name, fit in baselines.items()
        }
        forecasts |= {f"model {name}": model for name, model in (models or {}).items()}
        rows = np.flatnonzero(usable)
        rows = rows[rows >= cut.spans["test"][0]]
        return columns | {name: _aligned(forecast, cut, rows) for name, forecast in forecasts.items()}

    return compute


def stale_columns(series: Series, recomputed: Series) -> list[str]:
    """Return the columns of a stored series that differ when recomputed from its klines."""
    pairs = {name: (series.columns((name,)), recomputed.columns((name,))) for name in series.names}
    pairs |= {
        "volatility": (series.volatility, recomputed.volatility),
        "segment": (series.segments, recomputed.segments),
    }
    return [name for name, (a, b) in pairs.items() if not np.array_equal(a, b, equal_nan=True)]


def with_shuffled_features(series: Series, seed: int = 0) -> Series:
    """Return the series with the feature rows of its training and validation spans shuffled within each span.

    Targets (prices, returns) and volatility are unchanged. The features then contain no information about the targets,
    so the CRPS ratio on the unchanged test span must not be below 0.99.
    """
    random = np.random.default_rng(seed)
    features = series.features.copy()
    moved = [i for i, name in enumerate(series.names) if name not in RETURNS]
    complete = np.isfinite(features).all(axis=1)
    for name in ("train", "validation"):
        first, last = series.spans[name]
        rows = first + np.flatnonzero(complete[first:last])
        features[rows[:, None], moved] = features[random.permutation(rows)[:, None], moved]
    return replace(series, features=features)


def with_shuffled_candles(series: Series, seed: int = 0) -> Series:
    """Return the series with the candles of its training and validation spans shuffled, for models that read returns.

    The target is computed from the returns, so shuffling only the features would keep information. Prices, returns and
    volatility are recomputed from the shuffled log-returns; the returns of the test span are unchanged.
    """
    random = np.random.default_rng(seed)
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


def explain(leaks: Sequence[Leak]) -> str:
    """Return the leaks as text; "" if there are none."""
    return f"{LEAK}: " + "; ".join(str(leak) for leak in leaks) if leaks else ""


def _aligned(forecast: Forecast, series: Series, rows: Rows) -> Array:
    """Return forecasts with a row per candle; NaN for rows without a forecast."""
    quantiles = forecast(series, rows)
    values = np.full((len(series.prices), *quantiles.shape[1:]), np.nan)
    values[rows] = quantiles
    return values


def _difference(name: str, whole: Array, part: Array, cut: int, tolerance: float) -> Leak | None:
    whole, part = (x.reshape(cut, -1) for x in (whole, part))
    # Sums over many rows differ in their last bits; values near zero are compared on the scale of the column.
    size = np.nanmax(np.abs(part), initial=0.0) if part.size else 0.0
    off = ~np.isclose(whole, part, rtol=tolerance, atol=tolerance * size, equal_nan=True)
    if not off.any():
        return None
    row = int(np.flatnonzero(off.any(axis=1))[-1])
    column = int(np.flatnonzero(off[row])[0])
    return Leak(name, row, cut, float(whole[row, column]), float(part[row, column]))


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
    if stale := stale_columns(one.series, again):
        result.findings.append(f"{LEAK}: {one.id}: {', '.join(stale)} differ from what the klines give")
        return
    leaks = check_lookahead(pipeline(one.id, one.bounds, {}), klines, cuts=2, first=first_cut(one.series))
    _add_findings(result, leaks, one)


def _check_models(spec: BacktestSpec, one: FoldSeries, result: Audit) -> None:
    """Check training, baselines and forecasts of every model on a series, and train on shuffled inputs."""
    klines = _klines(spec, one)
    trained = {name: _train(spec, name, one, one.series) for name in spec.names}
    fits = {name: BASELINES[name] for name in spec.baseline_names}
    inputs = {name: training_inputs(member) for name, member in trained.items()}
    exact = pipeline(one.id, one.bounds, {"reference": ewma_walk, **fits}, training_inputs=inputs)
    first = first_cut(one.series)
    leaks = check_lookahead(exact, klines, cuts=4, first=first)
    if not leaks:  # models read the same columns: a leak in them would be reported twice
        forecasts = {name: _forecast_of(member) for name, member in trained.items()}
        chain = pipeline(one.id, one.bounds, {}, forecasts)
        leaks = check_lookahead(chain, klines, cuts=4, first=first, tolerance=FORECAST_TOLERANCE)
    _add_findings(result, leaks, one)
    result.trials += [_trial(spec, name, one, member) for name, member in trained.items()]


def _add_findings(result: Audit, leaks: Sequence[Leak], one: FoldSeries) -> None:
    if leaks:
        result.findings.append(f"{explain(leaks)} ({one.id})")


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
    shuffle = with_shuffled_candles if reads_returns else with_shuffled_features
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


def _forecast_of(member: cpbmodels.Member) -> Forecast:
    def forecaster(series: Series, origins: Rows) -> Array:
        return cpbmodels.predict([member], [series], [origins])[0].quantiles

    return forecaster
