"""Evidence on simulated truth: nulls are seldom promoted, better ones soon, and nothing looks ahead."""

import math

import numpy as np
import pytest

from tasks.judging.inference import not_worse
from tasks.judging.live_interval import DAY_CLUSTERING, MIN_DAYS, ratio_interval

HOUR_US = 3_600_000_000


def refresh(factor, seed, rows=1000):
    """The gate's ratio and interval for losses over ten steps, which overlap: the hard hours are common to both."""
    random = np.random.default_rng(seed)
    steps = np.random.default_rng(seed).normal(size=rows + 9)
    hard = np.exp(sum(steps[shift : shift + rows] for shift in range(10)) / 6)
    challenger, incumbent = (hard * (1 + 0.01 * random.normal(size=rows)) for _ in range(2))
    return not_worse(factor * np.abs(challenger), np.abs(incumbent), np.arange(rows) * HOUR_US, 10, HOUR_US)


def test_worse_refreshes_are_refused_and_equal_ones_pass():
    accepted = {factor: np.mean([refresh(factor, s)[2] < 1.005 for s in range(60)]) for factor in (1, 1.01)}
    assert accepted[1.01] <= 0.05
    assert accepted[1] > 0.6
    ratio, low, high = refresh(1.01, 0)
    assert low < ratio < high


def test_refresh_without_rows_or_difference():
    empty = np.empty(0)
    assert not_worse(empty, empty, empty.astype(np.int64), 10, HOUR_US)[2] == math.inf
    losses, times = np.ones(100), np.arange(100) * HOUR_US
    assert not_worse(losses, losses, times, 10, HOUR_US) == (1.0, 1.0, 1.0)
    assert not_worse(np.zeros(100), np.zeros(100), times, 10, HOUR_US) == (1.0, 1.0, 1.0)
    assert not not_worse(losses * math.nan, losses, times, 10, HOUR_US)[2] < 1.005  # never passes


def sums(model, reference):
    """Running sums of daily losses, as the ledger keeps them."""
    parts = (model, reference, model**2, reference**2, model * reference)
    return np.arange(1, len(model) + 1), [np.cumsum(part) for part in parts]


def test_interval_of_the_ratio_holds_it_on_every_day_of_a_year():
    missed, random = 0, np.random.default_rng(4)
    for _ in range(200):
        reference = 24 * np.exp(0.4 * random.standard_t(5, 365))
        model = reference * 0.985 * (1 + 0.1 * random.normal(size=365))
        days, totals = sums(model, reference)
        intervals = [ratio_interval(int(n), *(float(t[n - 1]) for t in totals)) for n in days]
        assert all(ends is None for ends in intervals[: MIN_DAYS - 1])
        missed += any(ends is not None and not ends[0] <= 0.985 <= ends[1] for ends in intervals)
    assert missed / 200 <= 0.05 + 0.03
    assert intervals[-1] is not None
    assert intervals[-1][1] - intervals[-1][0] < 0.06
    assert intervals[-1][0] < 0.985 < intervals[-1][1]


def test_interval_needs_days_and_honest_sums():
    assert ratio_interval(MIN_DAYS - 1, *[1.0] * 5) is None
    assert ratio_interval(0, *[0.0] * 5) is None
    low, high = ratio_interval(100, 98.0, 100.0, 96.04, 100.0, 98.0)  # the same every day
    assert low == pytest.approx(0.98)
    assert high == pytest.approx(0.98)


def test_days_that_share_their_losses_count_for_less():
    """At 1d a loss covers ten days, so neighbouring days are nearly one."""
    sums = (400, 398.0, 400.0, 400.0, 404.0, 401.0)
    hourly, daily = ratio_interval(*sums), ratio_interval(*sums, loss_days=10)
    assert hourly is not None
    assert daily is not None
    assert daily[1] - daily[0] > 2 * (hourly[1] - hourly[0])
    assert ratio_interval(299, *sums[1:], loss_days=10) is None


def test_the_interval_is_as_wide_as_the_theorem_says_with_its_best_parameter_after_90_days():
    """Of a model whose days have the variance 0.04, beside a reference that is the same every day."""
    squares = 90 * (1 + 0.04 * 89 / 90)
    low, high = ratio_interval(90, 90.0, 90.0, squares, 90.0, 90.0)
    assert (low + high) / 2 == pytest.approx(1)
    grown = 90 * np.geomspace(1e-4, 10, 10_000) + 1
    widths = 2 * grown / (90 * (grown - 1)) * np.log(np.sqrt(grown) / 0.05)
    assert ((high - low) / 2) ** 2 == pytest.approx(DAY_CLUSTERING * 0.04 * widths.min(), rel=0.01)
