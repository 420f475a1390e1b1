"""Baselines: fitted on the past, right where the truth is known, one interface."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from cpbmodels.ranges import future_range
from tasks.judging import baselines
from tasks.judging.boosted import boosted
from tasks.judging.garch import garch
from tasks.judging.robust_har import robust_har, universal_har
from tasks.judging.scores import crps
from tasks.signals.columns import feature_frame
from tasks.signals.splits import SplitBounds
from tasks.signals.store import series_of

H = 10
START = datetime(2024, 1, 1, tzinfo=UTC)
FITS = {
    "walk": baselines.random_walk,
    "reference": baselines.ewma_walk,
    "har": robust_har,
    "garch": garch,
    "boosted": boosted,
}


def busy_hours(rows=6000, seed=0):
    """Klines whose volatility triples between 12 and 18 UTC: the hour is worth knowing."""
    random = np.random.default_rng(seed)
    hour = np.arange(rows) % 24
    sigma = np.where((hour >= 12) & (hour < 18), 0.012, 0.004)
    path = random.normal(0, 1, (rows, 12)) * (sigma / np.sqrt(12))[:, None]
    inside = np.cumsum(path, axis=1)
    close = np.cumsum(inside[:, -1])
    opened = close - inside[:, -1]
    prices = np.exp(np.column_stack([
        opened, opened + np.maximum(inside.max(axis=1), 0), opened + np.minimum(inside.min(axis=1), 0), close,
    ])) * 100  # fmt: skip
    times = [START + timedelta(hours=i) for i in range(rows)]
    return pl.DataFrame(
        {
            "open_time": pl.Series(times, dtype=pl.Datetime("us", "UTC")),
            **{n: prices[:, i] for i, n in enumerate(("open", "high", "low", "close"))},
            "volume": random.lognormal(2, 1, rows),
        }
    )


def bounds_of(rows=6000):
    at = [START + timedelta(hours=h) for h in (0, rows - 1700, rows - 1500, rows - 1200, rows - 1000, rows)]
    return SplitBounds(timeframe="1h", train=(at[0], at[1]), validation=(at[2], at[3]), test=(at[4], at[5]))


@pytest.fixture(scope="module")
def series():
    return series_of(feature_frame(busy_hours(), "1h"), bounds_of(), "AUSDT")


def spans(series):
    return series.origins("train", 1, H), series.origins("test", 1, H)


SLOW = {"boosted"}
NAMES = [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in FITS]


@pytest.mark.parametrize("name", NAMES)
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
    truth = baselines.realised(series, test, H)
    fits = {n: f for n, f in FITS.items() if n not in SLOW}
    loss = {n: crps(f(series, train, H).quantiles(series, test), truth).mean() for n, f in fits.items()}
    assert loss["har"] < 0.97 * loss["reference"]
    assert loss["garch"] < loss["walk"] * 1.02


@pytest.mark.slow
def test_trees_find_the_hour_too(series):
    train, test = spans(series)
    truth = baselines.realised(series, test, H)
    loss = {
        n: crps(FITS[n](series, train, H).quantiles(series, test), truth).mean()
        for n in ("reference", "boosted")
    }
    assert loss["boosted"] < 0.97 * loss["reference"]


def test_the_target_is_the_mean_range_that_follows(series):
    rows = np.array([500, 900])
    column = series.names.index("log_range")
    target = future_range(series, rows, H)
    mean = series.features[901:904, column].mean()
    assert target[1, 2] == pytest.approx(np.log(mean / series.volatility[900]), rel=1e-9)


def test_one_universal_har_serves_a_coin_it_never_saw(series):
    train, test = spans(series)
    unseen = series_of(feature_frame(busy_hours(seed=9), "1h"), bounds_of(), "BUSDT")
    universal = universal_har([series], [train], H)
    truth = baselines.realised(unseen, test, H)
    known = baselines.reference(unseen, unseen.origins("train", 1, H), test, H)
    assert crps(universal.quantiles(unseen, test), truth).mean() < crps(known, truth).mean()
    with pytest.raises(ValueError, match="at least one training origin"):
        universal_har([series], [train[:0]], H)


def test_garch_variance_is_filtered_as_arch_does(series):
    from arch import arch_model

    train, _ = spans(series)
    fitted = garch(series, train, H)
    returns = series.columns(("r_close",))[:, 0][1:] * 100
    model = arch_model(returns, mean="Zero", vol="GARCH", p=1, q=1, dist="t", rescale=False)
    fixed = model.fix([fitted.omega * 1e4, fitted.alpha, fitted.beta, 6.0])
    theirs = np.asarray(fixed.conditional_volatility)[1000:] / 100
    ours = np.sqrt(fitted._next_variance(series))[1000 : len(returns)]
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    ahead = fixed.forecast(horizon=H).variance.to_numpy()[-1] / 1e4
    np.testing.assert_allclose(
        fitted.scale(series, np.array([len(returns)]), H)[0], np.sqrt(np.cumsum(ahead)), rtol=1e-6
    )


def test_the_baseline_is_the_architecture_of_the_same_name(series):
    import cpbmodels

    train, test = spans(series)
    (member,) = cpbmodels.train_fleet([series], "robust-har", dtype="float64", device="cpu")
    served = cpbmodels.predict([member], [series], [test])[0]
    np.testing.assert_allclose(
        served.quantiles, robust_har(series, train, H).quantiles(series, test), rtol=1e-9
    )
