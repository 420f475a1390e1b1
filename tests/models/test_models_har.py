"""`robust-har` is solved in closed form inside `train_fleet`, and the line of `har` starts as its solution."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from cpbmodels import predict, train_fleet
from cpbmodels.data.ranges import MIN_RANGE, RIDGE_PENALTY, fit_ranges, future_range
from cpbmodels.errors import ModelError
from tests.tools.candles import series_for

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


TINY = {"epochs": 1, "steps_per_epoch": 1, "batch_size": 8, "dtype": "float64", "device": "cpu"}


def log_scale_of_line(member, series, origins):
    """[N, H]: of the line and the hours alone, in volatilities x sqrt(step)."""
    net = member.net()
    w = net.layout.views(member.rows)
    hours = series.columns(("hour_of_week_ny",))[origins, 0].astype(int)
    columns = slice(*net.span)
    inputs = torch.as_tensor(series.columns(member.options.features)[origins])
    scaled = (inputs - member.mean[0, columns]) * member.inverse[0, columns]
    return (scaled @ w["line.weight"][0] + w["line.bias"][0] + w["calendar"][0][hours]).numpy()


def test_the_line_of_har_starts_as_the_robust_har():
    """With a learning rate of next to nothing: differences between windows are those of the closed form."""
    series = coin(1)
    member = train_fleet([series], "har", lr=1e-8, **TINY)[0]
    origins = series.origins("train", 1, H)
    fitted = fit_ranges([(series, origins)], member.options.features, "hour_of_week_ny", H)
    unit = series.volatility[origins][:, None] * np.sqrt(np.arange(1, H + 1))
    wanted = np.log(fitted.scale(series, origins) / unit)
    difference = log_scale_of_line(member, series, origins) - wanted
    np.testing.assert_allclose(difference, np.broadcast_to(difference[0], difference.shape), atol=1e-5)
    other = train_fleet([series], "har", head="quantile", calendar_dim=4, **TINY)[0]
    assert "line.weight" not in other.net().layout.views(other.rows)


@pytest.mark.parametrize(("name", "options"), [("har", TINY), ("robust-har", {"dtype": "float64"})])
def test_nothing_after_the_training_span_is_looked_at(name, options):
    series = coin(7)
    last = series.spans["train"][1]
    prices, features = series.prices.copy(), series.features.copy()
    prices[last:] *= 1.5
    features[last:] = features[last:][::-1]
    changed = replace(series, prices=prices, features=features)
    first, second = (train_fleet([each], name, **options)[0] for each in (series, changed))
    assert torch.equal(first.rows, second.rows)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("robust-har", {"context": 30}, "context must be 1 for robust-har"),
        ("robust-har", {"head": "point"}, "'robust-har' belong together"),
        ("har", {"head": "scaled"}, "'robust-har' or 'line' belong together"),
    ],
)
def test_impossible_requests_are_one_sentence(name, options, message):
    with pytest.raises(ModelError, match=message):
        train_fleet([coin(8)], name, **options)
