"""Simulated trading on the forecasts (long, flat or short, with costs). An illustration.

Never used to choose or promote a model: the 95 % interval of a Sharpe ratio over four months is about ±3.4.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpbmodels.data.series import Series
from tasks.judging import inference
from tasks.judging.baselines import realised
from tasks.judging.scores import BANDS, MEDIAN, Array

COST = 0.0015
"""Cost per trade as a share of the traded amount: 0.10 % taker fee and 0.05 % slippage."""

MIN_EQUITY = 1e-6
"""Minimum share of the equity left after a candle, so that its logarithm stays finite."""

MIN_SPREAD = 1e-9
"""Minimum width of the 80 % band, in log-return, as divisor of the median."""

FULL_POSITION = 0.25
"""Median divided by the width of the 80 % band at which the position is the whole equity."""

YEAR_US = 365.25 * 86_400e6
"""Microseconds of a year."""


@dataclass(frozen=True)
class BacktestPnL:
    """Profit and loss of trading the forecasts and of buy-and-hold, including the costs of every entry and exit.

    `equity`, `hold`: cumulative log-returns [N] at `times` (µs UTC). `figures`: per year of 365.25 days, names
    prefixed by `strategy_` and `hold_`.
    """

    times: NDArray[np.int64]
    equity: Array
    hold: Array
    figures: dict[str, float]


def simulate_trading(
    series: Series,
    origins: NDArray[np.int64],
    quantiles: Array,
    *,
    cost: float = COST,
    max_position: float = 1.0,
) -> BacktestPnL:
    """Trade one candle ahead from each origin and compare with buy-and-hold over the same candles.

    The position is proportional to the forecast median divided by the width of the forecast's 80 % band, opened at the
    origin's close, held for one candle and clipped to ±`max_position`; a median within the costs of a round trip means
    no position. Before a missing origin (a gap) and at the end the position is closed, at the usual cost. Buy-and-hold
    pays once for the entry and once for the exit.

    Args:
        series: the forecast series.
        origins: int64 [N], ascending.
        quantiles: [N, H, 19]; only the first step is used.
        cost: cost per trade as a share of the traded amount.
        max_position: largest position, as a share of the equity.
    """
    median = quantiles[:, 0, MEDIAN]
    low, high = BANDS[80]
    spread = np.maximum(quantiles[:, 0, high] - quantiles[:, 0, low], MIN_SPREAD)
    wanted = np.clip(median / spread / FULL_POSITION, -max_position, max_position)
    position = np.where(np.abs(median) > 2 * cost, wanted, 0.0)
    moves = np.expm1(realised(series, origins, 1)[:, 0])
    traded = _traded(position, np.diff(origins) == 1)
    returns = _returns(position, moves, traded, cost)
    held = np.ones(len(origins))
    hold = _returns(held, moves, _traded(held, np.ones(max(len(origins) - 1, 0), dtype=bool)), cost)
    times = series.times[origins] if series.times is not None else origins
    per_year = YEAR_US / float(np.median(np.diff(times))) if len(times) > 1 else 1.0
    figures = {f"strategy_{k}": v for k, v in _figures(returns, per_year).items()}
    figures |= {f"hold_{k}": v for k, v in _figures(hold, per_year).items()}
    figures["turnover_per_year"] = float(traded.mean() * per_year)
    figures["exposure"] = float(np.abs(position).mean())
    return BacktestPnL(times, np.cumsum(returns), np.cumsum(hold), figures)


def _traded(position: Array, joined: NDArray[np.bool_]) -> Array:
    """Return the amount traded [N] for each candle, as a share of the equity.

    `joined` [N - 1]: whether the next origin is the next candle, so that the position stays open.
    """
    if not len(position):
        return position
    # position at the start of the candle
    before = np.concatenate([[0.0], np.where(joined, position[:-1], 0.0)])
    closed = np.concatenate([~joined, [True]])  # whether the position is closed at the end of the candle
    return np.abs(position - before) + np.where(closed, np.abs(position), 0.0)


def _returns(position: Array, moves: Array, traded: Array, cost: float) -> Array:
    """Return the log-returns [N] of the equity from the asset's simple returns `moves`."""
    return np.log(np.maximum(1 + position * moves - cost * traded, MIN_EQUITY))


def _figures(returns: Array, per_year: float) -> dict[str, float]:
    equity = np.concatenate([[0.0], np.cumsum(returns)])
    low, high = _sharpe_interval(returns, per_year)
    return {
        "return": float(returns.sum()),
        "volatility": float(returns.std() * np.sqrt(per_year)),
        "sharpe": _sharpe(returns.mean(), (returns**2).mean(), per_year),
        "sharpe_low": low,
        "sharpe_high": high,
        "drawdown": float((np.maximum.accumulate(equity) - equity).max()),
    }


def _sharpe(mean: float, square: float, per_year: float) -> float:
    spread = np.sqrt(max(square - mean**2, 0.0))
    return float(mean / spread * np.sqrt(per_year)) if spread > 0 else 0.0


def _sharpe_interval(returns: Array, per_year: float) -> tuple[float, float]:
    """Return the 95 % interval of the Sharpe ratio by a bootstrap over blocks of √n candles."""
    length = inference.block_length(1, len(returns))
    ids = np.arange(len(returns)) // length
    counts, sums, squares = (np.bincount(ids, w) for w in (np.ones_like(returns), returns, returns**2))
    weights = inference.bootstrap_weights(len(counts))
    n = weights @ counts
    means, spread = weights @ sums / n, weights @ squares / n
    return inference.interval(np.array([_sharpe(m, s, per_year) for m, s in zip(means, spread, strict=True)]))
