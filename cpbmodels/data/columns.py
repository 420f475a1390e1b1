"""Causal feature columns of one series: row t knows the candles up to and including t, and nothing else.

Everything is computed inside a segment, a run of candles without a hole or a leap of the price level; the first rows of
a segment are warm-up and NaN. Ranges enter as logarithms and are winsorised, never squared: a candle may
go 3.71 -> 0.001 -> 2.94 within an hour (ATOM did).
"""

import math
from datetime import timedelta

import numpy as np
import polars as pl

from cpbmodels.data import CEILING, FLOOR, INTERVAL_SECONDS, ROLLING
from cpbmodels.data.prices import (
    CANDLE_COLUMNS,
    PRICES,
    candle_columns,
    segment_ids,
)

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
"""The feature matrix, in the order of feature files.

The first six are defined in `cpbmodels.data.prices`, the rest here.
"""

WINSOR = 8.0
"""Log-ranges are cut at so many EWMA standard deviations of one candle."""


def feature_frame(klines: pl.DataFrame, timeframe: str) -> pl.DataFrame:
    """Return every column that any architecture reads.

    Args:
        klines: candles, sorted, unique and on the grid: `open_time` (Datetime, UTC), prices and, if known, `volume`.
        timeframe: Binance interval, such as `1h`.

    Returns:
        `open_time` (UTC), `segment` (Int32), prices, `volatility` (EWMA σ of one candle's log-return) and
        the columns of `FEATURES` (Float64, NaN in the warm-up), a row per candle; without a volume there is no
        `log_volume_change`.
    """
    volume = ["volume"] if "volume" in klines.columns else []
    frame = klines.select("open_time", *PRICES, *volume)
    prices = frame.select(PRICES).to_numpy()
    steps = frame["open_time"].diff() != timedelta(seconds=INTERVAL_SECONDS[timeframe])
    segments = segment_ids(prices, steps.fill_null(False).to_numpy())
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
    return frame.select("open_time", "segment", *PRICES, *numbers)


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
