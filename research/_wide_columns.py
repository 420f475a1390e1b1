"""Columns beyond those of `cpbmodels.data.columns`, each causal: what `research.columns` tries.

A row is a candle; row t knows the candles up to and including t, and a column that is unknown there is NaN. Ranges and
returns are relative to the EWMA volatility, as the rolling columns of `cpbmodels.data.columns`; a market's or a longer
window's range is relative to the coin's own or shorter one, so that 0 is the neutral value of every column.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from cpbmodels.data.columns import CEILING, FLOOR, WINSOR
from cpbmodels.data.series import Series
from tasks.judging.scores import Array

RANGES, LONG, WEEK = (2, 48), (336, 720), 168
RETURNS, MARKET_RETURNS = (1, 2, 3, 6, 12, 24), (1, 3, 6, 24)
MARKET_RANGES, BITCOIN_RANGES, SPREADS = (1, 3, 6, 24, 168), (1, 3, 24), (1, 24)
SLOTS = (1, 4, 10)  # coming candles whose clock times are looked up on earlier days and weeks
VOLUMES = (1, 3, 6, 24)
FINER = (2, 4, 12, 24, 96)  # candles of a quarter of an hour
LEAST = 3  # coins in a mean over the market
MAX_RETURN, MAX_VOLUME, MAX_SLOT = 6.0, 5.0, 3.0
BITCOIN = "BTCUSDT"

OWN = {
    "ranges": tuple(f"range_{n}" for n in RANGES),
    "long": tuple(f"range_{n}" for n in LONG),
    "returns": tuple(f"return_{n}" for n in RETURNS),
    "slots": tuple(f"slot_{cycle}_{n}" for cycle in ("days", "weeks") for n in SLOTS),
    "volume": tuple(f"volume_{n}" for n in VOLUMES),
}
MARKET = {
    "market returns": tuple(f"market_return_{n}" for n in MARKET_RETURNS),
    "market ranges": tuple(f"market_range_{n}" for n in MARKET_RANGES),
    "spread": tuple(f"market_spread_{n}" for n in SPREADS),
    "bitcoin": tuple(f"bitcoin_range_{n}" for n in BITCOIN_RANGES),
}
SUB_CANDLES = {
    "finer": (
        *(f"quarter_{n}" for n in range(4)),
        *(f"finer_{kind}_{n}" for kind in ("range", "return") for n in FINER),
    )
}

Columns = dict[str, Array]
Index = NDArray[np.int64]


@dataclass(frozen=True)
class Windows:
    """A column that knows how far back its segment reaches: means over windows that lie in one segment."""

    total: Array  # cumulative sum, one longer than the rows
    age: Index  # candles since the segment's first

    @classmethod
    def of(cls, values: Array, age: Index) -> "Windows":
        return cls(np.concatenate([[0.0], np.cumsum(np.nan_to_num(values))]), age)

    def mean(self, count: int, back: int = 0) -> Array:
        """Mean over the `count` candles that end `back` candles before each row; NaN where the segment is younger."""
        rows = np.arange(len(self.age))
        known = self.age >= count + back
        last = rows[known] + 1 - back
        out = np.full(len(rows), np.nan)
        out[known] = (self.total[last] - self.total[last - count]) / count
        return out


def own_columns(series: Series, volume: Array) -> Columns:
    """What follows from a coin's own candles."""
    age, sigma, closes = _age(series.segments), series.volatility, np.log(series.prices[:, 3])
    ranges = Windows.of(series.columns(("log_range",))[:, 0], age)
    week = ranges.mean(WEEK)
    out = {f"range_{n}": relative(ranges.mean(n), sigma) for n in RANGES}
    out |= {f"range_{n}": relative(ranges.mean(n), sigma) - relative(week, sigma) for n in LONG}
    for n in RETURNS:
        moved = np.full(len(closes), np.nan)
        moved[n:] = closes[n:] - closes[:-n]
        value = np.where(age >= n, moved / (sigma * np.sqrt(n)), np.nan)
        out[f"return_{n}"] = value.clip(-MAX_RETURN, MAX_RETURN)
    day = 86_400 // series.step_seconds
    for cycle, backs in (("days", range(day, 8 * day, day)), ("weeks", range(7 * day, 35 * day, 7 * day))):
        out |= {f"slot_{cycle}_{n}": _slot(ranges, week, n, backs) for n in SLOTS}
    # Binance's quote volume is not used: in candles from other sources it may be made up.
    traded = np.log(np.maximum(volume * series.prices[:, 1:].mean(axis=1), 1.0))
    money = Windows.of(traded, age)
    for n in VOLUMES:
        out[f"volume_{n}"] = (money.mean(n) - money.mean(WEEK)).clip(-MAX_VOLUME, MAX_VOLUME)
    return out


