"""The gambler of the drift watch: fair odds, no debt."""

import numpy as np
import pytest

from schemas.reference import BANDS
from tasks.judging.drift import TOLERANCE_MISSES, Capital, Outcome, limits

HOUR = 3600
LEVELS = {band: (100 - band) / 100 for band in BANDS}
KEPT = limits({band: 1 - share for band, share in LEVELS.items()}, 1.0)


def outcome(missed, crps=1.0, ref_crps=1.0, width=5.0):
    return Outcome(missed, crps, ref_crps, width)


def test_the_odds_are_fair_at_the_limit_and_worse_below_it():
    shares = [1.0, *(float(KEPT.misses[band]) for band in BANDS), 0.0]
    gains = []
    for number in range(4):
        capital = Capital(10)
        capital.bands = np.asarray(1.0)
        capital.take(outcome({band: i < number for i, band in enumerate(BANDS)}), KEPT, 0)
        gains.append(float(capital.bands))
    assert gains == sorted(gains)
    assert np.dot(-np.diff(shares), gains) == pytest.approx(1)
    kept = [1.0, *LEVELS.values(), 0.0]
    assert np.dot(-np.diff(kept), gains) < 0.999


def test_limits_are_the_promise_with_its_tolerance_and_nominal_without_one():
    found = limits({80: 0.79}, 0.99)
    assert found.misses[80] == pytest.approx(0.21 + TOLERANCE_MISSES[80])
    assert found.misses[90] == pytest.approx(0.10 + TOLERANCE_MISSES[90])
    assert found.crps_ratio == pytest.approx(0.99 * 1.02)
    odd = limits({50: 0.0, 80: 1.0, 90: 1.0}, 1.0).misses  # a test span of a few hours
    assert 1 > odd[50] > odd[80] > odd[90] > 0


@pytest.mark.parametrize("horizon", [1, 2, 10, 24])
def test_the_worst_outcomes_leave_no_debt(horizon):
    capital = Capital(horizon)
    capital.crps[:] = 1.0
    for _ in range(20 * horizon):
        capital.take(outcome(dict.fromkeys(BANDS, False), crps=0.0, ref_crps=9.0), KEPT, 0)
        assert float(capital.crps[-1]) >= 0
        assert capital.evidence["crps"] >= 0


def test_nothing_is_gained_in_expectation_from_overlapping_losses_whenever_one_stops():
    random = np.random.default_rng(5)
    n, hours, horizon = 4000, 400, 10
    shocks = random.standard_t(4, (hours + horizon, n)) * 0.12
    capital, best = Capital(horizon, (n,)), np.zeros(n)
    stopped, at = np.zeros(n, dtype=bool), np.zeros(n)
    for t in range(hours):
        excess = shocks[t + 1 : t + horizon + 1].sum(axis=0) / np.sqrt(horizon)
        chance = random.random(n)
        missed = {band: chance < KEPT.misses[band] for band in BANDS}
        capital.take(outcome(missed, KEPT.crps_ratio + 0.2 * excess, 1.0, 1.0), KEPT, HOUR)
        total = capital.total
        best = np.maximum(best, total)
        stop = ~stopped & (total >= 3 * (t + 1) / 8766)  # at the first threefold gain
        at[stop], stopped = total[stop] - (t + 1) / 8766, stopped | stop
    at[~stopped] = capital.total[~stopped] - hours / 8766
    assert stopped.mean() > 0.1
    assert at.mean() <= 3 * at.std() / np.sqrt(n)
