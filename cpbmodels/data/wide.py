"""Columns beyond those of feature files: their names, and those of a coin's own longer past. Numpy only.

A `Series` has them computed when a model asks for them (`Series.columns`), so models that do not read them pay
nothing, and no origin is lost: a column not known yet has its neutral value, 0. Row t knows the candles up
to and including t. Ranges and returns are relative to the EWMA volatility, as in `cpbmodels.data.columns`; ranges of
longer windows and of the market are also relative to the coin's own, so that 0 means "as usual".

The market's columns need other coins: `cpbmodels.data.cross_section`. A series without one has `no_market` = 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cpbmodels.data import CEILING, FLOOR
from cpbmodels.data.columns import segment_age

WEEK = 168  # candles: what longer ranges, slots and volumes are relative to
RANGES, LONG = (2, 48), (336, 720)
RETURNS, MARKET_RETURNS = (1, 2, 3, 6, 12, 24), (1, 3, 6, 24)
MARKET_RANGES, BITCOIN_RANGES, SPREADS = (1, 3, 6, 24, 168), (1, 3, 24), (1, 24)
SLOTS = (1, 4, 10)  # coming candles whose clock times are looked up on earlier days and weeks
VOLUMES = (1, 3, 6, 24)
MAX_RETURN, MAX_VOLUME, MAX_SLOT = 6.0, 5.0, 3.0
QUARTERS_PER_DAY = 96
LOOKBACK_DAYS = 36  # of the slots; the longest range may need more

MARKET_COLUMNS: tuple[str, ...] = (
    *(f"market_return_{n}" for n in MARKET_RETURNS),
    *(f"market_spread_{n}" for n in SPREADS),
    *(f"market_range_{n}" for n in MARKET_RANGES),
    *(f"bitcoin_range_{n}" for n in BITCOIN_RANGES),
)
NO_MARKET, QUARTER = "no_market", "quarter_of_day_ny"
OWN_COLUMNS: tuple[str, ...] = (
    *(f"range_{n}" for n in (*RANGES, *LONG)),
    "no_long",
    *(f"return_{n}" for n in RETURNS),
    *(f"slot_{cycle}_{n}" for cycle in ("days", "weeks") for n in SLOTS),
    *(f"volume_{n}" for n in VOLUMES),
)
WIDE_COLUMNS = (*OWN_COLUMNS, *MARKET_COLUMNS, NO_MARKET, QUARTER)


@dataclass(frozen=True)
class _Windows:
    """Means over windows that lie in one segment."""

    total: np.ndarray  # cumulative sum, rows + 1 values
    age: np.ndarray  # candles since the segment's first

    @classmethod
    def of(cls, values: np.ndarray, age: np.ndarray) -> _Windows:
        return cls(np.concatenate([[0.0], np.cumsum(np.nan_to_num(values))]), age)

    def mean(self, count: int, back: int = 0) -> np.ndarray:
        """Mean over the `count` candles that end `back` candles before each row; NaN where the segment is younger."""
        rows = np.arange(len(self.age))
        complete = self.age >= count + back
        # total[i] sums the rows before i, so a window that ends with row i is total[i + 1] - total[i + 1 - count].
        last = rows[complete] + 1 - back
        out = np.full(len(rows), np.nan)
        out[complete] = (self.total[last] - self.total[last - count]) / count
        return out


def own_columns(
    prices: np.ndarray,
    volatility: np.ndarray,
    segments: np.ndarray,
    step_seconds: int,
    log_range: np.ndarray,
    volume_change: np.ndarray | None,
) -> np.ndarray:
    """`OWN_COLUMNS` [rows, 21], all finite, from a coin's candles alone.

    prices: [rows, 4], volatility and segments [rows], as of `Series`. log_range, volume_change: [rows], its columns
    `log_range` and `log_volume_change`; None if no volume is known. step_seconds: length of a candle.
    """
    age = segment_age(segments)
    ranges = _Windows.of(log_range, age)
    week = ranges.mean(WEEK)
    columns = [logarithm(ranges.mean(n) / volatility) for n in RANGES]
    columns += [logarithm(ranges.mean(n) / volatility) - logarithm(week / volatility) for n in LONG]
    # no_long: 0 alone could not be told from a range that is as usual.
    columns.append(~np.isfinite(columns[-1]))
    columns += [returns(prices, volatility, segments, n) for n in RETURNS]
    # The same clock time on the seven days before, and on the same weekday of the four weeks before.
    day = max(86_400 // step_seconds, 1)
    for backs in (range(day, 8 * day, day), range(7 * day, 35 * day, 7 * day)):
        columns += [_slot(ranges, week, n, [back for back in backs if back >= n]) for n in SLOTS]
    # Not Binance's quote volume: in candles from other sources it may be made up.
    has_volume = volume_change is not None
    change = np.zeros(len(prices)) if volume_change is None else volume_change
    # Changes add up to the log of the volume, up to a constant that the difference of two means takes away.
    money = _Windows.of(np.cumsum(np.nan_to_num(change)) + np.log(prices[:, 1:].mean(axis=1)), age)
    columns += [
        has_volume * (money.mean(n) - money.mean(WEEK)).clip(-MAX_VOLUME, MAX_VOLUME) for n in VOLUMES
    ]
    return np.nan_to_num(np.stack(columns, axis=1).astype(np.float64), posinf=0.0, neginf=0.0)


def returns(prices: np.ndarray, volatility: np.ndarray, segments: np.ndarray, n: int) -> np.ndarray:
    """The column `return_{n}` [rows], NaN where the segment is younger: in units of the volatility x sqrt(n)."""
    closes, moved = np.log(prices[:, 3]), np.full(len(prices), np.nan)
    moved[n:] = closes[n:] - closes[:-n]
    complete = segment_age(segments) >= n
    return np.where(complete, moved / (volatility * np.sqrt(n)), np.nan).clip(-MAX_RETURN, MAX_RETURN)


def _slot(ranges: _Windows, week: np.ndarray, count: int, backs: Sequence[int]) -> np.ndarray:
    """ln of the mean range that the coming candles' clock times had before, over that of the last week of candles.

    Of those days or weeks that the segment holds; NaN where it holds none.
    """
    means = (
        np.stack([ranges.mean(count, back - count) for back in backs])
        if backs
        else np.full((1, len(week)), np.nan)
    )
    held = np.isfinite(means).sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(np.nansum(means, axis=0) / held / week)
    return np.where(held > 0, ratio.clip(-MAX_SLOT, MAX_SLOT), np.nan)


def quarters(times: np.ndarray, step_seconds: int, hour_of_week: np.ndarray) -> np.ndarray:
    """The column `QUARTER` [rows], 0 .. 95, of the forecast's first candle, from the open times in µs UTC.

    hour_of_week: the column `hour_of_week_ny`. New York's offset from UTC is whole hours, so the minute is UTC's.
    """
    minute = (times // 60_000_000 + step_seconds // 60) % 60
    return np.nan_to_num(hour_of_week % 24 * 4) + minute // 15


def logarithm(share: np.ndarray) -> np.ndarray:
    """ln within the limits of all rolling columns."""
    return np.log(share.clip(FLOOR, CEILING))