def _slot(ranges: Windows, week: Array, count: int, backs: range) -> Array:
    """ln of the mean range that the coming candles' clock times had before, over that of the last week of candles.

    Of those days or weeks that the segment holds; NaN where it holds none.
    """
    found = np.stack([ranges.mean(count, back - count) for back in backs])
    held = np.isfinite(found).sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(np.nansum(found, axis=0) / held / week)
    return np.where(held > 0, ratio.clip(-MAX_SLOT, MAX_SLOT), np.nan)


def quarter_of_day(series: Series) -> Index:
    """Quarter of the day 0 .. 95 at which the candle after each row opens, on the clock of New York."""
    assert series.times is not None
    opens = pl.Series(series.times + series.step_seconds * 1_000_000).cast(pl.Datetime("us", "UTC"))
    clock = opens.dt.convert_time_zone("America/New_York").dt
    return (clock.hour().cast(pl.Int64) * 4 + clock.minute().cast(pl.Int64) // 15).to_numpy()


def market_columns(coins: Mapping[str, tuple[Series, Columns]]) -> dict[str, Columns]:
    """Means over all coins that have closed the candle (NaN where fewer than three), by coin."""
    grid = np.unique(np.concatenate([_times(one) for one, _ in coins.values()]))
    at = {name: np.searchsorted(grid, _times(one)) for name, (one, _) in coins.items()}

    def spread_out(column: str) -> Array:
        values = np.full((len(coins), len(grid)), np.nan)
        for row, (name, (one, own)) in enumerate(coins.items()):
            values[row, at[name]] = own[column] if column in own else one.columns((column,))[:, 0]
        return values

    market = {f"market_return_{n}": _mean(spread_out(f"return_{n}")) for n in MARKET_RETURNS}
    for n in SPREADS:
        values = spread_out(f"return_{n}")
        market[f"market_spread_{n}"] = relative(
            np.sqrt(_mean((values - _mean(values)) ** 2)), np.ones(len(grid))
        )
    ranges = {f"market_range_{n}": (_mean(spread_out(f"log_range_mean_{n}")), n) for n in MARKET_RANGES}
    for n in BITCOIN_RANGES:
        values = np.full(len(grid), np.nan)
        if BITCOIN in coins:
            values[at[BITCOIN]] = coins[BITCOIN][0].columns((f"log_range_mean_{n}",))[:, 0]
        ranges[f"bitcoin_range_{n}"] = (values, n)
    found: dict[str, Columns] = {}
    for name, (one, _) in coins.items():
        found[name] = {column: values[at[name]] for column, values in market.items()}
        for column, (values, n) in ranges.items():
            found[name][column] = values[at[name]] - one.columns((f"log_range_mean_{n}",))[:, 0]
    return found


def finer_columns(hours: Series, quarters: Series) -> Columns:
    """What the 15m candles inside and before each hour say; NaN where the last day of them is not whole."""
    last = _times(hours) + 45 * 60 * 1_000_000  # the quarter that closes with the hour
    at = np.searchsorted(_times(quarters), last).clip(max=len(quarters) - 1)
    age, sigma = _age(quarters.segments), hours.volatility / 2  # of a quarter: sqrt(1 / 4) of the hour's
    known = (_times(quarters)[at] == last) & (age[at] > max(FINER))
    limit = np.where(np.isfinite(quarters.volatility), WINSOR * quarters.volatility, np.inf)
    ranges = np.minimum(np.log(quarters.prices[:, 1] / quarters.prices[:, 2]), limit)
    moves = np.minimum(quarters.columns(("abs_return",))[:, 0], limit)
    out = {f"quarter_{n}": relative(ranges[(at - 3 + n).clip(min=0)], sigma) for n in range(4)}
    for kind, values in (("range", ranges), ("return", moves)):
        windows = Windows.of(values, age)
        out |= {f"finer_{kind}_{n}": relative(windows.mean(n)[at], sigma) for n in FINER}
    return {name: np.where(known, values, np.nan) for name, values in out.items()}


def relative(mean: Array, sigma: Array) -> Array:
    """ln(mean / sigma), within the limits of all rolling columns."""
    return np.log((mean / sigma).clip(FLOOR, CEILING))


def _mean(values: Array) -> Array:
    """Mean over the coins [C, times] that have a value; NaN where fewer than `LEAST` have one."""
    held = np.isfinite(values).sum(axis=0)
    return np.where(held >= LEAST, np.nansum(values, axis=0) / np.maximum(held, 1), np.nan)


def _age(segments: Index) -> Index:
    rows = np.arange(len(segments))
    first = np.concatenate([[True], segments[1:] != segments[:-1]])[: len(segments)]
    return rows - np.maximum.accumulate(np.where(first, rows, 0))


def _times(series: Series) -> Index:
    assert series.times is not None
    return series.times
