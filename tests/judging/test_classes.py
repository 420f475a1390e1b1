"""Classifiers judged by the ranked probability score, accuracy, macro-F1 and confusion."""

from types import SimpleNamespace

import numpy as np
import pytest
from sklearn import metrics as sk

from schemas.errors import MemberError
from tasks.judging.classes import judge_classes, ranked_probability_score, true_classes
from tasks.judging.pool import apply_holm, judge_pool
from tests.tools.known_markets import market

BAND = 0.3


def test_rps_of_two_classes_is_the_brier_score():
    random = np.random.default_rng(0)
    chance, actual = random.uniform(size=300), random.integers(0, 2, 300)
    ours = ranked_probability_score(np.column_stack([chance, 1 - chance]), actual).mean()
    assert ours == pytest.approx(sk.brier_score_loss(actual == 0, chance), rel=1e-9)


def test_a_certain_hit_costs_nothing_and_far_misses_cost_more():
    sure = np.array([[1.0, 0.0, 0.0]] * 3)
    np.testing.assert_allclose(ranked_probability_score(sure, np.array([0, 1, 2])), [0, 1, 2])


def test_classes_are_cut_at_the_band():
    series = market()
    rows = np.arange(500, 900)
    move = np.diff(np.log(series.prices[500:901, 3])) / series.volatility[500:900]
    expected = np.where(move > BAND, 0, np.where(move < -BAND, 2, 1))
    np.testing.assert_array_equal(true_classes(series, rows, BAND), expected)


def judged(chances_of, seed=0):
    series = market(seed=seed, symbol=f"C{seed}USDT")
    test = series.origins("test", 1, 10)
    actual = true_classes(series, test, BAND)
    forecast = SimpleNamespace(origins=test, probabilities=chances_of(actual))
    return judge_classes(series, forecast, band=BAND, architecture="classifier-gru"), actual


def test_an_oracle_is_better_and_noise_is_not():
    oracle, actual = judged(lambda a: 0.7 * np.eye(3)[a] + 0.1)
    assert oracle.metrics["test_accuracy"] == 1
    assert oracle.metrics["test_directional_accuracy"] == 1
    assert judged(lambda a: 0.7 * np.eye(3)[2 - a] + 0.1)[0].metrics["test_directional_accuracy"] == 0
    assert oracle.verdict.startswith("better than")
    confusion = [
        [oracle.metrics[f"test_confusion_{a}_{p}"] for p in ("up", "flat", "down")]
        for a in ("up", "flat", "down")
    ]
    np.testing.assert_array_equal(confusion, sk.confusion_matrix(actual, actual))
    noise, _ = judged(lambda a: np.random.default_rng(1).dirichlet([1, 1, 1], len(a)))
    assert noise.verdict.startswith("worse than")


def test_classifiers_are_pooled_like_any_model():
    members = apply_holm([judged(lambda a: 0.4 * np.eye(3)[a] + 0.2, seed=s)[0] for s in (0, 1)])
    pooled = judge_pool(members)
    assert pooled.metrics["test_crps_ratio"] < 1
    assert pooled.metrics["test_accuracy"] == 1
    assert pooled.verdict.startswith("better than")


def test_probabilities_that_are_not_finite_are_a_failure_of_this_member():
    with pytest.raises(MemberError) as refused:
        judged(lambda a: np.full((len(a), 3), np.nan))
    assert refused.value.code == "non-finite"
