"""The drift watch: quiet where promises are kept, quick where bands are narrow; `research.drift` on made-up hours."""

import numpy as np
import pytest

from research import drift as simulation
from research.drift import FACTORS, Years, alarms, delays, look, recoveries
from schemas.reference import BANDS
from tasks.judging.drift import ALARM


def years(series, hours, seed):
    """Hours of series whose moves follow Student's t with 4 degrees, in bands that are right."""
    random = np.random.default_rng(seed)
    moves = np.abs(random.standard_t(4, (hours, series)))
    edges = {50: 0.741, 80: 1.533, 90: 2.132}
    missed = np.array([[moves > factor * edges[band] for band in BANDS] for factor in FACTORS])
    # The reference's bands are wider or narrower from hour to hour, by a scale of its own.
    scale = np.exp(0.15 * random.standard_normal(moves.shape))
    ref_missed = np.array([moves > scale * edges[band] for band in BANDS])
    step = random.standard_normal((hours + 10, series))
    loss = np.abs(np.cumsum(step, axis=0)[10:] - np.cumsum(step, axis=0)[:-10])
    crps = np.stack([loss] * len(FACTORS))
    promise = np.array([0.5, 0.8, 0.9, *(1 - ref_missed.mean(axis=(1, 2))), 1.0])[:, None, None]
    width = np.full(loss.shape, 5 * loss.mean())
    return Years(missed, ref_missed, crps, loss, width, np.broadcast_to(promise, (7, *loss.shape)))


def test_a_year_of_40_series_that_keep_their_promise_is_quiet():
    """The short form of `research.drift`, which does the same with real hours."""
    assert alarms(look(years(40, 8760, seed=1))).sum() <= 1


def test_bands_a_fifth_too_narrow_are_found_in_two_weeks_and_forgiven_when_they_are_right_again():
    hours, onset = 90 * 24, 40 * 24
    made, none = years(60, hours, seed=2), np.zeros((hours, 60), dtype=int)
    over = onset + 30 * 24
    at = none.copy()
    at[onset:over] = FACTORS.index(0.8)
    evidence = look(made, at)
    found = delays(evidence, np.full(60, onset))
    assert np.median(found) <= 14
    assert (found < 30).mean() > 0.9
    assert np.nanmedian(recoveries(evidence, np.full(60, over))) < 10
    # A watch that began anew with every version of a nightly training would see nothing.
    at[onset:] = FACTORS.index(0.8)
    assert look(made, at, restart=24).max() < ALARM


def test_a_loss_5_percent_larger_is_found():
    hours, onset = 100 * 24, 20 * 24
    made = years(40, hours, seed=3)
    worse = np.where(np.arange(hours)[:, None] >= onset, 1.05, 1.0) * np.ones((1, 40))
    better = np.ones((hours, 40)) * 0.98
    # The two models' losses differ by noise of their own, a fifth of the loss.
    noise = 1 + 0.05 * np.random.default_rng(0).standard_normal((hours, 40))
    assert np.median(delays(look(made, worse=worse * noise), np.full(40, onset))) < 60
    assert look(made, worse=better * noise).max() < ALARM


@pytest.mark.slow
def test_the_study_runs_from_candles_to_figures(monkeypatch):
    from known_markets import START, A, busy_hours

    from cpbmodels.data.columns import feature_frame
    from cpbmodels.data.series import Series

    monkeypatch.setattr(simulation, "HOURS", 1500)
    series = Series.from_columns(feature_frame(busy_hours(13_000), "1h"), symbol="AUSDT", timeframe="1h")
    since = int(START.timestamp() * 1e6) + 420 * simulation.DAY_US
    blocks = simulation.blocks_of_series(series, A, since)
    assert {b.span for b in blocks} == {0, 1}
    assert blocks[0].missed.shape[:2] == (len(FACTORS), 3)
    narrower = [blocks[0].missed[i].mean(axis=1) for i in range(len(FACTORS))]
    assert (np.diff(narrower, axis=0) >= 0).all()
    found = simulation.measure(blocks, series=4)
    assert found["odd spans"]["changes"]["narrow_0.8"]["n"] > 0
    assert set(found["stability"]) == set(blocks[0].psi)
    simulation.show(found)
