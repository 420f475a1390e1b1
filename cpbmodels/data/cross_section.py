"""What the coins of a timeframe have in common at each candle: a cross-section of the market. Numpy only.

Mean returns, their spread, mean ranges and Bitcoin's, as columns that a series with a cross-section has beside its own
(`cpbmodels.data.wide`). Row t knows the candles up to and including t.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from cpbmodels.data.wide import (
    BITCOIN_RANGES,
    MARKET_COLUMNS,
    MARKET_RANGES,
    MARKET_RETURNS,
    SPREADS,
    logarithm,
)

MIN_COINS = 3  # in a mean over the coins: of two, one coin alone would decide half of it
RETURN_LENGTHS = (*MARKET_RETURNS, *(n for n in SPREADS if n not in MARKET_RETURNS))
RANGE_LENGTHS = (*MARKET_RANGES, *BITCOIN_RANGES)
"""Candles in the windows of its columns of ranges, in their order; some lengths stand there twice."""


@dataclass(frozen=True)
class CoinMoves:
    """What a cross-section reads of one coin, by the length of the window: arrays [rows], NaN where not known yet.

    Each is computed when it is asked for: those of all coins and lengths at once would double the memory.

    times: int64 [rows], open times in µs UTC, ascending.
    returns: of `RETURN_LENGTHS`, in units of the coin's volatility (`cpbmodels.data.wide.returns`).
    ranges: of `RANGE_LENGTHS`, the columns `log_range_mean_{n}`.
    """

    times: np.ndarray
    returns: Callable[[int], np.ndarray]
    ranges: Callable[[int], np.ndarray]
    is_bitcoin: bool


@dataclass(frozen=True)
class CrossSection:
    """What all coins of a timeframe share: `values` [T, 14] at the open times `times` [T] (int64, µs UTC), ascending.

    The columns are `MARKET_COLUMNS`, ranges not yet relative to a coin's own; NaN where fewer than `MIN_COINS` coins
    have closed the candle.
    """

    times: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, coins: Sequence[CoinMoves]) -> CrossSection:
        """Means over the coins that have closed each candle; at row t nothing later than candle t is read."""
        grid = np.unique(np.concatenate([coin.times for coin in coins])) if coins else np.zeros(0, np.int64)
        places = [np.searchsorted(grid, coin.times) for coin in coins]

        def spread_out(values: Sequence[np.ndarray]) -> np.ndarray:
            """A column of all coins on the grid: [coins, T], NaN where a coin has no candle."""
            out = np.full((len(coins), len(grid)), np.nan)
            for row, (column, place) in enumerate(zip(values, places, strict=True)):
                out[row, place] = column
            return out

        returns = {n: spread_out([coin.returns(n) for coin in coins]) for n in RETURN_LENGTHS}
        ranges = {n: spread_out([coin.ranges(n) for coin in coins]) for n in set(RANGE_LENGTHS)}
        mean = {n: _mean(values) for n, values in ranges.items()}
        # Bitcoin leads the others. Without it, and where it has no candle, the mean stands for it: no column is lost.
        bitcoin = [row for row, coin in enumerate(coins) if coin.is_bitcoin]
        bitcoin_ranges = {n: ranges[n][bitcoin[0]] if bitcoin else mean[n] for n in BITCOIN_RANGES}
        columns = [
            *(_mean(returns[n]) for n in MARKET_RETURNS),
            *(logarithm(np.sqrt(_mean((returns[n] - _mean(returns[n])) ** 2))) for n in SPREADS),
            *(mean[n] for n in MARKET_RANGES),
            *(np.where(np.isfinite(bitcoin_ranges[n]), bitcoin_ranges[n], mean[n]) for n in BITCOIN_RANGES),
        ]
        return cls(grid, np.stack(columns, axis=1))

    def columns(self, times: np.ndarray, own_ranges: np.ndarray) -> np.ndarray:
        """`MARKET_COLUMNS` and `NO_MARKET` of a coin at its open times [rows], [rows, 15].

        own_ranges: the coin's columns `log_range_mean_{n}` of `RANGE_LENGTHS`, [rows, 8].
        """
        place = np.searchsorted(self.times, times).clip(max=max(len(self.times) - 1, 0))
        values = np.full((len(times), len(MARKET_COLUMNS)), np.nan)
        if len(self.times):
            values = np.where((self.times[place] == times)[:, None], self.values[place], np.nan)
        # Ranges stand last. Relative to the coin's own, 0 means "as wide as the others'".
        values[:, -len(RANGE_LENGTHS) :] -= own_ranges
        # A row is known as a whole or not at all: a model replaces all of its columns by one forecast (`arch.line`).
        unknown = ~np.isfinite(values).all(axis=1, keepdims=True)
        return np.hstack([np.where(unknown, 0.0, values), unknown])


def _mean(values: np.ndarray) -> np.ndarray:
    """Mean over the coins [C, T] that have a value; NaN where fewer than `MIN_COINS` have one."""
    held = np.isfinite(values).sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(held >= MIN_COINS, np.nansum(values, axis=0) / held, np.nan)
