"""Scores against independent implementations and closed forms."""

import numpy as np
import properscoring
import pytest
from scipy import stats
from sklearn import metrics as sk

from tasks.judging import scores
from tasks.judging.scores import LEVELS, MEDIAN


@pytest.fixture
def forecast():
    """Quantiles [200, 4, 19] that never cross, and realised values [200, 4]."""
    random = np.random.default_rng(1)
    quantiles = np.sort(random.normal(0, 0.02, (200, 4, 19)), axis=-1)
    return quantiles, random.normal(0, 0.02, (200, 4))


def test_pinball_equals_scikit_learn(forecast):
    quantiles, truth = forecast
    ours = scores.pinball(quantiles, truth).mean(axis=(0, 1))
    theirs = [
        sk.mean_pinball_loss(truth.ravel(), quantiles[..., i].ravel(), alpha=a) for i, a in enumerate(LEVELS)
    ]
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def test_crps_agrees_with_properscoring_on_its_own_levels(monkeypatch):
    # An ensemble of m members is a set of quantiles at (i - 1/2) / m: there both definitions are identical.
    random = np.random.default_rng(3)
    ensemble, truth = np.sort(random.normal(size=(50, 3, 19)), axis=-1), random.normal(size=(50, 3))
    monkeypatch.setattr(scores, "LEVELS", (np.arange(1, 20) - 0.5) / 19)
    np.testing.assert_allclose(
        scores.crps(ensemble, truth), properscoring.crps_ensemble(truth, ensemble), rtol=1e-9
    )


def test_coverage_and_width_of_a_known_distribution():
    random = np.random.default_rng(4)
    truth = random.normal(0, 1, (40_000, 2))
    quantiles = np.broadcast_to(stats.norm.ppf(LEVELS), (40_000, 2, 19))
    for band in (50, 80, 90):
        np.testing.assert_allclose(scores.coverage(quantiles, truth, band), band / 100, atol=0.01)
        inside = stats.norm.interval(band / 100)
        np.testing.assert_allclose(scores.width(quantiles, band), inside[1] - inside[0], rtol=1e-9)
    np.testing.assert_allclose(scores.reliability(quantiles, truth), LEVELS, atol=0.01)


def test_errors_in_return_and_price_equal_scikit_learn(forecast):
    quantiles, truth = forecast
    median, last = quantiles[..., MEDIAN], np.random.default_rng(5).uniform(1, 9, 200)
    np.testing.assert_allclose(
        scores.rmse(median, truth),
        sk.root_mean_squared_error(truth, median, multioutput="raw_values"),
        rtol=1e-9,
    )
    mae, rmse = scores.price_errors(median, truth, last)
    price, guess = last[:, None] * np.exp(truth), last[:, None] * np.exp(median)
    np.testing.assert_allclose(mae, sk.mean_absolute_error(price, guess, multioutput="raw_values"), rtol=1e-9)
    np.testing.assert_allclose(
        rmse, sk.root_mean_squared_error(price, guess, multioutput="raw_values"), rtol=1e-9
    )


def test_mase_of_the_random_walk_one_step_ahead_is_one():
    returns = np.random.default_rng(6).normal(0, 0.01, (500, 1))
    assert scores.mase(np.zeros((500, 1)), returns, returns.ravel()) == pytest.approx(1)


def test_direction_leaves_flat_moves_out_and_gives_no_opinion_half():
    median = np.array([[0.1], [-0.1], [0.1], [0.0], [0.1]])
    truth = np.array([[0.2], [-0.3], [-0.1], [0.4], [0.0]])
    hits, counted = scores.direction_hits(median, truth)
    assert (hits[0], counted[0]) == (2.5, 4)


def test_classification_equals_scikit_learn():
    random = np.random.default_rng(7)
    actual, predicted = random.integers(0, 3, 500), random.integers(0, 3, 500)
    ours = scores.classification(predicted, actual)
    assert ours["accuracy"] == pytest.approx(sk.accuracy_score(actual, predicted), rel=1e-9)
    assert ours["macro_f1"] == pytest.approx(sk.f1_score(actual, predicted, average="macro"), rel=1e-9)
    np.testing.assert_array_equal(ours["confusion"], sk.confusion_matrix(actual, predicted))


def test_macro_f1_ignores_classes_that_never_occur():
    ours = scores.classification(np.array([0, 0, 2]), np.array([0, 2, 2]))
    assert ours["macro_f1"] == pytest.approx(sk.f1_score([0, 2, 2], [0, 0, 2], average="macro"))


def test_a_value_on_the_edge_of_a_band_is_inside():
    levels = np.arange(19.0).reshape(1, 1, 19)
    for band, (low, high) in scores.BAND_LEVELS.items():
        for edge in (low, high):
            assert scores.coverage(levels, np.array([[float(edge)]]), band).tolist() == [1.0]
        for beyond in (low - 1e-9, high + 1e-9):
            assert scores.coverage(levels, np.array([[beyond]]), band).tolist() == [0.0]


def test_a_class_that_is_predicted_once_and_wrongly_counts_in_macro_f1():
    predicted, actual = np.array([0, 0, 1, 2]), np.array([0, 0, 0, 2])
    ours = scores.classification(predicted, actual)
    assert ours["macro_f1"] == pytest.approx(sk.f1_score(actual, predicted, average="macro"))
    assert ours["macro_f1"] == pytest.approx((0.8 + 0 + 1) / 3)
