"""`har` starts as the robust HAR: its line to the log-scale is solved, then trained on."""

import numpy as np
import torch
from candles import series_for

from cpbmodels import train_fleet
from cpbmodels.data.ranges import fit_ranges

H = 10
TINY = {"epochs": 1, "steps_per_epoch": 1, "batch_size": 8, "dtype": "float64", "device": "cpu"}


def coin(seed):
    return series_for("har", 900, seed=seed, symbol=f"C{seed}USDT")


def line_of(member, rows):
    """Log-scale [N, H] of the line and the hours alone, in volatilities x sqrt(step)."""
    net, (series, origins) = member.net(), rows
    w = net.layout.views(member.rows)
    inputs = series.columns(member.options.features)[origins]
    hours = series.columns(("hour_of_week_ny",))[origins, 0].astype(int)
    columns = slice(*net.span)
    scaled = (torch.as_tensor(inputs) - member.mean[0, columns]) * member.inverse[0, columns]
    return (scaled @ w["line.weight"][0] + w["line.bias"][0] + w["calendar"][0][hours]).numpy()


def test_the_line_starts_as_the_robust_har():
    """With a learning rate of next to nothing: differences between windows are those of the closed form."""
    series = coin(1)
    member = train_fleet([series], "har", lr=1e-8, **TINY)[0]
    origins = series.origins("train", 1, H)
    fitted = fit_ranges([(series, origins)], member.options.features, "hour_of_week_ny", H)
    unit = series.volatility[origins][:, None] * np.sqrt(np.arange(1, H + 1))
    difference = line_of(member, (series, origins)) - np.log(fitted.scale(series, origins) / unit)
    np.testing.assert_allclose(difference, np.broadcast_to(difference[0], difference.shape), atol=1e-5)


def test_it_looks_at_training_rows_only():
    series, other = coin(1), coin(1)
    end = series.spans["train"][1]
    other.prices[end:] *= 1.5
    other.features[end:] += 0.3
    first, second = (train_fleet([s], "har", **TINY)[0] for s in (series, other))
    assert torch.equal(first.rows, second.rows)


def test_other_heads_have_no_line():
    member = train_fleet([coin(1)], "har", head="quantile", calendar_dim=4, **TINY)[0]
    assert "line.weight" not in member.net().layout.views(member.rows)
