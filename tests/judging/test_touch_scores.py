"""The Brier score of the chance that a price is touched, on markets whose truth is known."""

from dataclasses import replace

import numpy as np
import pytest

from cpbmodels.data import extremes
from cpbmodels.data.chances import Chances
from cpbmodels.data.prediction import Prediction
from tasks.judging import baselines
from tasks.judging.member import MemberScore, judge_member
from tasks.judging.pool import judge_pools
from tasks.judging.touch_scores import BRIER, CHANCES, STATED, deciles, touch_scores
from tasks.storage.sealed import seal
from tests.tools.known_markets import H
from tests.tools.known_markets import market as known_market


def market(rows=3000, **options):
    """The known market with wicks: without, many candles do not leave the last close."""
    series = known_market(rows, **options)
    prices, wicks = series.prices.copy(), np.random.default_rng(9).normal(0, 0.003, (2, rows))
    prices[:, 1] *= np.exp(np.abs(wicks[0]))
    prices[:, 2] *= np.exp(-np.abs(wicks[1]))
    return replace(series, prices=prices)


def walk_of(series):
    return baselines.ewma_walk(series, series.origins("train", 1, H), H)


def forecasts(series, spread=1.0, table=None):
    """The walk's own forecasts over the test span, stretched, with its own table unless another is given."""
    walk, learned, test = walk_of(series), series.origins("train", 1, H), series.origins("test", 1, H)
    if table is None:
        widths = extremes.width(walk.quantiles(series, learned))
        table = extremes.fit(extremes.reached(series, learned, H), widths)
    return Prediction(test, walk.quantiles(series, test) * spread, extremes=table)


def judged(series, prediction, architecture="x"):
    walk = walk_of(series)
    other = walk.quantiles(series, prediction.origins)
    return judge_member(
        series, prediction, other, architecture=architecture, touch=touch_scores(series, prediction, walk)
    )


def test_the_walk_against_itself_is_no_different():
    metrics = judged(market(), forecasts(market())).metrics
    assert metrics["test_touch_brier_ratio"] == pytest.approx(1, abs=1e-9)
    assert metrics["test_touch_p"] > 0.05
    # A forecast that knew nothing but the chances of the levels would score their mean variance.
    assert metrics["test_touch_brier"] == pytest.approx(np.mean([p * (1 - p) for p in CHANCES]), rel=0.2)


def test_the_score_is_the_squared_distance_between_chance_and_outcome():
    series = market()
    prediction = forecasts(series, spread=1.3)
    walk = walk_of(series)
    score = touch_scores(series, prediction, walk)
    own = forecasts(series)
    n, step = 40, 6
    losses = []
    row, width = prediction.origins[n], extremes.width(own.quantiles[n])[step]
    candles = series.prices[row + 1 : row + 2 + step] / series.prices[row, 3]
    for side, sign in enumerate((1, -1)):
        for chance in CHANCES:
            level = own.extremes.reach(side, chance)[step] * width
            hit = candles[:, 1].max() >= np.exp(level) if side == 0 else candles[:, 2].min() <= np.exp(-level)
            chances = Chances(prediction.extremes, np.exp(prediction.quantiles[n]), 1.0)
            stated = chances.touch(np.exp(sign * level))[step]
            losses.append((stated - hit) ** 2)
    assert score[BRIER][n, step] == pytest.approx(np.mean(losses), abs=2e-3)


def test_too_wide_a_forecast_is_worse_and_states_too_much():
    series = market()
    score = judged(series, forecasts(series, spread=2.0))
    assert score.metrics["test_touch_brier_ratio_low"] > 1
    stated, touched = deciles(score.steps[STATED]).T
    assert (stated > touched + 0.02).all()


def test_deciles_of_a_calibrated_forecast_are_what_happened():
    series = market(30_000)
    series = replace(series, spans=series.spans | {"train": (0, 20_000), "test": (20_200, 30_000)})
    stated, touched = deciles(judged(series, forecasts(series)).steps[STATED]).T
    assert (np.diff(stated) >= 0).all()
    np.testing.assert_allclose(stated, touched, atol=0.05)


def test_groups_are_of_equal_counts():
    counts = np.zeros((100, 3))
    counts[10:20] = (5, 0.75, 1)
    np.testing.assert_allclose(deciles(counts), [[0.15, 0.2]] * 10)


def test_a_model_without_a_table_has_no_score():
    series = market()
    metrics = judged(series, replace(forecasts(series), extremes=None)).metrics
    assert not [name for name in metrics if "touch" in name]


def test_scores_are_stored_and_pooled_with_interval_and_test(tmp_path):
    coins = [market(seed=seed, symbol=f"C{seed}USDT") for seed in range(3)]
    members = [judged(coin, forecasts(coin, spread=1.6)) for coin in coins]
    members[0].to_npz(tmp_path / "score.npz")
    seal(tmp_path)
    again = MemberScore.from_npz(tmp_path / "score.npz")
    np.testing.assert_array_equal(again.losses[BRIER], members[0].losses[BRIER])
    (pool,) = judge_pools(members)
    ratios = [member.metrics["test_touch_brier_ratio"] for member in members]
    assert pool.metrics["test_touch_brier_ratio"] == pytest.approx(np.mean(ratios))
    ends = [pool.metrics[f"test_touch_brier_ratio{end}"] for end in ("_low", "", "_high")]
    assert ends == sorted(ends)
    assert 0 <= pool.metrics["test_touch_p"] <= 1
    assert pool.steps[STATED].shape == (100, 3)
