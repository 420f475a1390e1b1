"""The gambler of the drift watch: fair odds, no debt."""

import numpy as np
import pytest

from schemas.ledger import BANDS
from tasks.judging.drift import TOLERANCE_EXCESS, TOLERANCE_MISSES, Capital, Outcome, limits

HOUR = 3600
LEVELS = {band: (100 - band) / 100 for band in BANDS}
KEPT = limits({band: 1 - share for band, share in LEVELS.items()}, 1.0)


NONE = dict.fromkeys(BANDS, 0)


def outcome(missed, crps=1.0, ref_crps=1.0, width=5.0, ref_missed=NONE):
    return Outcome(missed, ref_missed, crps, ref_crps, width)


def test_the_odds_are_fair_at_the_limit_and_worse_below_it():
    shares = [1.0, *(float(KEPT.misses[band]) for band in BANDS), 0.0]
    gains = []
    for number in range(4):
        capital = Capital(10)
        capital.bands = np.asarray(1.0)
        capital.update(outcome({band: i < number for i, band in enumerate(BANDS)}), KEPT, 0)
        gains.append(float(capital.bands))
    assert gains == sorted(gains)
    assert np.dot(-np.diff(shares), gains) == pytest.approx(1)
    kept = [1.0, *LEVELS.values(), 0.0]
    assert np.dot(-np.diff(kept), gains) < 0.999


def test_misses_that_the_reference_shares_are_no_evidence():
    both, alone = Capital(10), Capital(10)
    narrow = {50: True, 80: True, 90: False}
    for _ in range(300):
        both.update(outcome(narrow, ref_missed=narrow), KEPT, HOUR)
        alone.update(outcome(narrow), KEPT, HOUR)
    assert both.bands == alone.bands > 10
    assert alone.evidence["bands"] > 10
    assert both.evidence["bands"] < 0.1


def test_the_bet_on_the_excess_is_fair_at_its_limit_and_leaves_no_debt():
    limit = limits({50: 0.45, 80: 0.78, 90: 0.9}, 1.0, {50: 0.5, 80: 0.79, 90: 0.88})
    assert limit.excess == pytest.approx(0.05 + 0.01 - 0.02 + TOLERANCE_EXCESS)
    capital = Capital(10)
    gains = []
    for excess in (-3, 0, 1, 3):
        capital.excess = np.asarray(1.0)
        model, walk = max(excess, 0), max(-excess, 0)
        made = [{band: i < n for i, band in enumerate(BANDS)} for n in (model, walk)]
        capital.update(outcome(made[0], ref_missed=made[1]), limit, 0)
        gains.append(float(capital.excess))
    assert min(gains) > 0
    # Linear in the excess, so fair whatever its distribution: no gain where its mean is the limit.
    np.testing.assert_allclose(np.polyfit([-3, 0, 1, 3], gains, 1)[0] * limit.excess + gains[1], 1)
    odd = limits({50: 0.0, 80: 0.0, 90: 0.0}, 1.0, dict.fromkeys(BANDS, 1.0))
    assert odd.excess == pytest.approx(0.5)


def test_limits_are_the_promise_with_its_tolerance_and_nominal_without_one():
    limit = limits({80: 0.79}, 0.99)
    assert limit.misses[80] == pytest.approx(0.21 + TOLERANCE_MISSES[80])
    assert limit.misses[90] == pytest.approx(0.10 + TOLERANCE_MISSES[90])
    assert limit.crps_ratio == pytest.approx(0.99 * 1.02)
    odd = limits({50: 0.0, 80: 1.0, 90: 1.0}, 1.0).misses  # a test span of a few hours
    assert 1 > odd[50] > odd[80] > odd[90] > 0


@pytest.mark.parametrize("horizon", [1, 2, 10, 24])
def test_the_worst_outcomes_leave_no_debt(horizon):
    capital = Capital(horizon)
    capital.crps[:] = 1.0
    for _ in range(20 * horizon):
        capital.update(outcome(dict.fromkeys(BANDS, False), crps=0.0, ref_crps=9.0), KEPT, 0)
        assert float(capital.crps[-1]) >= 0
        assert capital.evidence["crps"] >= 0


@pytest.mark.parametrize("bet", ["bands", "excess"])
def test_nothing_is_gained_in_expectation_from_overlapping_losses_whenever_one_stops(bet):
    random = np.random.default_rng(5)
    n, hours, horizon = 4000, 400, 10
    shocks = random.standard_t(4, (hours + horizon, n)) * 0.12
    capital, best = Capital(horizon, (n,)), np.zeros(n)
    stopped, at = np.zeros(n, dtype=bool), np.zeros(n)
    for t in range(hours):
        excess = shocks[t + 1 : t + horizon + 1].sum(axis=0) / np.sqrt(horizon)
        chance = random.random(n)
        missed = {band: chance < KEPT.misses[band] for band in BANDS}
        # the reference misses at other hours, and less often by the limit of the excess
        walk = random.random(n)
        ref_missed = {band: walk < KEPT.misses[band] - KEPT.excess / len(BANDS) for band in BANDS}
        capital.update(outcome(missed, KEPT.crps_ratio + 0.2 * excess, 1.0, 1.0, ref_missed), KEPT, HOUR)
        total = getattr(capital, bet) + capital.evidence["crps"]
        best = np.maximum(best, total)
        stop = ~stopped & (total >= 3 * (t + 1) / 8766)  # at the first threefold gain
        at[stop], stopped = total[stop] - (t + 1) / 8766, stopped | stop
    at[~stopped] = total[~stopped] - hours / 8766
    assert stopped.mean() > 0.1
    assert at.mean() <= 3 * at.std() / np.sqrt(n)


def test_a_band_without_a_promise_has_its_nominal_share():
    nominal = {band: band / 100 for band in BANDS}
    assert limits({}, 1.0).misses == limits(nominal, 1.0).misses
    assert limits({}, 1.0).excess == pytest.approx(limits(nominal, 1.0, nominal).excess)
