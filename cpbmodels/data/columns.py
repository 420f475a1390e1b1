"""Prices [rows, 4], checked, and every causal column of one series: row t knows the candles up to and including t.

Everything is computed inside a segment, a run of candles without a hole or a leap of the price level; the first rows of
a segment are warm-up and NaN. Ranges enter as logarithms and are winsorised, never squared: a candle may go
3.71 -> 0.001 -> 2.94 within an hour (ATOM did). What follows from the candle alone is numpy, the rest polars.
"""

import math
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise

import numpy as np
import polars as pl

from cpbmodels.data import CANDLE_COLUMNS, CEILING, FLOOR, INTERVAL_SECONDS, RETURNS, ROLLING, SEGMENT_JUMP
from cpbmodels.errors import ModelError

PRICES = ("open", "high", "low", "close")

MIN_PRICE, MAX_PRICE = 1e-15, 1e15
"""Bounds of a price. PEPE in BTC is 1e-10 and BTC in rial 1e11; beyond the bounds stands an error, not money."""
MAX_VOLUME = 1e30
"""Bound of a candle's volume: sums of a century's candles stay far from the end of float64."""

LAMBDA = 0.96  # EWMA decay per candle; RiskMetrics' daily 0.94 forgets too fast for hourly candles
SIGMA_WARMUP = 24  # returns in a segment before its EWMA volatility is used as an input
VOLATILITY_FLOOR = 1e-6  # a coin without trades has volatility 0, and everything is divided by it
SCALED = (*RETURNS, "abs_return")  # columns that models read divided by the origin's volatility

FEATURES: tuple[str, ...] = (
    *CANDLE_COLUMNS,
    "log_range",
    "close_location",
    "log_volume_change",
    *(f"abs_return_mean_{n}" for n in ROLLING),
    *(f"log_range_mean_{n}" for n in ROLLING),
    "hour_of_week_utc",
    "hour_of_week_ny",
)
"""The feature matrix, in the order of feature files; the first six follow from the candle alone."""

WINSOR = 8.0
"""Log-ranges are clipped at this many EWMA standard deviations of one candle."""


def check_prices(prices: np.ndarray, label: str, place: Callable[[int], str] = "row {}".format) -> np.ndarray:
    """The candles as float64 [rows, 4], or a ModelError naming the first impossible row; `place` gives its name."""
    try:
        prices = np.ascontiguousarray(prices, dtype=np.float64)
    except (TypeError, ValueError):  # numpy's sentence names neither column nor remedy
        raise ModelError(
            f"{label}: candles must be numbers, [rows, 4]; a table with times goes to Series.from_frame."
        ) from None
    if prices.ndim != 2 or prices.shape[1] != 4:
        raise ModelError(f"{label}: candles must have the shape [rows, 4], not {prices.shape}.")
    wrong = ~is_candle(prices)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise ModelError(
            f"{label}: {place(row)} is not a valid candle ({prices[row].tolist()}): prices must lie between "
            f"{MIN_PRICE:g} and {MAX_PRICE:g}, with low <= open, close <= high."
        )
    return prices


def is_candle(prices: np.ndarray) -> np.ndarray:
    """Bool [rows]: whether [rows, 4] is a possible open, high, low, close."""
    possible = ((prices >= MIN_PRICE) & (prices <= MAX_PRICE)).all(axis=1)
    inside = (prices[:, 1] >= prices.max(axis=1)) & (prices[:, 2] <= prices.min(axis=1))
    return np.asarray(possible & inside)


