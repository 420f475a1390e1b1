"""The columns of `research.columns`: each as it is defined, none that looks ahead; the walk begins at its line."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import numpy as np
import polars as pl
import pytest

from cpbmodels.data.columns import feature_frame
from cpbmodels.data.series import Series
from research._column_folds import MONTHS
from research._column_scores import Fold, blocks_lower, score
from research._walk import Walk, fit_walk
from research._wide_columns import MARKET, OWN, SUB_CANDLES, finer_columns, market_columns, own_columns
from research.columns import INPUTS, groups, line, widened
from tasks.backtesting.lookahead import check_lookahead

ROWS = 1200
START = datetime(2024, 1, 1, tzinfo=UTC)
COINS = ("BTCUSDT", "ETHUSDT", "SOLUSDT", "ADAUSDT")


def candles(seed, step=timedelta(hours=1), rows=ROWS):
    """A random walk whose candles are made of eight moves each."""
    random = np.random.default_rng(seed)
    size = 0.004 * np.exp(np.cumsum(random.normal(0, 0.03, rows)).clip(-1, 1))
    path = np.cumsum(random.normal(0, 1, (rows, 8)) * size[:, None] / np.sqrt(8), axis=1)
    opened = np.concatenate([[0.0], np.cumsum(path[:, -1])[:-1]])
    path = np.column_stack([np.zeros(rows), path]) + opened[:, None]
    prices = np.exp(np.column_stack([opened, path.max(axis=1), path.min(axis=1), path[:, -1]]))
    times = pl.datetime_range(START, START + step * (rows - 1), step, time_unit="us", eager=True)
    named = {name: prices[:, i] for i, name in enumerate(("open", "high", "low", "close"))}
    return pl.DataFrame({"open_time": times, **named, "volume": random.lognormal(8, 1, rows)})


def series_of(klines, timeframe="1h", symbol=""):
    return Series.from_columns(feature_frame(klines, timeframe), symbol, timeframe)


def own(klines, timeframe="1h"):
    return own_columns(series_of(klines, timeframe), klines["volume"].to_numpy())


@pytest.fixture(scope="module")
def market():
    return {name: candles(seed) for seed, name in enumerate(COINS)}


def test_no_own_column_looks_ahead(market):
    assert check_lookahead(own, market["BTCUSDT"]) == []


def test_no_column_of_the_market_looks_ahead(market):
    def compute(klines):
        known = {
            name: frame.filter(pl.col("open_time") <= klines["open_time"][-1])
            for name, frame in market.items()
        }
        return market_columns({n: (series_of(k), own(k)) for n, k in known.items()})["BTCUSDT"]

    assert check_lookahead(compute, market["BTCUSDT"]) == []


def test_no_column_of_finer_candles_looks_ahead(market):
    quarters = candles(7, timedelta(minutes=15), 4 * ROWS)

    def compute(klines):
        closed = klines["open_time"][-1] + timedelta(hours=1)
        known = quarters.filter(pl.col("open_time") < closed)
        return finer_columns(series_of(klines), series_of(known, "15m"))

    assert check_lookahead(compute, market["BTCUSDT"]) == []


def test_every_column_of_every_group_is_made_and_known_at_the_end(market):
    coins = {name: (series_of(klines), own(klines)) for name, klines in market.items()}
    found = coins["ETHUSDT"][1] | market_columns(coins)["ETHUSDT"]
    found |= finer_columns(coins["ETHUSDT"][0], series_of(candles(1, timedelta(minutes=15), 4 * ROWS), "15m"))

    asked = [name for group in (OWN | MARKET | SUB_CANDLES).values() for name in group]
    assert sorted(found) == sorted(asked)
    assert all(np.isfinite(found[name][-1]) for name in asked)


def test_a_slot_is_the_mean_range_of_the_same_hours_on_earlier_days(market):
    klines = market["BTCUSDT"]
    ranges = feature_frame(klines, "1h")["log_range"].to_numpy()
    row, count = 1000, 4
    days = [ranges[row + 1 - 24 * d : row + 1 - 24 * d + count].mean() for d in range(1, 8)]
    expected = np.log(np.mean(days) / ranges[row - 167 : row + 1].mean())

    assert own(klines)["slot_days_4"][row] == pytest.approx(expected, abs=1e-9)


def test_a_market_of_two_coins_is_none(market):
    two = {name: (series_of(market[name]), own(market[name])) for name in COINS[:2]}
    assert np.isnan(market_columns(two)["ETHUSDT"]["market_return_1"]).all()


def test_what_is_not_known_is_neutral_and_flagged_and_costs_no_origin(market):
    klines = market["BTCUSDT"]
    alone = series_of(klines)
    wide = widened(alone, own(klines) | market_columns({"BTCUSDT": (alone, own(klines))})["BTCUSDT"])

    assert np.array_equal(wide.usable(1, 10), alone.usable(1, 10))
    assert (wide.columns(("no_market",)) == 1).all()
    assert (wide.columns(("market_return_1",)) == 0).all()
    no_long = wide.columns(("no_long",))[:, 0]
    assert no_long[:720].all()
    assert not no_long[721:].any()


def test_a_walk_of_no_consequence_is_the_line(market):
    coins = []
    for name, klines in market.items():
        wide = widened(series_of(klines, symbol=name), own(klines) | _market(market)[name])
        coins.append(_with_spans(wide))
    fold = Fold(tuple(coins))
    solved = line(fold, [*INPUTS, *OWN["returns"]], recent=False)
    one, rows = fold.origins("test")[0]
    walked = fit_walk(solved, fold.origins("train"), Walk(10, 1e-12, seeds=(1,)))(one, rows)
    assert walked == pytest.approx(solved.quantiles(one, rows), rel=2e-2)
    assert walked != pytest.approx(solved.quantiles(one, rows), rel=1e-9)

    scores = score(fold, solved.quantiles)
    assert blocks_lower(scores, scores) == (0, 1)


def _market(market):
    return market_columns({name: (series_of(k), own(k)) for name, k in market.items()})


def _with_spans(series):
    return replace(series, spans={"train": (0, 800), "validation": (810, 900), "test": (910, ROWS)})


def test_months_do_not_meet():
    for timeframe, months in MONTHS.items():
        chosen, judged = months.bounds(timeframe)
        assert max(one.test[1] for one in chosen) <= min(one.test[0] for one in judged)
        assert all(a.test[1] == b.test[0] for a, b in pairwise(judged))
        assert len(judged) == 6
    assert "quarter" in groups("15m")
    assert "finer" in groups("1h")
