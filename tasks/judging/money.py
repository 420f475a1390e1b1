"""Money, soberly: a long/flat/short account traded from the forecasts, with costs. An illustration.

Never used to choose or promote a model: a Sharpe ratio of four months has an interval from despair to glory.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpbmodels.series import Series
from tasks.judging import inference
from tasks.judging.baselines import realised
from tasks.judging.scores import MEDIAN, Array

COST = 0.0015
"""Of what is traded, one way: 0.10 % taker fee and 0.05 % slippage."""

RUIN = 1e-6
"""Share of the account that is always left, so that its logarithm stays finite."""

YEAR_US = 365.25 * 86_400e6


@dataclass(frozen=True)
class Account:
    """What trading the forecasts would have done, every entry and exit paid. Returns are the account's log-returns;
    yearly figures on 365 days."""

    times: NDArray[np.int64]
    equity: Array
    hold: Array
    figures: dict[str, float]

    def as_text(self) -> str:
        """Return the account in words, beside buying and holding."""
        f = self.figures
        own, hold = (
            f"return {math.expm1(f[f'{who}_return']):+.1%}, volatility {f[f'{who}_volatility']:.0%} a year, "
            f"Sharpe ratio {f[f'{who}_sharpe']:.2f} [{f[f'{who}_sharpe_low']:.2f}, {f[f'{who}_sharpe_high']:.2f}], "
            f"drawdown {-math.expm1(-f[f'{who}_drawdown']):.1%}"
            for who in ("strategy", "hold")
        )
        traded = f"turnover {f['turnover_per_year']:.0f} times the account a year"
        return f"an illustration, never used to choose a model. {own}, {traded}; buy and hold: {hold}"


def trade(
    series: Series, origins: NDArray[np.int64], quantiles: Array, *, cost: float = COST, most: float = 1.0
) -> Account:
    """Trade one candle ahead from each origin and compare with buy-and-hold over the same candles.

    The position is the forecast median over the forecast's own spread (80 % band), taken at the origin's close, held
    for one candle and clipped to ±`most` of the account; a median within the costs of a round trip is no position.
    Before a missing origin (a hole) and at the end it is closed, at the usual cost. Buying and holding pays once on
    either side.

    Args:
        series: the series that was forecast.
        origins: int64 [N], ascending.
        quantiles: [N, H, 19]; only the first step is used.
        cost: of the traded amount, one way.
        most: largest position as a share of the account.
    """
    median = quantiles[:, 0, MEDIAN]
    spread = np.maximum(quantiles[:, 0, 17] - quantiles[:, 0, 1], 1e-9)
    position = np.where(np.abs(median) > 2 * cost, np.clip(median / spread * 4, -most, most), 0.0)
    moves = np.expm1(realised(series, origins, 1)[:, 0])
    traded = _traded(position, np.diff(origins) == 1)
    returns = _returns(position, moves, traded, cost)
    always = np.ones(len(origins))
    hold = _returns(always, moves, _traded(always, np.ones(max(len(origins) - 1, 0), dtype=bool)), cost)
    times = series.times[origins] if series.times is not None else origins
    per_year = YEAR_US / float(np.median(np.diff(times))) if len(times) > 1 else 1.0
    figures = {f"strategy_{k}": v for k, v in _figures(returns, per_year).items()}
    figures |= {f"hold_{k}": v for k, v in _figures(hold, per_year).items()}
    figures["turnover_per_year"] = float(traded.mean() * per_year)
    figures["exposure"] = float(np.abs(position).mean())
    return Account(times, np.cumsum(returns), np.cumsum(hold), figures)


def _traded(position: Array, joined: NDArray[np.bool_]) -> Array:
    """Return what is bought and sold [N] for each candle; `joined` [N - 1]: is the next origin the next candle?"""
    if not len(position):
        return position
    before = np.concatenate([[0.0], np.where(joined, position[:-1], 0.0)])
    closed = np.concatenate([~joined, [True]])
    return np.abs(position - before) + np.where(closed, np.abs(position), 0.0)


def _returns(position: Array, moves: Array, traded: Array, cost: float) -> Array:
    """Return the account's log-returns [N] from the asset's simple `moves`; a short squeezed past ruin is ruined."""
    return np.log(np.maximum(1 + position * moves - cost * traded, RUIN))


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
    """Return the 95 % interval from resampled blocks of √n candles."""
    length = inference.block_length(1, len(returns))
    ids = np.arange(len(returns)) // length
    counts, sums, squares = (np.bincount(ids, w) for w in (np.ones_like(returns), returns, returns**2))
    weights = inference.bootstrap_weights(len(counts))
    n = weights @ counts
    means, spread = weights @ sums / n, weights @ squares / n
    return inference.interval(np.array([_sharpe(m, s, per_year) for m, s in zip(means, spread, strict=True)]))