def candle_columns(
    prices: np.ndarray, segments: np.ndarray
) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """The columns that follow from the candle alone, and the volatility. Their only definition.

    Returns names, float64 [rows, 6] and volatility [rows]: `r_x` = ln(x_t / close_{t-1}), `abs_return` =
    |r_close|, `log_sigma` = ln EWMA volatility (NaN for a segment's first 24 returns).
    """
    age = segment_age(np.asarray(segments))
    starts = age == 0
    previous = np.concatenate([[np.nan], prices[:-1, 3]])[: len(prices)]
    returns = np.log(prices / np.where(starts, np.nan, previous)[:, None])
    volatility = ewma_volatility(returns[:, 3], starts)
    log_sigma = np.where(age >= SIGMA_WARMUP, np.log(volatility), np.nan)
    columns = np.column_stack([returns, np.abs(returns[:, 3]), log_sigma])
    return CANDLE_COLUMNS, columns, volatility


def level_leaps(opens: np.ndarray, closes: np.ndarray) -> np.ndarray:
    """Bool [rows]: whether the price level leaps between the close before and the open of a row."""
    leaps = np.zeros(len(opens), dtype=bool)
    leaps[1:] = np.abs(np.log(opens[1:] / closes[:-1])) > SEGMENT_JUMP
    return leaps


def segment_ids(prices: np.ndarray, breaks: np.ndarray) -> np.ndarray:
    """Segment ids, int64 [rows], of [rows, 4]: a segment ends before each True of `breaks` [rows] and each leap."""
    return np.cumsum(breaks | level_leaps(prices[:, 0], prices[:, 3]), dtype=np.int64)


def segment_age(segments: np.ndarray) -> np.ndarray:
    """Candles since the segment's first, int64 [rows], of the segments' ids [rows]."""
    rows = np.arange(len(segments))
    first = np.concatenate([[True], segments[1:] != segments[:-1]])[: len(rows)]
    return rows - np.maximum.accumulate(np.where(first, rows, 0))


