"""The interval of a live record, which is read daily: it holds on all days jointly."""

import math

MIN_DAYS = 30
"""Minimum number of UTC days for `ratio_interval`: below it the asymptotics do not hold."""

TUNED_DAYS = 90
"""Days at which `ratio_interval` is narrowest relative to an interval for that day only."""

DAY_CLUSTERING = 1.7
"""Variance of ten-day means of daily loss differences over that of independent days, as measured at 1h (1.4 to 1.7 for
three pairs of models, most of it from one of six test spans)."""


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
    # Moments from running sums: the live record keeps six numbers a series, not its days. Cancellation may leave a
    # variance a little below 0.
    spread = days / (days - 1)
    var_m = max(0.0, model_squares / days - mean_m**2) * spread
    var_r = max(0.0, reference_squares / days - mean_r**2) * spread
    cov = (products / days - mean_m * mean_r) * spread
    width = shared * _sequence_width(days, alpha)
    # (mean m - R mean r)² <= width (var m - 2 R cov + R² var r), sorted by powers of R: a R² - 2 b R + c <= 0.
    a = mean_r**2 - width * var_r
    b = mean_m * mean_r - width * cov
    c = mean_m**2 - width * var_m
    # The reference's mean is itself not yet told from 0, so no R is excluded in one direction (Fieller).
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
