"""Brier scores of the chances that forecasts state, on markets whose truth is known."""

from dataclasses import replace

import numpy as np
import pytest

from cpbmodels.data import extremes
from cpbmodels.data.chances import Chances
from schemas.chances import OUTCOMES, SCORED
from tasks.judging.chance_scores import CHANCES, PAIRS, chance_scores, deciles
from tasks.judging.member import MemberScore
from tasks.judging.pool import judge_pools
from tasks.storage.sealed import seal
from tests.tools.known_chances import forecasts, judged, market, walk_of
from tests.tools.known_markets import H


def test_the_walk_against_itself_is_no_different():
    metrics = judged(market(), forecasts(market())).metrics
    for name in SCORED:
        assert metrics[f"test_{name}_brier_ratio"] == pytest.approx(1, abs=1e-9)
        assert metrics[f"test_{name}_p"] > 0.05
    assert metrics[f"test_{OUTCOMES}_brier_ratio"] == pytest.approx(1, abs=1e-9)
    # A forecast that knew nothing but the chances of the levels would score their mean variance.
    by_chance = {"touch": CHANCES, "above": np.arange(1, 10) / 10}
    for name, chances in by_chance.items():
        constant = np.mean([p * (1 - p) for p in chances])
        assert metrics[f"test_{name}_brier"] == pytest.approx(constant, rel=0.2)


@pytest.mark.parametrize("tick", [0.01, 0])
def test_the_walk_against_itself_is_no_different_where_many_levels_are_one_price(tick):
    series, draw = market(), np.random.default_rng(1)
    moves = np.where(draw.random(len(series.prices)) < 0.3, draw.choice([-1, 1], len(series.prices)), 0)
    close = 100 + tick * np.abs(moves.cumsum() % 20 - 10)
    opened = np.r_[close[0], close[:-1]]
    prices = np.stack([opened, np.maximum(opened, close), np.minimum(opened, close), close], axis=1)
    standing = replace(series, prices=prices)
    metrics = judged(standing, forecasts(standing)).metrics
    for name in SCORED:
        assert metrics[f"test_{name}_brier_ratio"] == pytest.approx(1, abs=1e-3)


def test_the_score_of_a_touch_is_the_squared_distance_between_chance_and_outcome():
    series = market()
    prediction = forecasts(series, spread=1.3)
    score = chance_scores(series, prediction, walk_of(series))
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
    assert score["touch_brier"][n, step] == pytest.approx(np.mean(losses), abs=2e-3)


def won_lost(candles, target, stop):
    """What a trader sees who goes through the candles (high, low): target first, or stop first, or neither."""
    for high, low in candles:
        goal, loss = (high >= target, low <= stop) if target > 1 else (low <= target, high >= stop)
        if goal or loss:
            return (goal and not loss, loss)
    return (False, False)


def test_the_scores_of_what_comes_first_count_a_candle_that_reaches_both_for_the_stop():
    series = market()
    prediction, walk = forecasts(series, spread=1.3), walk_of(series)
    score = chance_scores(series, prediction, walk)
    learned = series.origins("train", 1, H)
    unit = np.median(series.volatility[learned]) * np.sqrt(H)
    for n in (0, 40, 200, 301):
        row = prediction.origins[n]
        candles = series.prices[row + 1 : row + 1 + H, 1:3] / series.prices[row, 3]
        chances = Chances(prediction.extremes, np.exp(prediction.quantiles[n]), 1.0)
        losses, sums = [], []
        for far, near in PAIRS:
            for sign in (1, -1):
                target, stop = np.exp(sign * far * unit), np.exp(-sign * near * unit)
                won, lost = won_lost(candles, target, stop)
                stated = chances.first(target, stop)[-1]
                losses.append((stated[0] - won) ** 2)
                sums.append(
                    losses[-1] + (stated[1] - lost) ** 2 + (1 - stated.sum() - (not (won or lost))) ** 2
                )
        assert score["first_brier"][n] == pytest.approx(np.mean(losses), abs=2e-3)
        assert score[f"{OUTCOMES}_brier"][n] == pytest.approx(np.mean(sums), abs=4e-3)


def test_a_candle_that_reaches_target_and_stop_is_a_loss():
    """Candles that all reach every pair: the target never comes first, the stop always."""
    series = market()
    prices = series.prices.copy()
    prices[:, 1], prices[:, 2] = prices[:, 3] * 2, prices[:, 3] / 2
    wild = replace(series, prices=prices)
    stated = chance_scores(wild, forecasts(wild), walk_of(wild))["first_stated"][0, 0]
    assert stated[:, 0].sum() == 2 * len(PAIRS) * len(wild.origins("test", 1, H))
    assert stated[:, 2].sum() == 0


