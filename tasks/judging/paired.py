"""Paired backtests: is a recipe better than another on the same rows, after correction for all that were tried?

A true gain of .1 % is far below what a live trial can find, but three years of test spans show it. The conditions of
docs/promotion.md ("By a backtest") are judged here from the losses of both recipes, as sums per UTC day and coin.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schemas.decision import Paired
from tasks.judging import inference
from tasks.judging.member import MemberScore
from tasks.judging.pool import common_losses
from tasks.judging.scores import Array

MIN_COVER = 0.8
"""Share of the champions' coins that a backtest must have judged to replace their recipe: evidence pools all coins."""

ALPHA = 0.05
"""Probability that any of the recipes submitted for a span passes, if none of them is better."""

MIN_GAIN = 0.0003
"""Smallest gain for which a recipe is replaced, as a share of the CRPS."""

MIN_BETTER = 2 / 3
"""Smallest share of months with a lower loss."""

RECENT_DAYS = 91
"""The last three months, on which a recipe must not be significantly worse."""

MIN_MONTH_DAYS = 15
"""Calendar months with fewer days of rows are not counted."""

BLOCK_DAYS = 7
"""Length of a block of the bootstrap, and lags of the Newey-West variance: volatility regimes last for days."""

MIN_DAYS = {3600: 547, 900: 365}
"""Shortest backtest, in days, by the candle's length in seconds: 18 months, and 12 below 1h."""


def min_days(candle_seconds: int) -> int:
    """Return the shortest backtest in days: more candles a day are more evidence a day."""
    return MIN_DAYS[3600] if candle_seconds >= 3600 else MIN_DAYS[900]


@dataclass(frozen=True)
class DailyLosses:
    """CRPS of two recipes on the same rows: `challenger`, `incumbent` [D, C], sums over a day's origins, by coin.

    `days` [D]: UTC days since 1970 with rows, ascending.
    """

    days: NDArray[np.int64]
    challenger: Array
    incumbent: Array


def failed(comparison: Paired, p: float) -> str:
    """Return the condition that a recipe does not meet, given its corrected p; "" if it meets all."""
    if not (p < ALPHA and comparison.high < 1):
        return "it is not significantly better after the correction"
    if comparison.ratio > 1 - MIN_GAIN:
        return f"the gain is below {MIN_GAIN:.2%}"
    if comparison.better < MIN_BETTER * comparison.months:
        return "it is better in fewer than two thirds of the months"
    if comparison.recent_p < ALPHA:
        return f"it is significantly worse in the last {RECENT_DAYS} days (p {comparison.recent_p:.3g})"
    return ""


def daily_losses(challenger: Sequence[MemberScore], incumbent: Sequence[MemberScore]) -> DailyLosses:
    """Return the losses of two recipes on their common rows, of the coins that both have.

    Raises:
        ValueError: they have no common row.
    """
    times, *losses = common_losses(challenger, incumbent)
    days = [instants // 86_400_000_000 for instants in times]
    # All coins on one axis of days: a day on which a coin has no row adds 0 to its sums.
    every = np.unique(np.concatenate(days))
    places = [np.searchsorted(every, day) for day in days]
    sums = [inference.sums_by_block(places, of_model, len(every)) for of_model in losses]
    return DailyLosses(every, sums[0], sums[1])


def paired(losses: DailyLosses) -> Paired:
    """Return the figures, p uncorrected, with equal weight per coin; blocks of time are common to all coins."""
    # Mean over days = ratio - 1.
    difference = ((losses.challenger - losses.incumbent) / losses.incumbent.sum(axis=0)).mean(axis=1) * len(
        losses.days
    )
    blocks = (losses.days - losses.days[0]) // BLOCK_DAYS
    coins = losses.challenger.shape[1]
    low, high = inference.bootstrap_interval(
        [blocks] * coins, list(losses.challenger.T), list(losses.incumbent.T)
    )
    # Months of the calendar, not of 30 days: a user can look them up.
    months = losses.days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)
    _, place, size = np.unique(months, return_inverse=True, return_counts=True)
    whole = size >= MIN_MONTH_DAYS
    means = np.bincount(place, difference)[whole]
    recent = difference[losses.days > losses.days[-1] - RECENT_DAYS]
    _, p = inference.diebold_mariano(difference, BLOCK_DAYS)
    _, recent_p = inference.diebold_mariano(recent, BLOCK_DAYS)
    return Paired(
        days=len(losses.days),
        ratio=1 + float(difference.mean()),
        low=low,
        high=high,
        # One-sided: only a recipe that is better can replace one. The test gives two-sided p.
        p=p / 2 if difference.mean() < 0 else 1 - p / 2,
        months=int(whole.sum()),
        better=int((means < 0).sum()),
        recent_p=recent_p if recent.mean() > 0 else 1.0,
    )


def corrected(p_values: Sequence[float], trials: Sequence[int], before: int) -> list[float]:
    """Return the p-values of recipes named together after Holm, for all that was submitted for their span.

    A recipe that was chosen out of n search trials on the span counts n times. Recipes named later pay for those named
    before them: with a submitted before and b after, they share ALPHA (f(a) - f(b)) with f(n) = 1 / (1 + 4 n): nearly
    all of it for the first to be named, whatever their number. Over any sequence of submissions the shares add up to
    ALPHA at most, and so does the probability of ever replacing a recipe by a recipe that is not better.
    """
    # The trials that lost count with a p of 1: they are hypotheses that were tried, and Holm needs their number
    # alone.
    total = sum(trials)
    others = [1.0] * (total - len(p_values))  # the search trials that lost
    share = 1 / (1 + 4 * before) - 1 / (1 + 4 * (before + total))
    return [min(1.0, p / share) for p in inference.holm([*p_values, *others])[: len(p_values)]]