def ewma_volatility(returns: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Bias-corrected EWMA std [rows], restarted at each True in `starts`; NaN in a segment's first row."""
    volatility = np.full(len(returns), np.nan)
    bounds = [*np.flatnonzero(starts).tolist(), len(returns)]
    for first, end in pairwise(bounds):
        if end - first > 1:
            count = np.arange(1, end - first)
            squares = _ewma(returns[first + 1 : end] ** 2) / (1 - LAMBDA**count)
            volatility[first + 1 : end] = np.maximum(np.sqrt(squares), VOLATILITY_FLOOR)
    return volatility


def _ewma(values: np.ndarray) -> np.ndarray:
    """Sum over the past of (1 - lambda) lambda^age x value, for all rows at once.

    After the pass with reach r a row sums up the last 2r values: each pass doubles how far back the sum goes. Always
    eleven passes (0.96^2048 = 5e-37 is negligible), so a row's bits do not depend on how many rows follow.
    """
    out = (1 - LAMBDA) * values
    for reach in 2 ** np.arange(11):
        out[reach:] = out[reach:] + LAMBDA ** float(reach) * out[:-reach]
    return out


def feature_frame(klines: pl.DataFrame, timeframe: str) -> pl.DataFrame:
    """Return every column that any architecture reads.

    Args:
        klines: candles, sorted, unique and on the grid: `open_time` (Datetime, UTC), prices and, if known, `volume`.
        timeframe: Binance interval, such as `1h`.

    Returns:
        `open_time` (UTC), `segment` (Int32), `still` (Boolean, `stands_still`), prices, `volatility` (EWMA σ of one
        candle's log-return) and the columns of `FEATURES` (Float64, NaN in the warm-up), a row per candle; without a
        volume there is no `log_volume_change`.
    """
    volume = ["volume"] if "volume" in klines.columns else []
    frame = klines.select("open_time", *PRICES, *volume)
    prices = frame.select(PRICES).to_numpy()
    steps = frame["open_time"].diff() != timedelta(seconds=INTERVAL_SECONDS[timeframe])
    segments = segment_ids(prices, steps.fill_null(value=False).to_numpy())
    names, columns, volatility = candle_columns(prices, segments)
    base = pl.from_numpy(np.ascontiguousarray(columns), schema=list(names), orient="row")
    frame = frame.hstack(base).with_columns(
        volatility=pl.Series(volatility), segment=pl.Series(segments, dtype=pl.Int32)
    )
    frame = frame.with_columns(_candle_shape(), _location(), *_calendar(timeframe))
    frame = frame.with_columns(_volume_change()) if volume else frame
    frame = frame.with_columns(*_rolling("abs_return"), *_rolling("log_range"))
    present = [name for name in ("volatility", *FEATURES) if name in frame.columns]
    numbers = [pl.col(name).cast(pl.Float64).fill_null(math.nan) for name in present]
    still = pl.Series("still", stands_still(prices, frame["volume"].to_numpy() if volume else None))
    return frame.select("open_time", "segment", still, *PRICES, *numbers)


def stands_still(prices: np.ndarray, volume: np.ndarray | None = None) -> np.ndarray:
    """Whether candles stand still, bool [rows]: open = high = low = close, no trade; row t knows the rows up to t.

    Exchanges and tables fill hours without a trade so. Where no volume is known (none, or 0 in every row so far), the
    candle must repeat the close before it: a table of closes alone moves although its candles are flat.

    Args:
        prices: open, high, low, close, [rows, 4].
        volume: [rows], or None if the table has none.
    """
    opens, highs, lows, closes = prices.T
    flat = (highs == lows) & (opens == closes)
    repeated = np.zeros(len(closes), dtype=bool)
    repeated[1:] = closes[1:] == closes[:-1]
    if volume is None:
        return np.asarray(flat & repeated)
    known = np.fmax.accumulate(volume) > 0
    return np.asarray(flat & (volume == 0) & (known | repeated))


def _candle_shape() -> pl.Expr:
    """ln(high / low), winsorised; null in a segment's first row, which has no volatility yet."""
    span = (pl.col("high") / pl.col("low")).log()
    limit = WINSOR * pl.col("volatility").fill_nan(None)
    return pl.when(limit.is_not_null()).then(pl.min_horizontal(span, limit)).alias("log_range")


def _location() -> pl.Expr:
    """Close within the candle on a log scale: -1 at the low, 1 at the high, 0 for a flat candle."""
    span = (pl.col("high") / pl.col("low")).log()
    place = (pl.col("close").log() * 2 - pl.col("high").log() - pl.col("low").log()) / span
    return pl.when(span > 0).then(place.clip(-1, 1)).otherwise(0.0).alias("close_location")


def _volume_change() -> pl.Expr:
    """ln of the volume against the candle before, in [-5, 5]; an idle candle after an idle candle is 0."""
    now, before = pl.col("volume"), pl.col("volume").shift(1)
    change = (now / before).log().clip(-5, 5)
    first = pl.col("segment").diff().fill_null(1) != 0
    value = pl.when((now <= 0) & (before <= 0)).then(0.0).otherwise(change)
    return pl.when(~first).then(value).alias("log_volume_change")


def _calendar(timeframe: str) -> list[pl.Expr]:
    """Hour of the week, 0 = Monday 00, at which the forecast's first candle opens, on two clocks."""
    opens = pl.col("open_time") + pl.duration(seconds=INTERVAL_SECONDS[timeframe])
    clocks = {"hour_of_week_utc": opens, "hour_of_week_ny": opens.dt.convert_time_zone("America/New_York")}
    return [
        ((t.dt.weekday().cast(pl.Int32) - 1) * 24 + t.dt.hour().cast(pl.Int32)).alias(name)
        for name, t in clocks.items()
    ]


def _rolling(column: str) -> list[pl.Expr]:
    """ln(mean over the last n candles / σ): free of scale, between ln FLOOR and ln CEILING."""
    # A segment's first row is null in both columns, and a mean over any null is null: so no window crosses
    # a border, without the cost of grouping by segment.
    value, sigma = pl.col(column).fill_nan(None), pl.col("volatility").fill_nan(None)
    return [
        (value.rolling_mean(n) / sigma).clip(FLOOR, CEILING).log().alias(f"{column}_mean_{n}")
        for n in ROLLING
    ]
