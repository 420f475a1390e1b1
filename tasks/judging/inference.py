"""Statistical significance: block bootstrap, Diebold-Mariano with a HAC variance, Holm's correction.

Targets of neighbouring origins overlap (horizon 10) and volatility clusters, so origins are never treated as
independent: intervals resample blocks of time, variances include autocovariances.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tasks.judging.scores import Array

DRAWS = 1000
"""Number of bootstrap resamples."""

NORMAL = 1.96
"""97.5 % point of the normal distribution."""


def block_length(horizon: int, n: int) -> int:
    """Return the length of a block in candles: √n, but at least two horizons, so overlapping targets share a block."""
    return max(2 * horizon, math.isqrt(max(0, n)))


def block_ids(times: NDArray[np.int64], length_us: int, start: int | None = None) -> NDArray[np.int64]:
    """Return the time block [N] of each origin; series with the same `start` share their blocks."""
    return (times - (times.min() if start is None else start)) // length_us


def bootstrap_weights(blocks: int, draws: int = DRAWS, seed: int = 0) -> Array:
    """Return weights [draws, blocks]: how often each resample draws each block (with replacement)."""
    generator = np.random.default_rng(seed)
    return generator.multinomial(blocks, np.full(blocks, 1 / blocks), size=draws).astype(float)


def ratio_draws(numerator: Array, denominator: Array, weights: Array) -> Array:
    """Return resampled ratios [draws, C] from sums per block [blocks, C]; 1 for a draw without rows."""
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
    ids: Sequence[NDArray[np.int64]], own: Sequence[Array], other: Sequence[Array], seed: int = 0
) -> tuple[float, float]:
    """Return the interval of the ratio of two losses, mean over C coins; blocks of time are common to all coins.

    Args:
        ids: by coin, the block [N] of each origin (`block_ids`).
        own: by coin, the numerator's losses [N].
        other: by coin, the denominator's losses [N].
        seed: seed of the bootstrap.
    """
    blocks = max(int(one.max()) for one in ids) + 1
    above, below = (sums_by_block(ids, losses, blocks) for losses in (own, other))
    return interval(ratio_draws(above, below, bootstrap_weights(blocks, seed=seed)).mean(axis=1))


def hac_variance(differences: Array, lags: int) -> float:
    """Return the Newey-West (Bartlett) long-run variance of the mean of `differences` [N]."""
    x = differences - differences.mean()
    n = len(x)
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
    if len(differences) < 2 or not np.any(differences != differences[0]):
        same = len(differences) == 0 or differences[0] == 0
        return (0.0, 1.0) if same or len(differences) < 2 else (math.copysign(math.inf, differences[0]), 0.0)
    variance = hac_variance(differences, lags)
    statistic = float(differences.mean() / math.sqrt(variance))
    return statistic, math.erfc(abs(statistic) * NORMAL / _critical(lags, len(differences)) / math.sqrt(2))


def _critical(lags: int, n: int) -> float:
    """Return the 97.5 % point of the statistic; it depends on the bandwidth as a share b of n."""
    b = min(1.0, (lags + 1) / n)
    return NORMAL + 2.9694 * b + 0.4160 * b**2 - 0.5324 * b**3


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values adjusted by Holm's step-down method, in the order given."""
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p))))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1)
    return adjusted.tolist()


def relation(low: float, high: float, p: float, alpha: float = 0.05) -> str:
    """Return "better than", "worse than" or "no different from", of a ratio's interval and p.

    A difference is claimed only if p is under `alpha` and the interval excludes 1.
    """
    if p < alpha and high < 1:
        return "better than"
    return "worse than" if p < alpha and low > 1 else "no different from"


def shown_p(p: float) -> str:
    """Return a p-value as text for messages."""
    return f"p={p:.3f}" if p >= 0.001 else "p<0.001"


def compared(first: str, second: str, ratio: float, p: float, n: int) -> str:
    """Return the finding about two models' losses on the same `n` forecasts (`pool.compare`) as a sentence."""
    return f"{first} is {relation(ratio, ratio, p)} {second} (CRPS ratio {ratio:.4f}, {shown_p(p)}, n={n:,})"


def verdict(metrics: Mapping[str, float]) -> str:
    """Return the finding as a sentence: better than, worse than or no different from the reference (see `relation`).

    Args:
        metrics: of a member or a pool (`test_…`), with the Holm-corrected p if the correction has been applied. A
            classifier has `test_accuracy`; its reference is the class frequencies of the training span.
    """
    ratio, low, high = (metrics[f"test_crps_ratio{end}"] for end in ("", "_low", "_high"))
    p, classes = metrics.get("test_p_holm", metrics["test_p"]), "test_accuracy" in metrics
    against = "the class frequencies" if classes else "the random walk with EWMA volatility"
    found = relation(low, high, p)
    # Only if the interval alone would say something else.
    over = metrics.get("test_p_holm_models", 1) if found.startswith("no ") and not low <= 1 <= high else 1
    corrected = f" corrected over {over:.0f} models" if over > 1 else ""
    return (
        f"{found} {against} ({'RPS' if classes else 'CRPS'} ratio {ratio:.4f} "
        f"[{low:.4f}, {high:.4f}], {shown_p(p)}{corrected}, n={int(metrics['test_n']):,})"
    )
