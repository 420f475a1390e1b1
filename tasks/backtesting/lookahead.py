"""Look-ahead detection: compute on data cut at random times and compare with the computation on all data.

A causal value does not change when later candles are removed. Every column that changes is reported.
"""

from collections.abc import Callable, Mapping

import numpy as np
import polars as pl
import torch

import cpbmodels
from cpbmodels.data import HORIZON
from cpbmodels.data.chances import Chances
from cpbmodels.data.columns import feature_frame
from cpbmodels.data.extremes import SIDES
from cpbmodels.data.series import Series
from cpbmodels.fleet.bank import Bank, MemberPlan, make_task
from cpbmodels.fleet.extremes import with_extremes
from cpbmodels.fleet.member import doubled
from schemas.handover import SplitBounds
from schemas.identity import SeriesId
from tasks.judging.baselines import Fit, step_scale
from tasks.judging.scores import Array, Rows
from tasks.signals.feature_files import series_of

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
    # At random, as a leak of any length (a centred window, a shifted column) shows at every cut, near its edge.
    whole = compute(klines)
    leaks: dict[str, str] = {}
    for cut in np.unique(np.random.default_rng(0).integers(first, klines.height, cuts)).tolist():
        for name, values in compute(klines.head(cut)).items():
            without, with_future = values.reshape(cut, -1), whole[name][:cut].reshape(cut, -1)
            # Sums over many rows differ in their last bits; values near zero are compared on the scale of the column.
            scale = np.nanmax(np.abs(without), initial=0.0)
            same = np.isclose(with_future, without, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
            if not same.all():
                # The last row that differs: a leak shows at the cut, where the future begins, and this row is
                # nearest to it.
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
        # Every usable row, not only origins with all targets: the newest rows of a cut have no targets, and a leak
        # would be there.
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

    def moves(chances: Chances, _: Array) -> Array:
        prices: Array = np.stack([chances.stop(0.05, side) for side in SIDES], axis=-1)
        return np.log(prices)

    return _of_chances(member, moves)


def firsts(member: cpbmodels.Member) -> Reading:
    """Return the chances that a target two of the walk's scales above the close, or a stop one below, comes first."""
    # NaN where the price has stood still so long that both lie at the close.
    return _of_chances(member, lambda chances, unit: chances.first_or_nan(np.exp(2 * unit), np.exp(-unit)))


def _of_chances(member: cpbmodels.Member, read: Callable[[Chances, Array], Array]) -> Reading:
    """Return what is read from chances by a table that is fitted on the series, and the walk's last scale [N]."""
    # The table counts and rounds: a difference in a forecast's last float32 digit could change a stop by .05 %.
    member = doubled(member)

    def values(series: Series, rows: Rows) -> Array:
        fitted = with_extremes(member, [series], "cpu")
        (forecast,) = cpbmodels.predict([fitted], [series], [rows])
        chances = Chances(forecast.extremes, np.exp(forecast.quantiles), np.ones(len(rows)))
        return read(chances, step_scale(series, rows, member.horizon)[:, -1])

    return forecasts(values)


def training_inputs(member: cpbmodels.Member) -> Reading:
    """Return the inputs of such a model's training per candle: 1 training and 2 validation origins, and the scaling."""

    def read(series: Series) -> Array:
        # By the trainer's own functions: a copy of their rules would prove the copy.
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


def first_cut(series: Series) -> int:
    """Return the earliest cut: some rows into the test span, because forecasts of that span are compared."""
    start = series.spans["test"][0]
    return start + min(200, (len(series) - start) // 3)
