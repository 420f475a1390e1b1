"""Evidence that may be looked at every hour: e-processes, the share of α of each challenger, tests without a fixed end.

An e-process is the wealth of a gambler who starts with 1 and bets against a hypothesis, at odds that are fair if it is
true. By Ville's inequality wealth ever reaches 1/α with probability α at most, however often and whenever somebody
looks. Shapes: T origins in time order. docs/promotion.md derives every line; Choe and Ramdas, "Comparing Sequential
Forecasters" (2110.00115), is the idea.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.judging import inference
from tasks.judging.scores import Array

MAX_VALUE = 1e300
"""Larger differences would overflow when they are added up; evidence stops growing there."""

MIN_DAYS = 30
"""UTC days below which `ratio_interval` says nothing: the asymptotics do not hold yet."""

TUNED_DAYS = 90
"""Days at which the interval of `ratio_interval` is narrowest, compared with one that is meant for that day alone."""

DAY_CLUSTERING = 1.7
"""Variance of ten-day means of daily loss differences over that of independent days, as measured at 1h (1.4 to 1.7 for
three pairs of models, most of it from one of six test spans)."""


@dataclass(frozen=True)
class Betting:
    """How the gambler of `e_process` bets. The figures are tuned in research/promotion.py.

    round_lags, min_round: length of a round in lags, and the least in origins: the cut of z relies on sums of many.
    stakes, weights: wealth starts divided into accounts; each bets one share of itself on every round.
    loss_cap, gain_cap: a round's sum counts up to so many standard deviations. stakes × loss_cap < 1 keeps wealth above
        0; gains are cut earlier than losses, so that differences skewed towards rare large losses gain nothing by it.
    memory_lags: settled differences that the scale is taken from, in lags (or quarters of `min_round`, if longer).
    """

    round_lags: int = 4
    min_round: int = 40
    stakes: tuple[float, ...] = (0.15, 0.45)
    weights: tuple[float, ...] = (0.1, 0.9)
    loss_cap: float = 2.2
    gain_cap: float = 1.5
    memory_lags: int = 72

    def __post_init__(self) -> None:
        if not math.isclose(sum(self.weights), 1) or max(self.stakes) * self.loss_cap >= 1:
            raise ValueError(
                "Betting: weights must add up to 1, and every stake × loss_cap must stay under 1"
            )


BETTING = Betting()


def e_process(differences: Array, lag: int = 10) -> Array:
    """Return the evidence [T] that the challenger is better; the value at t uses differences up to t only.

    **Construction.** Origins are taken in rounds of L = 4·lag (40 at least, the length for lag 10), with lag − 1
    origins left out after each, so that all of a round is known before the next one starts. A round gives z = −Σ
    differences / (s √L), where s² is the mean square, per origin, of sums of L/2 consecutive differences: over the
    last 18·L such sums that were known when the round started. z counts between −2.2 and 1.5 only. A gambler with two
    accounts (.1 and .9 of the money) bets .15 and .45 of them on every round: account × (1 + stake · z). The result
    is all the money, unchanged between the ends of rounds. It is 1 for the first L + lag − 1 origins, from which the
    first scale is learnt, and in the first round.

    **Null hypothesis.** With F_t all that is known at origin t (differences up to t − lag among it) and a the first
    origin of a round, E[cut z of the round | F_a] ≤ 0 for every round. The plain hypothesis "no better", E[difference
    at t | F_t] ≥ 0 for every t, gives E[z | F_a] ≤ 0 without the cut. Cutting gains is safe; cutting losses adds
    E[(−z − 2.2)+ | F_a], which the cut gains, E[(z − 1.5)+ | F_a], must outweigh. They do for every z whose
    distribution, given F_a, is symmetric about its mean, whatever its tails, and for moderate skewness towards the
    challenger's losses, as a sum of 40 origins has it: simulated with log-normal differences (σ = 1, kurtosis 110)
    skewed that way, 4.7 % of nulls reach 20 in a year (3 % of others); with σ = 1.5, 8.6 %. A challenger that wins a
    little always and loses very much rarely is not covered (13 to 68 % with 18 to 4 such hours a year that pay back
    a gain of .5 %): no test without a bound on losses covers it.

    **What holds under the null.** P(sup over t of the result ≥ 1/α) ≤ α, for every α, so at any random time whatever,
    chosen by whatever look at the data, the value is ≥ 1/α with probability α at most. The mean of the value is ≤ 1 at
    every stopping time that decides when a round ends (a stopping time in the filtration of F at these times). Not
    promised: a mean ≤ 1 for somebody who decides within a round, with its half-settled differences in view, whether to
    stop with the value from before it.

    **Scale.** Differences may be of any scale, also one that changes; s knows only what was settled, and a jump of the
    scale meets the cut. Volatility clustering, heavy tails and dependence over fewer than `lag` origins are allowed:
    nothing about them is assumed. Multiplying all differences by a constant changes nothing.

    Args:
        differences: challenger's loss minus incumbent's [T], in time order, one per origin.
        lag: a difference is known this many origins after its own origin: the horizon, for losses over its steps.

    Raises:
        ValueError: not one-dimensional, not finite, or lag < 1.
    """
    values = _checked("differences", differences)
    return e_processes(values[None], lag)[0]


def e_processes(differences: Array, lag: int = 10, betting: Betting = BETTING) -> Array:
    """Return `e_process` of every row of [S, T], by any way of betting: the benchmark's form.

    Raises:
        ValueError: lag < 1.
    """
    _check_lag(lag)
    rows, origins = differences.shape
    length = max(betting.round_lags * lag, betting.min_round)
    unit = max(lag, betting.min_round // 4)
    window = 2 * unit
    sums = _window_sums(differences, window)
    stakes, weights = np.asarray(betting.stakes), np.asarray(betting.weights)
    accounts = np.tile(weights, (rows, 1))
    out = np.ones((rows, origins))
    first = max(4 * unit, 16) + lag - 1
    for start in range(first, origins - length + 1, length + lag - 1):
        known = sums[:, : start - lag - window + 2][:, -betting.memory_lags * unit :]
        scale = _root_mean_square(known) * math.sqrt(length / window)
        gain = -differences[:, start : start + length].sum(axis=1)
        with np.errstate(over="ignore"):  # a scale near 0: z is cut anyway
            z = np.divide(gain, scale, out=np.zeros(rows), where=scale > 0)
        accounts *= 1 + stakes * np.clip(z, -betting.loss_cap, betting.gain_cap)[:, None]
        np.minimum(accounts, MAX_VALUE, out=accounts)
        out[:, start + length - 1 : start + 2 * length + lag - 2] = accounts.sum(axis=1)[:, None]
    return out


def _window_sums(values: Array, window: int) -> Array:
    """Return sums of `window` consecutive values [S, T − window + 1]: added anew, so that no large value lingers."""
    count = max(0, values.shape[1] - window + 1)
    out = np.zeros((len(values), count))
    for shift in range(window):
        out += values[:, shift : shift + count]
    return out


def _root_mean_square(values: Array) -> Array:
    """Return the root mean square of each row; free of overflow and underflow."""
    largest = np.abs(values).max(axis=1, initial=0.0)
    unit = np.where(largest > 0, largest, 1.0)
    return largest * np.sqrt(np.mean((values / unit[:, None]) ** 2, axis=1))


def alpha_share(k: int, alpha: float = 0.05) -> float:
    """Return the part of α that the k-th challenger (k = 1, 2, …) may spend: 6α / (π² k²), which add up to α.

    So the probability that any of ever so many challengers that are no better is promoted stays under α; the k-th is
    promoted at evidence ≥ 1 / share.

    Raises:
        ValueError: k < 1, or alpha not between 0 and 1.
    """
    if k < 1 or not 0 < alpha < 1:
        raise ValueError(f"k = {k}, alpha = {alpha}: k must be 1 or more and alpha between 0 and 1")
    return 6 * alpha / (math.pi * k) ** 2


def not_worse(
    challenger_losses: Array, incumbent_losses: Array, times: NDArray[np.int64], horizon: int, step_us: int
) -> tuple[float, float, float]:
    """Return (ratio, low, high): challenger's mean loss over the incumbent's, with a 95 % block bootstrap interval.

    Blocks of time are drawn as in `tasks.judging.inference`, the same for both: √N candles, at least two horizons. A
    refresh passes where `high` is under 1.005. No rows: (1, -inf, inf), which passes nothing.

    Args:
        challenger_losses: [N], of the same origins as
        incumbent_losses: [N].
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
    above, below = (np.bincount(blocks, values)[:, None].astype(np.float64) for values in (own, other))
    draws = inference.ratio_draws(above, below, inference.bootstrap_weights(len(above)))
    return (float(own.sum() / other.sum()), *inference.interval(draws))


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
    ("Time-uniform central limit theory", 2103.06476, theorem 2.2): a quadratic in R (Fieller). It holds R at all days
    from `MIN_DAYS` on together with probability about 1 − α, so it may be read daily. Days are treated as
    independent but for `DAY_CLUSTERING`: hourly losses overlap by 10 hours only, but regimes last longer. Where one
    loss covers several days, days share as much: variance and `MIN_DAYS` grow by that number.

    Args:
        days: number of days n.
        model: Σ m.
        reference: Σ r.
        model_squares: Σ m².
        reference_squares: Σ r².
        products: Σ m r.
        alpha: probability of ever missing the ratio.
        loss_days: days that one loss covers, horizon × candle: 10 at 1d.

    Returns:
        (low, high), or None: fewer than `MIN_DAYS` days, or too noisy to bound: too few to tell.

    Raises:
        ValueError: a figure that is not finite or negative.
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


def _check_lag(lag: int) -> None:
    if lag < 1:
        raise ValueError(f"lag must be 1 or more: {lag}")
