"""Statistical significance: block bootstrap, Diebold-Mariano with a HAC variance, Holm's correction.

Targets of neighbouring origins overlap (horizon 10) and volatility clusters, so origins are never treated as
independent: intervals resample blocks of time, variances include autocovariances.

`not_worse` and `ratio_interval` are the intervals of a refresh on its test rows, and of a live record that is read
daily."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tasks.judging.scores import Array

DRAWS = 1000
"""Number of bootstrap resamples."""

NORMAL = 1.96
"""97.5 % point of the normal distribution."""

MIN_DAYS = 30
"""Minimum number of UTC days for `ratio_interval`: below it the asymptotics do not hold."""

TUNED_DAYS = 90
"""Days at which `ratio_interval` is narrowest relative to an interval for that day only."""

DAY_CLUSTERING = 1.7
"""Variance of ten-day means of daily loss differences over that of independent days, as measured at 1h (1.4 to 1.7 for
three pairs of models, most of it from one of six test spans)."""


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
    finding = relation(low, high, p)
    # Only if the interval alone would say something else.
    over = metrics.get("test_p_holm_models", 1) if finding.startswith("no ") and not low <= 1 <= high else 1
    corrected = f" corrected over {over:.0f} models" if over > 1 else ""
    return (
        f"{finding} {against} ({'RPS' if classes else 'CRPS'} ratio {ratio:.4f} "
        f"[{low:.4f}, {high:.4f}], {shown_p(p)}{corrected}, n={int(metrics['test_n']):,})"
    )


def not_worse(
    challenger: Array, incumbent: Array, times: NDArray[np.int64], horizon: int, step_us: int
) -> tuple[float, float, float]:
    """Return (ratio, low, high): challenger's mean loss over the incumbent's, with a 95 % block bootstrap interval.

    Blocks of time are drawn as in `tasks.judging.inference`, the same for both: √N candles, at least two horizons. A
    refresh passes if `high` is under 1.005. Without rows: (1, -inf, inf), which never passes.

    Args:
        challenger: losses [N], finite and not negative, at the same origins as
        incumbent: losses [N].
        times: of the origins, µs UTC [N].
        horizon: steps that a loss covers.
        step_us: length of a candle in µs.

    """
    if not incumbent.any():
        return (1.0, 1.0, 1.0) if len(challenger) and not challenger.any() else (1.0, -math.inf, math.inf)
    length = block_length(horizon, len(challenger)) * step_us
    blocks = block_ids(times, length)
    return (
        float(challenger.sum() / incumbent.sum()),
        *bootstrap_interval([blocks], [challenger], [incumbent]),
    )


def ratio_interval(
    days: int,
    model: float,
    reference: float,
    model_squares: float,
    reference_squares: float,
    products: float,
    *,
    alpha: float = 0.05,
    loss_days: float = 0.0,
) -> tuple[float, float] | None:
    """Return an anytime-valid interval of mean model loss / mean reference loss, from sums over UTC days.

    With m and r the sums of a day, u = m − R r has mean 0 for the true ratio R, and the interval is all R for which
    |mean u| stays within the asymptotic confidence sequence of Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas
    ("Time-uniform central limit theory", 2103.06476, theorem 2.2): a quadratic in R (Fieller). It contains R on all
    days from `MIN_DAYS` on jointly with probability about 1 − α, so it may be read daily. Days are treated as
    independent but for `DAY_CLUSTERING`: hourly losses overlap by 10 hours only, but regimes last longer. If a loss
    covers several days, days share information: variance and `MIN_DAYS` grow by that number.

    Args:
        days: number of days n.
        model: Σ m.
        reference: Σ r.
        model_squares: Σ m².
        reference_squares: Σ r².
        products: Σ m r.
        alpha: probability that the interval ever excludes the true ratio.
        loss_days: days that a loss covers, horizon × candle: 10 at 1d.

    Returns:
        (low, high), or None with fewer than `MIN_DAYS` days or too much noise for a bound: too few to tell.
    """
    shared = max(1.0, loss_days)
    if days < MIN_DAYS * shared or reference == 0:
        return None
    mean_m, mean_r = model / days, reference / days
    spread = days / (days - 1)
    var_m = max(0.0, model_squares / days - mean_m**2) * spread
    var_r = max(0.0, reference_squares / days - mean_r**2) * spread
    cov = (products / days - mean_m * mean_r) * spread
    width = shared * _sequence_width(days, alpha)
    a = mean_r**2 - width * var_r
    b = mean_m * mean_r - width * cov
    c = mean_m**2 - width * var_m
    if a <= 0:
        return None
    root = math.sqrt(max(0.0, b * b - a * c))
    return max(0.0, float((b - root) / a)), float((b + root) / a)


def _sequence_width(days: int, alpha: float) -> float:
    """Return the squared half-width, in variances of a day, of the asymptotic confidence sequence after `days`."""
    wide = -2 * math.log(alpha)
    rho = (wide + math.log(wide + 1)) / TUNED_DAYS  # ρ² of theorem 2.2, the tightest at TUNED_DAYS
    grown = days * rho + 1
    return DAY_CLUSTERING * 2 * grown / (days**2 * rho) * math.log(math.sqrt(grown) / alpha)
