"""Does anything know the future? Compute it on data cut at random times and compare with the uncut run.

What is causal does not change when later candles are taken away. Whatever changes is named.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from cpbmodels.series import RETURNS, Series, candle_columns
from tasks.judging.baselines import Fit, Rows
from tasks.judging.scores import Array
from tasks.signals.columns import feature_frame
from tasks.signals.splits import SplitBounds
from tasks.signals.store import series_of

Computation = Callable[[pl.DataFrame], Mapping[str, Array]]
"""Klines -> named arrays with a row per candle (further axes are free)."""

Forecaster = Callable[[Series, Rows], Array]
"""(series, origins) -> quantiles [N, H, 19] of a trained model."""


@dataclass(frozen=True)
class Leak:
    """A column whose value at a row changes when later candles are removed."""

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
    """Return the leaks of `compute`, one per column at most; empty where it is causal.

    Args:
        compute: what is examined.
        klines: contract klines.
        cuts: number of random cuts.
        first: earliest cut, in rows; default: half of the data.
        seed: of the cuts.
        tolerance: relative; only the order of summation may differ between the runs.
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


def feature_columns(timeframe: str) -> Computation:
    """Return the computation of all feature columns, the volatility and the segments."""

    def compute(klines: pl.DataFrame) -> dict[str, Array]:
        frame = feature_frame(klines, timeframe).drop("open_time")
        return {name: frame[name].to_numpy().astype(np.float64) for name in frame.columns}

    return compute


def pipeline(
    bounds: SplitBounds,
    baselines: Mapping[str, Fit],
    models: Mapping[str, Forecaster] | None = None,
    learnt: Mapping[str, Callable[[Series], Array]] | None = None,
    *,
    context: int = 30,
    horizon: int = 10,
) -> Computation:
    """Return the computation of the whole chain: columns, window list, fitted baselines, models' forecasts.

    Forecasts are those of every usable row of the test span. Baselines are fitted anew on what the cut
    leaves, so the cut must lie in the test span (`first` of `check_lookahead`). `learnt` says what each model learns
    from, an array with a row per candle of the series and its spans: its windows, its scaling.
    """

    def compute(klines: pl.DataFrame) -> dict[str, Array]:
        frame = feature_frame(klines, bounds.timeframe)
        columns = {n: frame[n].to_numpy().astype(np.float64) for n in frame.columns if n != "open_time"}
        series = series_of(frame, bounds)
        train = series.origins("train", context, horizon)
        usable = series.usable(context)
        columns["window list"] = usable.astype(float)
        columns |= {f"training of {name}": tell(series) for name, tell in (learnt or {}).items()}
        forecasters: dict[str, Forecaster] = {
            f"baseline {name}": fit(series, train, horizon).quantiles for name, fit in baselines.items()
        }
        forecasters |= {f"model {name}": model for name, model in (models or {}).items()}
        rows = np.flatnonzero(usable)
        rows = rows[rows >= series.spans["test"][0]]
        return columns | {n: _aligned(f, series, rows) for n, f in forecasters.items()}

    return compute


def stale_columns(series: Series, klines: pl.DataFrame, bounds: SplitBounds) -> list[str]:
    """Return the columns of a stored series that are not what its klines give: they were changed on the way."""
    again = series_of(feature_frame(klines, bounds.timeframe), bounds)
    pairs = {name: (series.columns((name,)), again.columns((name,))) for name in series.names}
    pairs |= {
        "volatility": (series.volatility, again.volatility),
        "segment": (series.segments, again.segments),
    }
    return [name for name, (a, b) in pairs.items() if not np.array_equal(a, b, equal_nan=True)]


def shuffled(series: Series, seed: int = 0) -> Series:
    """Return the series with its training and validation features dealt out anew among the rows.

    Targets (prices, returns) and volatility stay. What a model learns from it is worth nothing, so on the
    untouched test span its ratio must not fall under 0.99: else something other than features tells it.
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


def reordered(series: Series, seed: int = 0) -> Series:
    """Return the series with its training and validation candles dealt out in another order, for models of returns.

    Prices, returns and volatility are made anew from the candles' log-returns: what was to be learnt about the next
    candles is gone, whatever it was. The test span's returns stay.
    """
    random = np.random.default_rng(seed)
    returns = series.columns(RETURNS)
    whole = np.isfinite(returns).all(axis=1)
    for name in ("train", "validation"):
        first, last = series.spans[name]
        rows = first + np.flatnonzero(whole[first:last])
        returns[rows] = returns[random.permutation(rows)]
    moves = np.where(whole[:, None], returns, 0.0)
    close = np.cumsum(moves[:, 3])
    prices = np.exp(moves + (close - moves[:, 3])[:, None])
    names, columns, volatility = candle_columns(prices, series.segments)
    features = series.features.copy()
    features[:, [series.names.index(name) for name in names]] = columns
    return replace(series, prices=prices, features=features, volatility=volatility)


def _aligned(forecast: Forecaster, series: Series, rows: Rows) -> Array:
    quantiles = forecast(series, rows)
    values = np.full((len(series.prices), *quantiles.shape[1:]), np.nan)
    values[rows] = quantiles
    return values


def _difference(name: str, whole: Array, part: Array, cut: int, tolerance: float) -> Leak | None:
    whole, part = (x.reshape(cut, -1) for x in (whole, part))
    # Sums over many rows differ in their last bits; what is near zero is measured against the column's size.
    size = np.nanmax(np.abs(part), initial=0.0) if part.size else 0.0
    off = ~np.isclose(whole, part, rtol=tolerance, atol=tolerance * size, equal_nan=True)
    if not off.any():
        return None
    row = int(np.flatnonzero(off.any(axis=1))[-1])
    column = int(np.flatnonzero(off[row])[0])
    return Leak(name, row, cut, float(whole[row, column]), float(part[row, column]))


def explain(leaks: Sequence[Leak]) -> str:
    """Return the leaks as text; "" where there is none."""
    return "LOOK-AHEAD: " + "; ".join(str(leak) for leak in leaks) if leaks else ""
