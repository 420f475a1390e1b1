"""Columns beyond those of feature files: of a coin's own longer past, and of the market. Numpy only.

They are computed from a `Series` when a model asks for them (`Series.columns`), so models that do not read them pay
nothing, and no origin is lost: a column not known yet has its neutral value, 0. Row t knows the candles up
to and including t. Ranges and returns are relative to the EWMA volatility, as in `cpbmodels.data.columns`; ranges of
longer windows and of the market are also relative to the coin's own, so that 0 means "as usual".

The market's columns need other coins: `with_market` gives each series what they all share. A series without it has
`no_market` = 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from cpbmodels.data import CEILING, FLOOR
from cpbmodels.data.columns import segment_age

if TYPE_CHECKING:
    from cpbmodels.data.series import Series

WEEK = 168  # candles: what longer ranges, slots and volumes are relative to
RANGES, LONG = (2, 48), (336, 720)
RETURNS, MARKET_RETURNS = (1, 2, 3, 6, 12, 24), (1, 3, 6, 24)
MARKET_RANGES, BITCOIN_RANGES, SPREADS = (1, 3, 6, 24, 168), (1, 3, 24), (1, 24)
SLOTS = (1, 4, 10)  # coming candles whose clock times are looked up on earlier days and weeks
VOLUMES = (1, 3, 6, 24)
MIN_COINS = 3  # in a mean over the market
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
class Market:
    """What all coins of a timeframe share: `values` [T, 14] at the open times `times` [T] (int64, µs UTC), ascending.

    The columns are `MARKET_COLUMNS`, ranges not yet relative to a coin's own; NaN where fewer than `MIN_COINS` coins
    have closed the candle.
    """

    times: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, coins: Sequence[Series]) -> Market:
        """Means over the coins that have closed each candle; at row t nothing later than candle t is read."""
        timed = [(series, series.times) for series in coins if series.times is not None]
        grid = np.unique(np.concatenate([times for _, times in timed])) if timed else np.zeros(0, np.int64)
        places = [np.searchsorted(grid, times) for _, times in timed]

        def spread_out(values: Sequence[np.ndarray]) -> np.ndarray:
            """A column of all coins on the grid: [coins, T], NaN where a coin has no candle."""
            out = np.full((len(timed), len(grid)), np.nan)
            for row, (column, place) in enumerate(zip(values, places, strict=True)):
                out[row, place] = column
            return out

        returns = {
            n: spread_out([_return(series, n) for series, _ in timed]) for n in {*MARKET_RETURNS, *SPREADS}
        }
        ranges = {
            n: spread_out([series.columns((f"log_range_mean_{n}",))[:, 0] for series, _ in timed])
            for n in {*MARKET_RANGES, *BITCOIN_RANGES}
        }
        mean = {n: _mean(values) for n, values in ranges.items()}
        bitcoin = [
            row for row, (series, _) in enumerate(timed) if series.symbol.rpartition("-")[2].startswith("BTC")
        ]
        bitcoin_ranges = {n: ranges[n][bitcoin[0]] if bitcoin else mean[n] for n in BITCOIN_RANGES}
        columns = [
            *(_mean(returns[n]) for n in MARKET_RETURNS),
            *(_logarithm(np.sqrt(_mean((returns[n] - _mean(returns[n])) ** 2))) for n in SPREADS),
            *(mean[n] for n in MARKET_RANGES),
            *(np.where(np.isfinite(bitcoin_ranges[n]), bitcoin_ranges[n], mean[n]) for n in BITCOIN_RANGES),
        ]
        return cls(grid, np.stack(columns, axis=1))

    def columns(self, series: Series) -> np.ndarray:
        """`MARKET_COLUMNS` and `NO_MARKET` at the rows of a series, [rows, 15]."""
        assert series.times is not None
        place = np.searchsorted(self.times, series.times).clip(max=max(len(self.times) - 1, 0))
        values = np.full((len(series), len(MARKET_COLUMNS)), np.nan)
        if len(self.times):
            values = np.where((self.times[place] == series.times)[:, None], self.values[place], np.nan)
        windows = (*MARKET_RANGES, *BITCOIN_RANGES)
        values[:, -len(windows) :] -= series.columns(tuple(f"log_range_mean_{n}" for n in windows))
        unknown = ~np.isfinite(values).all(axis=1, keepdims=True)
        return np.hstack([np.where(unknown, 0.0, values), unknown])


def with_market(series: Sequence[Series]) -> list[Series]:
    """The same series, each with the market that all of its timeframe make together; the candles are not copied.

    Series without times stay as they are. A model that reads columns of the market (`line`, `walk`) learns and
    forecasts better with them, and works without: see `cpbmodels.arch.line`.
    """
    markets = {
        timeframe: Market.of([coin for coin in series if coin.timeframe == timeframe])
        for timeframe in dict.fromkeys(coin.timeframe for coin in series)
    }
    return [coin if coin.times is None else replace(coin, market=markets[coin.timeframe]) for coin in series]


def wide_columns(series: Series) -> np.ndarray:
    """float64 [rows, len(WIDE_COLUMNS)], all finite."""
    market = (
        series.market.columns(series)
        if series.market is not None
        else np.hstack([np.zeros((len(series), len(MARKET_COLUMNS))), np.ones((len(series), 1))])
    )
    return np.hstack([_own(series), market, _quarter(series)[:, None]])


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
        last = rows[complete] + 1 - back
        out = np.full(len(rows), np.nan)
        out[complete] = (self.total[last] - self.total[last - count]) / count
        return out


def _own(series: Series) -> np.ndarray:
    """`OWN_COLUMNS` [rows, 21]."""
    age, sigma = segment_age(series.segments), series.volatility
    ranges = _Windows.of(series.columns(("log_range",))[:, 0], age)
    week = ranges.mean(WEEK)
    columns = [_logarithm(ranges.mean(n) / sigma) for n in RANGES]
    columns += [_logarithm(ranges.mean(n) / sigma) - _logarithm(week / sigma) for n in LONG]
    columns.append(~np.isfinite(columns[-1]))
    columns += [_return(series, n) for n in RETURNS]
    day = max(86_400 // series.step_seconds, 1)
    for backs in (range(day, 8 * day, day), range(7 * day, 35 * day, 7 * day)):
        columns += [_slot(ranges, week, n, [back for back in backs if back >= n]) for n in SLOTS]
    # Not Binance's quote volume: in candles from other sources it may be made up.
    has_volume = "log_volume_change" in series.names
    change = series.columns(("log_volume_change",))[:, 0] if has_volume else np.zeros(len(series))
    money = _Windows.of(np.cumsum(np.nan_to_num(change)) + np.log(series.prices[:, 1:].mean(axis=1)), age)
    columns += [
        has_volume * (money.mean(n) - money.mean(WEEK)).clip(-MAX_VOLUME, MAX_VOLUME) for n in VOLUMES
    ]
    return np.nan_to_num(np.stack(columns, axis=1).astype(np.float64), posinf=0.0, neginf=0.0)


def _return(series: Series, n: int) -> np.ndarray:
    """The column `return_{n}` [rows], NaN where the segment is younger."""
    closes, moved = np.log(series.prices[:, 3]), np.full(len(series), np.nan)
    moved[n:] = closes[n:] - closes[:-n]
    complete = segment_age(series.segments) >= n
    return np.where(complete, moved / (series.volatility * np.sqrt(n)), np.nan).clip(-MAX_RETURN, MAX_RETURN)


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


def _quarter(series: Series) -> np.ndarray:
    """The code of `QUARTER`: the hour of New York's clock, whose offset from UTC is whole hours, and UTC's minute."""
    if series.times is None or "hour_of_week_ny" not in series.names:
        return np.zeros(len(series))
    minute = (series.times // 60_000_000 + series.step_seconds // 60) % 60
    return np.nan_to_num(series.columns(("hour_of_week_ny",))[:, 0] % 24 * 4) + minute // 15


def _logarithm(share: np.ndarray) -> np.ndarray:
    """ln within the limits of all rolling columns."""
    return np.log(share.clip(FLOOR, CEILING))


def _mean(values: np.ndarray) -> np.ndarray:
    """Mean over the coins [C, T] that have a value; NaN where fewer than `MIN_COINS` have one."""
    held = np.isfinite(values).sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(held >= MIN_COINS, np.nansum(values, axis=0) / held, np.nan)
