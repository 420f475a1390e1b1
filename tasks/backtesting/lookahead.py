"""Look-ahead detection: compute on data cut at random times and compare with the computation on all data.

A causal value does not change when later candles are removed. Every column that changes is reported. The second method
is training on shuffled inputs (`with_shuffled_features`, `with_shuffled_candles`): a model without information that
still beats the reference must have information from the future.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from cpbmodels.data.columns import RETURNS, candle_columns, feature_frame
from cpbmodels.data.series import Series
from schemas.handover import SplitBounds
from schemas.identity import SeriesId
from tasks.judging.baselines import Fit, Rows
from tasks.judging.scores import Array
from tasks.signals.feature_files import series_of
from tasks.signals.splits import HORIZON

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
