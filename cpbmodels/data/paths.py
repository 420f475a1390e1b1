"""Joint paths over the horizon: a Gaussian copula that puts dependence between the quantiles of single steps and coins.

The steps of a path depend as a random walk's positions do, whose correlation at steps s < t is sqrt(s / t): independent
steps would be wrong for every price, and what a model's own errors show is no better (docs/decisions.md). Coins depend
as their newest log-returns do. A path's prices are the quantiles at the levels Phi(score), so that the margins are the
model's own. Schefzik, Thorarinsdottir and Gneiting (2013), Statistical Science 28. No torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from cpbmodels.data.student_t import QUANTILES
from cpbmodels.errors import ModelError

if TYPE_CHECKING:
    from cpbmodels.data.series import Series

MAX_PATHS = 100_000
MIN_RETURNS, MAX_RETURNS = 30, 1000
"""Fewest common log-returns from which coins are correlated, and how many of the newest candles they are taken from."""

SCORES = np.array([NormalDist().inv_cdf(float(level)) for level in QUANTILES])
"""The 19 levels as standard normal scores."""


@dataclass(frozen=True)
class Paths:
    """Joint paths of S coins over H steps.

    close: float64 [S, n, H], prices; path i of every coin belongs to the same scenario.
    """

    symbols: tuple[str, ...]
    close: np.ndarray


def draw_closes(quantiles: np.ndarray, factors: np.ndarray, n: int, seed: int) -> np.ndarray:
    """Closes [S, n, H] of n joint paths.

    Args:
        quantiles: float64 [S, H, 19], of the closes, in prices.
        factors: float64 [R, S], as `coin_factors` returns them.

    Raises:
        ModelError: n or seed is out of range.
    """
    if type(n) is not int or not 1 <= n <= MAX_PATHS or type(seed) is not int or seed < 0:
        raise ModelError(f"n is {n!r}, seed {seed!r}: give 1 to {MAX_PATHS:,} paths and a seed from 0 on.")
    horizon = quantiles.shape[1]
    moves = np.random.default_rng(seed).standard_normal((n, horizon, len(factors))) @ factors
    scores = moves.cumsum(axis=1) / np.sqrt(np.arange(1, horizon + 1))[:, None]  # [n, H, S], each N(0, 1)
    close = np.empty((len(quantiles), n, horizon))
    for coin, step in np.ndindex(*quantiles.shape[:2]):
        close[coin, :, step] = _prices(scores[:, step, coin], quantiles[coin, step])
    return close


def _prices(scores: np.ndarray, quantiles: np.ndarray) -> np.ndarray:
    """Prices [n] at normal scores [n]: log-prices linear in the score, extrapolated past the outermost two.

    Beyond 5 and 95 %, where a forecast says nothing, that is a normal tail with the slope of its outermost levels.
    """
    log = np.log(quantiles)
    low, high = np.diff(log)[[0, -1]] / np.diff(SCORES)[[0, -1]]
    # np.interp is flat beyond its ends; what is added there goes on with the slope of the outermost two levels.
    beyond = np.minimum(scores - SCORES[0], 0) * low + np.maximum(scores - SCORES[-1], 0) * high
    return np.exp(np.interp(scores, SCORES, log) + beyond)


def coin_factors(series: Sequence[Series], rows: Sequence[int]) -> np.ndarray:
    """F [R, S] with F'F = the correlation [S, S] between the coins' log-returns up to these rows.

    Over the newest MAX_RETURNS candles of each coin, at the times that all coins have; returns across a gap or a leap
    of the price are left out. A single coin needs no times.

    Raises:
        ModelError: there are fewer than MIN_RETURNS such returns, or the price of a coin never moves in them.
    """
    if len(series) == 1:
        return np.ones((1, 1))
    recent = [slice(max(row + 1 - MAX_RETURNS, 0), row + 1) for row in rows]
    times = [coin.times[part] for coin, part in zip(series, recent, strict=True) if coin.times is not None]
    common = reduce(np.intersect1d, times)
    returns = np.stack(
        [
            coin.columns(("r_close",))[part, 0][np.searchsorted(own_times, common)]
            for coin, part, own_times in zip(series, recent, times, strict=True)
        ],
        axis=1,
    )
    # One set of rows for all pairs: correlations of different rows would make no valid matrix together.
    returns = returns[np.isfinite(returns).all(axis=1)]
    if len(returns) < MIN_RETURNS:
        raise ModelError(
            f"Only {len(returns)} of the {MIN_RETURNS} log-returns that a correlation needs lie at times that all "
            "coins have: give their series more history, or draw their paths apart."
        )
    deviations = returns - returns.mean(axis=0)
    norms = np.linalg.norm(deviations, axis=0)
    if not norms.all():
        raise ModelError(
            f"{series[int(norms.argmin())].label}: the price does not move in {len(returns)} candles, so that its "
            "correlation with other coins is unknown: draw its paths apart."
        )
    # X = QR with orthonormal Q: R'R = X'X, which is the correlation, whatever its rank.
    return np.linalg.qr(deviations / norms)[1]
