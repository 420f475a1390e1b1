"""Members and pools judged on markets whose truth is known."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from schemas.errors import MemberError
from tasks.judging import baselines, pool, scores
from tasks.judging.member import MemberScore, judge_member
from tasks.storage.sealed import SEAL, seal
from tests.tools.known_markets import HOUR_US, H, judged, market


def test_realised_is_the_cumulative_log_return():
    series = market()
    truth = scores.realised(series, np.array([100, 2000]), H)
    assert truth.shape == (2, H)
    assert truth[1, 3] == pytest.approx(np.log(series.prices[2004, 3] / series.prices[2000, 3]))


def test_the_reference_is_fitted_on_the_training_span_alone():
    series = market()
    train, test = (series.origins(s, 1, H) for s in ("train", "test"))
    walk = baselines.reference(series, train, test, H)
    prices = series.prices.copy()
    prices[1800:] *= np.linspace(1, 5, len(prices) - 1800)[:, None]  # another future, the same past
    np.testing.assert_array_equal(walk, baselines.reference(replace(series, prices=prices), train, test, H))
    moves = scores.realised(series, train, H)[:, 0] / series.volatility[train]
    np.testing.assert_allclose(
        walk[5, 0] / series.volatility[test[5]], np.quantile(moves, np.arange(1, 20) / 20)
    )
    with pytest.raises(ValueError, match="at least one training origin"):
        baselines.reference(series, train[:0], test, H)


def test_the_reference_against_itself_is_no_different():
    score = judged(market())
    assert score.metrics["test_crps_ratio"] == 1
    assert score.metrics["test_p"] == 1
    assert score.verdict.startswith("no different from")


def test_a_worse_forecast_is_called_worse():
    score = judged(market(), spread=3.0)
    assert score.metrics["test_crps_ratio"] > 1.1
    assert score.metrics["test_crps_ratio_low"] > 1
    assert score.verdict.startswith("worse than")
    assert score.metrics["test_coverage_80"] > 0.95


def test_knowing_the_volatility_beats_not_knowing_it():
    series = market()
    train, test = (series.origins(s, 1, H) for s in ("train", "test"))
    blind = SimpleNamespace(
        origins=test, quantiles=baselines.random_walk(series, train, H).quantiles(series, test)
    )
    score = judge_member(series, blind, baselines.reference(series, train, test, H), architecture="walk")
    assert score.metrics["test_crps_ratio_low"] > 1


def test_metrics_have_the_names_of_the_contract():
    metrics = judged(market()).metrics
    contract = (
        "crps crps_ratio crps_ratio_low crps_ratio_high p n mae_ratio mase directional_accuracy "
        "coverage_50 coverage_80 coverage_90 tail_pinball_ratio"
    )
    assert {f"test_{name}" for name in contract.split()} <= set(metrics)
    assert all(np.isfinite(v) for v in metrics.values())
    assert metrics["test_n"] == len(market().origins("test", 1, H))


def test_a_broken_forecast_is_refused():
    series = market()
    test = series.origins("test", 1, H)
    broken = SimpleNamespace(origins=test, quantiles=np.full((len(test), H, 19), np.nan))
    with pytest.raises(MemberError, match="gru/AUSDT/1h") as refused:
        judge_member(series, broken, broken.quantiles, architecture="gru")
    assert refused.value.code == "non-finite"
    empty = SimpleNamespace(origins=test[:0], quantiles=np.zeros((0, H, 19)))
    with pytest.raises(MemberError) as refused:
        judge_member(series, empty, empty.quantiles, architecture="gru")
    assert refused.value.code == "no-origin"


def test_a_market_that_never_moves_is_judged_without_nan():
    series = market()
    still = replace(series, prices=np.full_like(series.prices, 5.0), volatility=np.full(3000, 1e-6))
    score = judged(still)
    assert all(np.isfinite(v) for v in score.metrics.values())
    assert score.metrics["test_directional_accuracy"] == 0.5


def test_scores_survive_the_disk(tmp_path):
    score = judged(market(), spread=1.2)
    score.to_npz(tmp_path / "score.npz")
    seal(tmp_path)
    back = MemberScore.from_npz(tmp_path / "score.npz")
    assert (back.metrics, back.symbol, back.step_us) == (score.metrics, "AUSDT", HOUR_US)
    np.testing.assert_array_equal(back.losses["crps"], score.losses["crps"])
    assert {p.name for p in tmp_path.iterdir()} == {"score.npz", SEAL}


def test_pooling_weighs_each_coin_alike():
    wild = market(seed=1, symbol="WILDUSDT")
    calm, loud = judged(market(), spread=1.3), judged(wild, spread=1.0)
    loud = replace(loud, losses={k: v * 100 for k, v in loud.losses.items()})
    result = pool.judge_pool([calm, loud])
    expected = (calm.metrics["test_crps_ratio"] + loud.metrics["test_crps_ratio"]) / 2
    assert result.metrics["test_crps_ratio"] == pytest.approx(expected)
    low, high = result.metrics["test_crps_ratio_low"], result.metrics["test_crps_ratio_high"]
    assert low < expected < high
    assert result.metrics["test_n"] == calm.metrics["test_n"] + loud.metrics["test_n"]
    assert result.metrics["coins_below_one"] == 0


def test_the_interval_of_one_coin_is_that_of_its_model():
    member = judged(market(), spread=1.3)
    for name in ("test_crps_ratio_low", "test_crps_ratio_high", "test_p"):
        assert pool.judge_pool([member], seed=7).metrics[name] == member.metrics[name]


def test_coins_that_move_together_are_not_independent_evidence():
    member = judged(market(), spread=1.05)
    twins = [replace(member, symbol=f"C{i}") for i in range(20)]
    alone, together = pool.judge_pool([member]).metrics, pool.judge_pool(twins).metrics
    for name in ("test_p", "test_crps_ratio_low", "test_crps_ratio_high"):
        assert together[name] == pytest.approx(alone[name])


def test_holm_corrects_over_the_members_of_an_architecture():
    members = [judged(market(seed=i, symbol=f"C{i}"), spread=1.04) for i in range(3)]
    corrected = pool.apply_holm([*members, judged(market(), architecture="other")])
    raw = sorted(m.metrics["test_p"] for m in members)
    assert min(m.metrics["test_p_holm"] for m in corrected[:3]) == pytest.approx(min(1, 3 * raw[0]))
    assert corrected[3].metrics["test_p_holm"] == 1
    assert "test_p_holm" not in members[0].metrics


def test_a_verdict_that_the_interval_does_not_show_says_over_how_many_models_p_is_corrected():
    plain = judged(market())
    member = replace(
        plain,
        metrics=plain.metrics | {"test_crps_ratio_low": 0.98, "test_crps_ratio_high": 0.99, "test_p": 0.01},
    )
    (alone,) = pool.apply_holm([member])
    first, *_ = pool.apply_holm([member] * 20)
    assert alone.verdict.startswith("better than")
    assert "no different from" in first.verdict
    assert "p=0.200 corrected over 20 models, n=" in first.verdict
    assert "test_p_holm_models" not in pool.judge_pool([first]).metrics
    wide = replace(first, metrics=first.metrics | {"test_crps_ratio_high": 1.01})
    assert "corrected" not in wide.verdict


def test_pools_are_grouped_and_ordered():
    members = [judged(market(), s, architecture=a) for s, a in ((1.5, "bad"), (1.0, "good"))]
    assert [p.architecture for p in pool.judge_pools(members)] == ["good", "bad"]
    with pytest.raises(ValueError, match="one architecture"):
        pool.judge_pool(members)


def test_two_models_are_compared_on_the_rows_both_have():
    good, bad = judged(market()), judged(market(), spread=2.0)
    half = replace(bad, times=bad.times[100:], losses={k: v[100:] for k, v in bad.losses.items()})
    ratio, p, rows = pool.compare_pair([good], [half])
    assert rows == len(half.times)
    assert ratio == pytest.approx(good.losses["crps"][100:].mean() / half.losses["crps"].mean())
    assert p < 0.01
    with pytest.raises(ValueError, match="no forecast row in common"):
        pool.compare_pair([good], [replace(bad, symbol="OTHER")])


def test_errors_in_price_are_the_members_own():
    series = market()
    score = judged(series)
    train, test = (series.origins(s, 1, H) for s in ("train", "test"))
    median = baselines.reference(series, train, test, H)[..., 9]
    last = series.prices[test, 3][:, None]
    error = series.prices[test[:, None] + np.arange(1, H + 1), 3] - last * np.exp(median)
    assert score.metrics["test_mae_price"] == pytest.approx(np.abs(error).mean())
    assert score.metrics["test_rmse_price"] == pytest.approx(np.sqrt((error**2).mean(axis=0)).mean())
    assert "test_mae_price" not in pool.judge_pool([score]).metrics
