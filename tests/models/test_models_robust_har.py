"""`robust-har`: solved in closed form inside `train_fleet`, and a model like any other afterwards."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from candles import series_for

from cpbmodels import forecast_all, predict, train_fleet
from cpbmodels.data.ranges import MIN_RANGE, RIDGE_PENALTY, fit_ranges, future_range
from cpbmodels.errors import ModelError

H = 10


def coin(seed, rows=900):
    return series_for("robust-har", rows, seed=seed, symbol=f"C{seed}USDT")


def solved(series, **options):
    return train_fleet(series, "robust-har", dtype="float64", device="cpu", **options)


def test_the_fit_is_the_ridge_regression_it_says():
    """Against the whole design at once, as a textbook has it."""
    series = coin(1)
    origins = series.origins("train", 1, H)
    names = ("log_range_mean_3", "abs_return_mean_24", "log_sigma")
    fitted = fit_ranges([(series, origins)], names, "hour_of_week_ny", H)
    hours = np.eye(168)[series.columns(("hour_of_week_ny",))[origins, 0].astype(int)]
    design = np.hstack([np.ones((len(origins), 1)), series.columns(names)[origins], hours])
    ranges = series.columns(("log_range",))[:, 0]
    mean = np.stack([[ranges[t + 1 : t + 1 + h].mean() for h in range(1, H + 1)] for t in origins])
    target = np.log(np.maximum(mean / series.volatility[origins][:, None], MIN_RANGE))
    np.testing.assert_allclose(future_range(series, origins, H), target, rtol=1e-9)
    penalty = np.diag([0.0, *[RIDGE_PENALTY] * (len(names) + 168)])
    weights = np.linalg.solve(design.T @ design + penalty, design.T @ target)
    np.testing.assert_allclose(np.vstack([fitted.level, fitted.slopes, fitted.hours]), weights, atol=1e-9)
    unit = np.exp(design @ weights) * series.volatility[origins][:, None] * np.sqrt(np.arange(1, H + 1))
    np.testing.assert_allclose(fitted.scale(series, origins), unit, rtol=1e-9)


def test_its_median_candle_is_valid_and_as_wide_as_candles_are():
    series = coin(3, rows=1500)
    member = solved([series])[0]
    origins = series.origins("validation", 1, H)
    prediction = predict([member], [series], [origins])[0]
    opened, high, low, close = np.moveaxis(prediction.candle, -1, 0)
    assert (low <= np.minimum(opened, close)).all()
    assert (high >= np.maximum(opened, close)).all()
    np.testing.assert_array_equal(close, prediction.quantiles[..., 9])
    later = np.log(
        series.prices[origins[:, None] + np.arange(1, H + 1)] / series.prices[origins, 3][:, None, None]
    )
    for price, median in ((1, high), (2, low)):  # half of the highs lie above their median
        assert 0.4 < (later[..., price] > median).mean() < 0.6


def test_a_fleet_equals_single_solutions_whatever_the_seed():
    series = [coin(seed, rows) for seed, rows in ((1, 600), (2, 900), (3, 750))]
    records = []
    fleet = solved(series, seeds=[1, 2, 3], workers=1, on_epoch=records.append)
    for seed, candles, member in zip((7, 8, 9), series, fleet, strict=True):
        alone = solved([candles], seeds=[seed])[0]
        assert torch.equal(member.rows, alone.rows)
        assert torch.equal(member.table, alone.table)
        np.testing.assert_allclose(member.history[0]["val_loss"], alone.history[0]["val_loss"], rtol=1e-12)
    assert [len(member.history) for member in fleet] == [1, 1, 1]
    assert {member.report["stopped"] for member in fleet} == {"closed_form"}
    assert not any(member.report["diverged"] for member in fleet)
    assert [(record.epoch, record.epochs, len(record.members)) for record in records] == [(1, 1, 3)]


def test_its_loss_is_the_mean_pinball_of_its_quantiles():
    series = coin(4)
    member = solved([series])[0]
    origins = series.origins("validation", 1, H)
    prediction = predict([member], [series], [origins])[0]
    unit = series.volatility[origins][:, None] * np.sqrt(np.arange(1, H + 1))
    move = np.log(
        series.prices[origins[:, None] + np.arange(1, H + 1), 3] / series.prices[origins, 3][:, None]
    )
    error = (move / unit)[..., None] - prediction.quantiles / unit[..., None]
    levels = np.arange(1, 20) * 0.05
    loss = np.maximum(levels * error, (levels - 1) * error).mean()
    assert member.history[0]["val_loss"] == pytest.approx(loss, rel=1e-9)


def test_a_universal_one_serves_a_coin_it_never_saw():
    (member,) = solved([coin(1), coin(2)], scope="universal")
    unseen = coin(6)
    assert member.config["symbols"] == ["C1USDT", "C2USDT"]
    live, trained = forecast_all([member, member], [unseen, coin(1)])
    assert np.isfinite(live.close.array).all()
    assert not np.array_equal(live.close.array / live.last_close, trained.close.array / trained.last_close)


def test_nothing_after_the_training_span_is_looked_at():
    series = coin(7)
    last = series.spans["train"][1]
    prices, features = series.prices.copy(), series.features.copy()
    prices[last:] *= 1.5
    features[last:] = features[last:][::-1]
    changed = replace(series, prices=prices, features=features)
    assert torch.equal(solved([series])[0].rows, solved([changed])[0].rows)


def test_impossible_requests_are_one_sentence():
    series = coin(8)
    with pytest.raises(ModelError, match="context must be 1 for robust-har"):
        solved([series], context=30)
    with pytest.raises(ModelError, match="'robust-har' belong together"):
        solved([series], head="point")
    with pytest.raises(ModelError, match="'robust-har' or 'line' belong together"):
        train_fleet([series], "har", head="scaled")
    without = replace(series, names=tuple(n.replace("log_range", "x") for n in series.names))
    with pytest.raises(ModelError, match="lacks the column"):
        solved([without])
    with pytest.raises(ModelError, match="at least one training origin"):
        fit_ranges([(series, np.zeros(0, np.int64))], ("log_sigma",), "", H)
