"""Baselines: fitted on the past, right where the truth is known, one interface."""

from dataclasses import replace

import numpy as np
import pytest

from cpbmodels.data.columns import feature_frame
from tasks.backtesting.methods import robust_har
from tasks.judging import baselines, scores
from tasks.judging.scores import crps
from tasks.signals.feature_files import series_of
from tests.tools.known_markets import A, B, H, bounds_of, busy_hours

FITS = {
    "walk": baselines.random_walk,
    "reference": baselines.ewma_walk,
    "har": robust_har,
}


@pytest.fixture(scope="module")
def series():
    return series_of(feature_frame(busy_hours(), "1h"), A, bounds_of())


def spans(series):
    return series.origins("train", 1, H), series.origins("test", 1, H)


@pytest.mark.parametrize("name", FITS)
def test_a_baseline_gives_ascending_quantiles_from_the_past_alone(series, name):
    train, test = spans(series)
    fitted = FITS[name](series, train, H)
    quantiles = fitted.quantiles(series, test)
    assert quantiles.shape == (len(test), H, 19)
    assert (np.diff(quantiles, axis=-1) >= 0).all()
    prices, features = series.prices.copy(), series.features.copy()
    last = series.spans["train"][1]
    prices[last:] *= 3
    features[last:] = features[last:][::-1]
    other = FITS[name](replace(series, prices=prices, features=features), train, H)
    np.testing.assert_allclose(other.quantiles(series, test), quantiles, rtol=1e-9)


def test_knowing_the_hour_is_worth_what_it_is_worth(series):
    train, test = spans(series)
    truth = scores.realised(series, test, H)
    loss = {n: crps(f(series, train, H).quantiles(series, test), truth).mean() for n, f in FITS.items()}
    assert loss["har"] < 0.97 * loss["reference"]


def test_the_robust_har_serves_a_coin_it_never_saw(series):
    train, test = spans(series)
    unseen = series_of(feature_frame(busy_hours(seed=9), "1h"), B, bounds_of())
    fitted = robust_har(series, train, H)
    truth = scores.realised(unseen, test, H)
    walk = baselines.reference(unseen, unseen.origins("train", 1, H), test, H)
    assert crps(fitted.quantiles(unseen, test), truth).mean() < crps(walk, truth).mean()
    with pytest.raises(ValueError, match="at least one training origin"):
        robust_har(series, train[:0], H)


def test_the_baseline_is_the_architecture_of_the_same_name(series):
    import cpbmodels

    train, test = spans(series)
    (member,) = cpbmodels.train_fleet([series], "robust-har", dtype="float64", device="cpu")
    served = cpbmodels.predict([member], [series], [test])[0]
    np.testing.assert_allclose(
        served.quantiles, robust_har(series, train, H).quantiles(series, test), rtol=1e-9
    )
