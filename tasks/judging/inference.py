"""Statistical significance: block bootstrap, Diebold-Mariano with a HAC variance, Holm's correction.

Targets of neighbouring origins overlap (horizon 10) and volatility clusters, so origins are never treated as
independent: intervals resample blocks of time, variances include autocovariances.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tasks.judging.scores import Array

DRAWS = 1000
"""Number of bootstrap resamples."""

NORMAL = 1.96
"""97.5 % point of the normal distribution."""


def block_length(horizon: int, n: int) -> int:
    """Return the length of a block in candles: √n, but at least two horizons, so overlapping targets share a block."""
    # √n is the usual compromise: longer blocks keep more of the clustering, shorter ones leave more blocks to draw
    # from. Targets of one horizon overlap, so a block that holds two leaves most of them whole.
    return max(2 * horizon, math.isqrt(max(0, n)))


def block_ids(times: NDArray[np.int64], length_us: int, start: int | None = None) -> NDArray[np.int64]:
    """Return the time block [N] of each origin; series with the same `start` share their blocks."""
    return (times - (times.min() if start is None else start)) // length_us


@lru_cache(maxsize=2)
def bootstrap_weights(blocks: int, draws: int = DRAWS, seed: int = 0) -> Array:
    """Return weights [draws, blocks]: how often each resample draws each block (with replacement)."""
    # Multinomial counts are the same draw as block indices with replacement, in one product with the sums per block:
    # no resample is ever laid out row by row.
    generator = np.random.default_rng(seed)
    return generator.multinomial(blocks, np.full(blocks, 1 / blocks), size=draws).astype(float)


def ratio_draws(numerator: Array, denominator: Array, weights: Array) -> Array:
    """Return resampled ratios [draws, C] from sums per block [blocks, C]; 1 for a draw without rows."""
    # Coins start at different times: a resample may hold no block of a young coin. Its ratio is then 1, which says
    # nothing for or against, where 0 / 0 would make the whole draw nan.
    below = weights @ denominator
    return np.where(below > 0, (weights @ numerator) / np.where(below > 0, below, 1), 1.0)


def interval(draws: Array, level: float = 0.95) -> tuple[float, float]:
    """Return the percentile interval of bootstrap draws."""
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def sums_by_block(ids: Sequence[NDArray[np.int64]], losses: Sequence[Array], blocks: int) -> Array:
    """Return the sums [blocks, C] of each coin's losses [N] by their block [N]."""
    sums = [np.bincount(i, x, minlength=blocks) for i, x in zip(ids, losses, strict=True)]
    return np.stack(sums, axis=1).astype(np.float64)


def bootstrap_interval(
    ids: Sequence[NDArray[np.int64]],
    numerators: Sequence[Array],
    denominators: Sequence[Array],
    seed: int = 0,
) -> tuple[float, float]:
    """Return the interval of the ratio of two losses, mean over C coins; blocks of time are common to all coins.

    Args:
        ids: by coin, the block [N] of each origin (`block_ids`).
        numerators: by coin, the numerator's losses [N].
        denominators: by coin, the denominator's losses [N].
        seed: seed of the bootstrap.
    """
    blocks = max(int(coin_blocks.max()) for coin_blocks in ids) + 1
    above, below = (sums_by_block(ids, losses, blocks) for losses in (numerators, denominators))
    return interval(ratio_draws(above, below, bootstrap_weights(blocks, seed=seed)).mean(axis=1))


def hac_variance(differences: Array, lags: int) -> float:
    """Return the Newey-West (Bartlett) long-run variance of the mean of `differences` [N]."""
    x = differences - differences.mean()
    n = len(x)
    # Bartlett's weights 1 - lag / (lags + 1) keep the sum positive; unweighted autocovariances may not.
    total = x @ x
    for lag in range(1, min(lags, n - 1) + 1):
        total += 2 * (1 - lag / (lags + 1)) * (x[lag:] @ x[:-lag])
    return float(total / n**2)


def diebold_mariano(differences: Array, lags: int) -> tuple[float, float]:
    """Return (statistic, two-sided p) for the mean loss difference [N] being zero.

    A negative statistic favours the first model. Identical losses give (0, 1). The normal approximation rejects far too
    often if the lags are a large part of N (for a fifth of the models without skill at N = 48), so p uses the
    critical value of Kiefer and Vogelsang, "A New Asymptotic Theory for HAC Tests", Econometric Theory 21 (2005), table
    1, Bartlett kernel.
    """
    # Losses that differ by one constant have a variance of 0: infinitely certain if the constant is not 0, as of a
    # forecast against itself on a price that never moves.
    if len(differences) < 2 or not np.any(differences != differences[0]):
        same = len(differences) == 0 or differences[0] == 0
        return (0.0, 1.0) if same or len(differences) < 2 else (math.copysign(math.inf, differences[0]), 0.0)
    variance = hac_variance(differences, lags)
    statistic = float(differences.mean() / math.sqrt(variance))
    # erfc(x / √2) is the two-sided p of a normal x. Rescaled by the critical value, p is .05 exactly where the
    # statistic reaches the 5 % point for this bandwidth, and in between the normal's shape is kept.
    return statistic, math.erfc(abs(statistic) * NORMAL / _critical(lags, len(differences)) / math.sqrt(2))


def _critical(lags: int, n: int) -> float:
    """Return the 97.5 % point of the statistic; it depends on the bandwidth as a share b of n."""
    b = min(1.0, (lags + 1) / n)
    return NORMAL + 2.9694 * b + 0.4160 * b**2 - 0.5324 * b**3


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values adjusted by Holm's step-down method, in the order given."""
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p, kind="stable")
    # The k-th smallest p is multiplied by the number of hypotheses not yet rejected; the running maximum keeps the
    # order, as a p must not be smaller after the correction than one that was smaller before.
    stepped = np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p))))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1)
    return adjusted.tolist()


def not_worse(
    challenger: Array, incumbent: Array, times: NDArray[np.int64], horizon: int, step_us: int
) -> tuple[float, float, float]:
    """Return (ratio, low, high): challenger's mean loss over the incumbent's, with a 95 % block bootstrap interval.

    Blocks of time are the same for both: √N candles, at least two horizons. A
    refresh passes if `high` is under 1.005. Without rows: (1, -inf, inf), which never passes.

    Args:
        challenger: losses [N], finite and not negative, at the same origins as
        incumbent: losses [N].
        times: of the origins, µs UTC [N].
        horizon: steps that a loss covers.
        step_us: length of a candle in µs.

    """
    # A price that never moved is forecast without loss by any model: then both are as good, or nothing is known.
    if not incumbent.any():
        return (1.0, 1.0, 1.0) if len(challenger) and not challenger.any() else (1.0, -math.inf, math.inf)
    length = block_length(horizon, len(challenger)) * step_us
    blocks = block_ids(times, length)
    return (
        float(challenger.sum() / incumbent.sum()),
        *bootstrap_interval([blocks], [challenger], [incumbent]),
    )
