"""Joint paths: margins are the forecast's quantiles; steps depend as a random walk's, coins as their newest returns."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import cpbmodels
from cpbmodels import ModelError, Series, load, paths, train_fleet
from cpbmodels.data.paths import MAX_RETURNS
from tests.tools.candles import series_for, table

TINY = {"preset": "smoke", "device": "cpu", "epochs": 1, "steps_per_epoch": 2}


def frame(seed, rows=900):
    return table(rows, seed).drop("volume")


PRICES = pl.col("open", "high", "low", "close")


@pytest.fixture(scope="module")
def coins():
    """Coins: one, one that moves with it, one that moves against it, one of its own; and a model of the first."""
    first = frame(1)
    tables = {"A": first, "WITH": first.with_columns(PRICES * 0.02), "OTHER": frame(2)}
    against = first.with_columns(
        open=1e4 / pl.col("open"),
        high=1e4 / pl.col("low"),
        low=1e4 / pl.col("high"),
        close=1e4 / pl.col("close"),
    )
    tables["AGAINST"] = against
    series = {name: Series.from_frame(table, name) for name, table in tables.items()}
    member = train_fleet([series["A"]], "linear", seeds=[1], **TINY)[0]
    return series, replace(member, config=member.config | {"symbol": "", "symbols": []})


def between(drawn, a, b):
    """Correlation of two coins' log-prices at each step, [H]."""
    logs = np.log(drawn.close)
    return np.array([np.corrcoef(logs[a, :, step], logs[b, :, step])[0, 1] for step in range(logs.shape[2])])


@pytest.mark.parametrize("name", ["robust-har", "linear", "har"])
def test_a_seed_gives_the_same_paths_from_a_loaded_model(name, tmp_path):
    """Closed form, network, and a table of residuals."""
    series = series_for(name, 900, seed=1)
    member = train_fleet([series], name, seeds=[1], **TINY)[0]
    drawn = load(member.save(tmp_path)).forecast(series).paths(200, seed=3)
    assert drawn.close.shape == (1, 200, 10)
    np.testing.assert_array_equal(drawn.close, member.forecast(series).paths(200, seed=3).close)
    assert (drawn.close != member.forecast(series).paths(200, seed=4).close).any()


def test_margins_are_the_quantiles(coins):
    series, member = coins
    forecasts = [member.forecast(series[name]) for name in ("A", "AGAINST")]
    for forecast, close in zip(forecasts, paths(forecasts, 20_000, seed=1).close, strict=True):
        share = (close[:, :, None] < forecast.close.array).mean(0)
        np.testing.assert_allclose(share, np.tile(cpbmodels.QUANTILES, (10, 1)), atol=0.012)


def test_steps_depend_as_a_random_walks(coins):
    series, member = coins
    drawn = member.forecast(series["A"]).paths(20_000, seed=1)
    steps = np.arange(1, 11)
    expected = np.sqrt(np.minimum.outer(steps, steps) / np.maximum.outer(steps, steps))
    assert np.abs(np.corrcoef(np.log(drawn.close[0]), rowvar=False) - expected).max() < 0.03


def test_coins_depend_as_their_newest_returns(coins):
    series, member = coins
    names = ("A", "WITH", "AGAINST", "OTHER")
    drawn = paths([member.forecast(series[name]) for name in names], 4000, seed=1)
    assert between(drawn, 0, 1).min() > 0.98
    assert between(drawn, 0, 2).max() < -0.98
    returns = [series[name].columns(("r_close",))[1:, 0] for name in ("A", "OTHER")]
    np.testing.assert_allclose(between(drawn, 0, 3), np.corrcoef(returns)[0, 1], atol=0.06)


def test_returns_are_compared_at_equal_times_and_a_leap_is_none(coins):
    """One coin lacks candles and is redenominated; its newest other returns are those of the first."""
    member = coins[1]
    first, old = frame(3, 1500), frame(4, 1500)
    rows = np.arange(1500)
    recent = pl.Series(rows >= 1500 - MAX_RETURNS)
    ratio = first["close"][1500 - MAX_RETURNS - 1] / old["close"][1500 - MAX_RETURNS - 1]
    table = old.with_columns(
        pl.when(recent).then(first[name]).otherwise(old[name] * ratio).alias(name)
        for name in ("open", "high", "low", "close")
    ).with_columns(PRICES * pl.Series(np.where(rows < 900, 1000.0, 1.0)))
    gone = table.filter(pl.Series((rows < 1100) | (rows > 1105)))
    forecasts = [member.forecast(Series.from_frame(table, "X")) for table in (first, gone)]
    assert between(paths(forecasts, 4000, seed=1), 0, 1).min() > 0.98


def test_impossible_questions_are_one_sentence(coins):
    series, member = coins
    forecast, first = member.forecast(series["A"]), series["A"]
    still = Series.from_frame(frame(1).with_columns(PRICES * 0 + 5.0), "S")
    untimed = member.forecast(Series.from_ohlc(first.prices, timeframe="1h"))
    shifted = replace(first, times=first.times - 60_000_000 * (np.arange(len(first)) < len(first) - 5))
    for ask, words in (
        (lambda: paths([]), "no forecasts"),
        (lambda: forecast.paths(0), "n is 0"),
        (lambda: forecast.paths(True), "n is True"),
        (lambda: forecast.paths(5, seed=-1), "seed -1"),
        (lambda: paths(forecast), "give a list"),
        (lambda: paths([forecast, None]), "give a list"),
        (lambda: forecast.paths(10**9), "n is 1000000000"),
        (lambda: paths([forecast, replace(forecast, issued_row=700)]), "these differ"),
        (lambda: paths([untimed, forecast]), "has no times"),
        (lambda: paths([forecast, replace(forecast, series=still)]), "^S 1h: the price does not move"),
        (lambda: paths([forecast, replace(forecast, series=shifted)]), "Only 5 of the 30"),
    ):
        with pytest.raises(ModelError, match=words):
            ask()
