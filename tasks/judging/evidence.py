"""Intervals of loss ratios: of a refresh on its test rows, and of a live record that may be read every day."""

import math

import numpy as np
from numpy.typing import NDArray

from tasks.judging import inference
from tasks.judging.scores import Array

MAX_VALUE = 1e300
"""Larger differences would overflow in sums; the evidence does not grow beyond this value."""

MIN_DAYS = 30
"""Minimum number of UTC days for `ratio_interval`: below it the asymptotics do not hold."""

TUNED_DAYS = 90
"""Days at which `ratio_interval` is narrowest relative to an interval for that day only."""

DAY_CLUSTERING = 1.7
"""Variance of ten-day means of daily loss differences over that of independent days, as measured at 1h (1.4 to 1.7 for
three pairs of models, most of it from one of six test spans)."""


def not_worse(
    challenger_losses: Array, incumbent_losses: Array, times: NDArray[np.int64], horizon: int, step_us: int
) -> tuple[float, float, float]:
    """Return (ratio, low, high): challenger's mean loss over the incumbent's, with a 95 % block bootstrap interval.

    Blocks of time are drawn as in `tasks.judging.inference`, the same for both: √N candles, at least two horizons. A
    refresh passes if `high` is under 1.005. Without rows: (1, -inf, inf), which never passes.

    Args:
        challenger_losses: losses [N] at the same origins as
        incumbent_losses: losses [N].
        times: of the origins, µs UTC [N].
        horizon: steps that a loss covers.
        step_us: length of a candle in µs.

    Raises:
        ValueError: losses that are not finite, negative or of different shapes; horizon or step_us < 1.
    """
    own = _checked("challenger_losses", challenger_losses)
    other = _checked("incumbent_losses", incumbent_losses)
    if own.shape != other.shape or own.shape != np.shape(times):
        raise ValueError(
            f"losses and times must be of one shape: {own.shape}, {other.shape}, {np.shape(times)}"
        )
    if min(own.min(initial=0), other.min(initial=0)) < 0 or horizon < 1 or step_us < 1:
        raise ValueError("losses must not be negative; horizon and step_us must be 1 or more")
    if not other.any():
        return (1.0, 1.0, 1.0) if len(own) and not own.any() else (1.0, -math.inf, math.inf)
    length = inference.block_length(horizon, len(own)) * step_us
    blocks = inference.block_ids(times, length)
    return (float(own.sum() / other.sum()), *inference.bootstrap_interval([blocks], [own], [other]))


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

    Raises:
        ValueError: a figure is not finite or is negative.
    """
    sums = (model, reference, model_squares, reference_squares, products)
    if days < 0 or not all(math.isfinite(one) and one >= 0 for one in sums):
        raise ValueError(f"sums of losses must be finite and not negative: {days} days, {sums}")
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


def _checked(name: str, values: Array) -> Array:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or not np.all(np.abs(found) <= MAX_VALUE):
        raise ValueError(f"{name} must be a row [T] of finite numbers, got shape {found.shape}")
    return found
