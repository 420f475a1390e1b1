import json
import sys
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import polars as pl
import pytest

from cpbmodels import Series, train_fleet
from cpbmodels.arch.options import Preset
from cpbmodels.device import steps
from research import sizing


def walk(rows, seed):
    return steps.walk(rows, seed, Preset())


def test_atr_is_wilders_and_starts_anew_after_a_gap():
    prices, segments = walk(200, seed=1).prices, np.repeat([0, 1], 100)
    found = sizing.atr(prices, segments)
    assert np.isnan(found[:13]).all()
    assert np.isnan(found[100:113]).all()
    frame = pd.DataFrame(prices[100:], columns=["open", "high", "low", "close"])
    before = frame.close.shift()
    spread = pd.concat([frame.high - frame.low, frame.high - before, before - frame.low], axis=1).max(axis=1)
    wilder = spread.copy()
    wilder[:14] = spread[:14].mean()
    wanted = wilder[13:].ewm(alpha=1 / 14, adjust=False).mean() / frame.close[13:]
    np.testing.assert_allclose(found[113:], wanted, rtol=1e-12)


def test_errors_are_free_of_scale_and_zero_for_who_knows():
    came = np.random.default_rng(0).lognormal(-4, 0.5, 400)
    fit = np.arange(400) < 200
    for known in (came, 7 * came):
        found = sizing.errors(known, came, fit)
        assert all(np.allclose(found[name], 0, atol=1e-12) for name in sizing.ERRORS)
        assert all(len(found[name]) == 200 for name in sizing.ERRORS)
    constant = sizing.errors(np.ones(400), came, fit)
    assert constant["log"].mean() == pytest.approx(0.4, abs=0.06)  # E|N(0, 0.5)|
    assert (constant["qlike"] > 0).all()


def test_what_came_lies_after_the_origin():
    series = walk(100, seed=2)
    logs = np.log(series.prices)
    found = sizing.realised(series, np.array([50]), 3)
    steps = [logs[50 + i, 3] - logs[49 + i, 3] for i in (1, 2, 3)]
    assert found["volatility"] == pytest.approx(np.sqrt(np.sum(np.square(steps))))
    spans = [logs[50 + i, 1] - logs[50 + i, 2] for i in (1, 2, 3)]
    assert found["range"] == pytest.approx(np.mean(spans) * np.sqrt(3))


def test_a_table_from_models_and_candles_that_are_there(tmp_path, monkeypatch, capsys):
    start, rows = datetime(2024, 1, 1, tzinfo=UTC), 6000
    times = pl.datetime_range(start, start + timedelta(hours=rows - 1), "1h", time_unit="us", eager=True)
    columns = zip(("open", "high", "low", "close"), walk(rows, seed=3).prices.T, strict=True)
    klines = pl.DataFrame({"open_time": times, **dict(columns), "volume": 1.0})
    series = Series.from_frame(klines[:4000], "BTCUSDT")
    member = train_fleet([series], "robust-har", "smoke", seeds=[1], device="cpu")[0]
    member.save(tmp_path / "hub/BTCUSDT/1h")
    monkeypatch.setattr(sizing, "read_klines", lambda home, name: klines)
    monkeypatch.setattr(sizing, "HORIZONS", (1, 10))
    arguments = ["sizing", "--source", ".", "--home", str(tmp_path), "--train-until", "2024-06-17", "--json"]
    monkeypatch.setattr(sys, "argv", arguments)
    sizing.main()
    found = json.loads(capsys.readouterr().out)
    assert found["coins"] == 1
    assert [(r["realised"], r["h"]) for r in found["rows"][::2]] == [
        ("volatility", 1), ("volatility", 10), ("range", 1), ("range", 10)
    ]  # fmt: skip
    assert found["holds"]["10"]["within_sigma"] == pytest.approx(0.68, abs=0.08)
    assert found["holds"]["10"]["below_q05"] == pytest.approx(0.05, abs=0.03)
    assert found["holds"]["10"]["touched_q05"] > found["holds"]["10"]["below_q05"]
    assert found["holds"]["1"]["rms_in_sigmas"] == pytest.approx(1, abs=0.1)  # these candles are Gaussian
    assert all(0.3 < r["ratio"] < 1.5 and r["low"] <= r["high"] for r in found["rows"])
    monkeypatch.setattr(sys, "argv", [*arguments[:-2], "2024-02-01"])
    with pytest.raises(SystemExit, match="train it as of"):
        sizing.main()
