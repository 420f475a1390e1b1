"""Evidence that may be checked every hour: e-processes, the share of α of each challenger, tests without a fixed end.

An e-process is the wealth of a gambler who starts with 1 and bets against a hypothesis, at odds that are fair if it is
true. By Ville's inequality the wealth ever reaches 1/α with probability α at most, however often it is checked. Shapes:
T origins in time order. docs/promotion.md derives every line; the idea is from Choe and Ramdas, "Comparing Sequential
Forecasters" (2110.00115).
"""

import math
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Betting:
    """Betting strategy of `e_process`. The figures were tuned by `research/promotion.py` of commit a6dc485d.

    round_lags, min_round: length of a round in lags, and its minimum in origins, as clipping z requires sums of many
        origins.
    stakes, weights: the initial wealth is divided into accounts by weight; each bets its stake as a share of itself on
        every round.
    loss_cap, gain_cap: limits of a round's sum in standard deviations. stakes × loss_cap < 1 keeps the wealth above 0;
        gains have a lower limit than losses, so that differences skewed towards rare large losses do not profit.
    memory_lags: number of settled differences used for the scale, in lags (or quarters of `min_round`, if longer).
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

    **Construction.** Origins are grouped in rounds of L = 4·lag (at least 40, the length for lag 10), with lag − 1
    origins left out after each round, so that all losses of a round are known before the next round starts. A round
    gives z = −Σ differences / (s √L), where s² is the mean square, per origin, of sums of L/2 consecutive differences:
    over the last 18·L such sums known at the start of the round. z is clipped to [−2.2, 1.5]. A gambler with two
    accounts (.1 and .9 of the money) bets .15 and .45 of them on every round: account × (1 + stake · z). The result is
    the total money, unchanged between the ends of rounds. It is 1 for the first L + lag − 1 origins, from which the
    first scale is estimated, and in the first round.

    **Null hypothesis.** Let F_t be all information at origin t (including differences up to t − lag) and a the first
    origin of a round. The null is E[clipped z of the round | F_a] ≤ 0 for every round. The plain hypothesis "no
    better", E[difference at t | F_t] ≥ 0 for every t, gives E[z | F_a] ≤ 0 without clipping. Clipping gains is safe;
    clipping losses adds E[(−z − 2.2)+ | F_a], which the clipped gains, E[(z − 1.5)+ | F_a], must outweigh. They do for
    every z whose distribution, given F_a, is symmetric about its mean, whatever its tails, and for moderate skewness
    towards the challenger's losses, as in a sum of 40 origins: in simulations with log-normal differences (σ = 1,
    kurtosis 110) skewed that way, 4.7 % of nulls reach 20 in a year (3 % of others); with σ = 1.5, 8.6 %. A challenger
    that usually wins a little and rarely loses very much is not covered (13 to 68 % with 18 to 4 such hours a year that
    offset a gain of .5 %): no test without a bound on losses covers it.

    **Guarantees under the null.** P(sup over t of the result ≥ 1/α) ≤ α, for every α, so at any random time, chosen
    by any inspection of the data, the value is ≥ 1/α with probability α at most. The mean of the value is ≤ 1 at every
    stopping time that decides at the end of a round (a stopping time in the filtration of F at these times). Not
    guaranteed: a mean ≤ 1 if the decision to stop with the value from before a round is made within the round, with
    its half-settled differences known.

    **Scale.** Differences may have any scale, also a changing scale; s uses only settled differences, and a jump of the
    scale is clipped. Volatility clustering, heavy tails and dependence over fewer than `lag` origins are allowed: no
    assumption is made about them. Multiplying all differences by a constant changes nothing.

    Args:
        differences: challenger's loss minus incumbent's [T], in time order, a value per origin.
        lag: a difference is known this many origins after its own origin: the horizon, for losses over its steps.

    Raises:
        ValueError: not one-dimensional, not finite, or lag < 1.
    """
    values = _checked("differences", differences)
    return e_processes(values[None], lag)[0]


def e_processes(differences: Array, lag: int = 10, betting: Betting = BETTING) -> Array:
    """Return `e_process` of every row of [S, T], for any betting strategy, as used in the benchmark.

    Raises:
        ValueError: lag < 1.
    """
    if lag < 1:
        raise ValueError(f"lag must be 1 or more: {lag}")
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
        with np.errstate(over="ignore"):  # a scale near 0: z is clipped anyway
            z = np.divide(gain, scale, out=np.zeros(rows), where=scale > 0)
        accounts *= 1 + stakes * np.clip(z, -betting.loss_cap, betting.gain_cap)[:, None]
        np.minimum(accounts, MAX_VALUE, out=accounts)
        out[:, start + length - 1 : start + 2 * length + lag - 2] = accounts.sum(axis=1)[:, None]
    return out


def _window_sums(values: Array, window: int) -> Array:
    """Return sums of `window` consecutive values [S, T − window + 1], without a running sum and its rounding errors."""
    count = max(0, values.shape[1] - window + 1)
    out = np.zeros((len(values), count))
    for shift in range(window):
        out += values[:, shift : shift + count]
    return out


def _root_mean_square(values: Array) -> Array:
    """Return the root mean square of each row, without overflow or underflow."""
    largest = np.abs(values).max(axis=1, initial=0.0)
    unit = np.where(largest > 0, largest, 1.0)
    return largest * np.sqrt(np.mean((values / unit[:, None]) ** 2, axis=1))


def alpha_share(k: int, alpha: float = 0.05) -> float:
    """Return the share of α for the k-th challenger (k = 1, 2, …): 6α / (π² k²); all shares sum to α.

    So the probability of promoting any of the challengers that are not better stays under α, whatever their number; the
    k-th challenger is promoted at evidence ≥ 1 / share.

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