def test_the_score_of_a_close_is_that_of_the_walks_own_deciles():
    series = market()
    prediction = forecasts(series, spread=1.3)
    score = chance_scores(series, prediction, walk_of(series))
    n, step = 40, 6
    row = prediction.origins[n]
    close = series.prices[row + 1 + step, 3] / series.prices[row, 3]
    chances = Chances(None, np.exp(prediction.quantiles[n]), 1.0)
    deciles_of_walk = np.exp(forecasts(series).quantiles[n, step, 1::2])
    losses = [(chances.above(level)[step] - (close > level)) ** 2 for level in deciles_of_walk]
    of_walk = [(1 - d / 10 - (close > level)) ** 2 for d, level in enumerate(deciles_of_walk, 1)]
    assert len(losses) == 9
    assert score["above_brier"][n, step] == pytest.approx(np.mean(losses), abs=1e-9)
    assert score["reference_above_brier"][n, step] == pytest.approx(np.mean(of_walk), abs=1e-9)


def test_too_wide_a_forecast_is_worse_and_states_too_much():
    series = market()
    score = judged(series, forecasts(series, spread=2.0))
    for name in SCORED:
        assert score.metrics[f"test_{name}_brier_ratio_low"] > 1
    for of_step in score.steps["touch_stated"]:
        stated, touched = deciles(of_step).T
        assert (stated > touched + 0.02).all()


def test_chances_are_counted_by_step():
    series = market()
    score = judged(series, forecasts(series))
    origins = len(series.origins("test", 1, H))
    for name, steps, prices in (("touch", H, 8), ("first", 1, 14), ("above", H, 9)):
        counts = score.steps[f"{name}_stated"]
        assert counts.shape == (steps, 100, 3)
        assert counts[..., 0].sum(axis=1).tolist() == [prices * origins] * steps
    # A chance of the fifth step is counted at the fifth.
    fifth = forecasts(series)
    fifth.quantiles[:, 4] *= 2
    changed = judged(series, fifth).steps
    for name in ("touch", "above"):
        same = (changed[f"{name}_stated"] == score.steps[f"{name}_stated"]).all(axis=(1, 2))
        assert np.flatnonzero(~same).tolist() == [4]


def test_deciles_of_a_calibrated_forecast_are_what_happened():
    series = market(30_000)
    series = replace(series, spans=series.spans | {"train": (0, 20_000), "test": (20_200, 30_000)})
    steps = judged(series, forecasts(series)).steps
    for name in SCORED:
        stated, came = deciles(steps[f"{name}_stated"].sum(axis=0)).T
        assert (np.diff(stated) >= 0).all()
        np.testing.assert_allclose(stated, came, atol=0.05)


def test_groups_are_of_equal_counts():
    counts = np.zeros((100, 3))
    counts[10:20] = (5, 0.75, 1)
    np.testing.assert_allclose(deciles(counts), [[0.15, 0.2]] * 10)


def test_a_model_is_scored_on_what_its_table_knows():
    series = market()
    whole = forecasts(series)
    levels = np.sort(np.random.default_rng(0).gamma(1, 1, (2, H, 99)), axis=-1).astype(np.float32)
    of_before = replace(whole, extremes=extremes.Extremes(levels))
    for prediction, known in (
        (whole, ["touch", "first", OUTCOMES, "above"]),
        (of_before, ["touch", "above"]),
        (replace(whole, extremes=None), ["above"]),
    ):
        score = judged(series, prediction)
        assert {name for name in score.metrics if name.endswith("brier_ratio")} == {
            f"test_{name}_brier_ratio" for name in known
        }
        assert {name for name in score.losses if name.endswith("brier")} == {
            f"{of}{name}_brier" for name in known if name != OUTCOMES for of in ("", "reference_")
        }


def test_scores_are_stored_and_pooled_with_interval_and_test(tmp_path):
    coins = [market(seed=seed, symbol=f"C{seed}USDT") for seed in range(3)]
    members = [judged(coin, forecasts(coin, spread=1.6)) for coin in coins]
    members[0].to_npz(tmp_path / "score.npz")
    seal(tmp_path)
    again = MemberScore.from_npz(tmp_path / "score.npz")
    np.testing.assert_array_equal(again.losses["first_brier"], members[0].losses["first_brier"])
    (pool,) = judge_pools(members)
    for name in SCORED:
        ratios = [member.metrics[f"test_{name}_brier_ratio"] for member in members]
        assert pool.metrics[f"test_{name}_brier_ratio"] == pytest.approx(np.mean(ratios))
        ends = [pool.metrics[f"test_{name}_brier_ratio{end}"] for end in ("_low", "", "_high")]
        assert ends == sorted(ends)
        assert 0 <= pool.metrics[f"test_{name}_p"] <= 1
        counts = [member.steps[f"{name}_stated"] for member in members]
        np.testing.assert_allclose(pool.steps[f"{name}_stated"], np.mean(counts, axis=0))


def test_a_pool_has_what_all_of_its_members_have():
    coins = [market(seed=seed, symbol=f"C{seed}USDT") for seed in range(2)]
    members = [
        judged(coins[0], forecasts(coins[0])),
        judged(coins[1], replace(forecasts(coins[1]), extremes=None)),
    ]
    (pool,) = judge_pools(members)
    assert "above_stated" in pool.steps
    assert not {"test_touch_p", "test_first_p"} & pool.metrics.keys()
    assert not {"touch_stated", "first_stated"} & pool.steps.keys()
