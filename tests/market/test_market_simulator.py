"""The built-in market: the same for everyone, consistent between intervals, realistic enough to learn from."""

from datetime import UTC, datetime

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from schemas.coins import COINS, symbol_of
from tasks.market.ingest import update_store
from tasks.market.klines import read_klines
from tasks.market.layout import period_bounds
from tasks.market.simulator import STEP, candles, quarter_hours
from tests.tools.market_tools import key, scope

HOUR = 4 * STEP
START = datetime(2025, 4, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def market(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    made = scope(
        home, "sim", coins="BTC,NOPE", timeframes="15m,1h", as_of="2025-06-03T12:00", since="2025-04"
    )
    return home, update_store(made)


def test_listed_coins_come_and_others_are_not_listed(market):
    _, report = market
    assert [s.status for s in report.series] == ["complete", "complete", "failed", "failed"]
    assert "not listed at the market simulator" in report.series[2].reason
    assert report.series[0].first == "2025-04-01T00:00:00Z"
    assert report.series[0].last == "2025-06-02T23:45:00Z"
    assert report.exit == 3


SUMS = ("volume", "quote_volume", "count", "taker_buy_volume", "taker_buy_quote_volume")


def added_up(frame, every):
    prices = (pl.col("open").first(), pl.col("high").max(), pl.col("low").min(), pl.col("close").last())
    added = frame.group_by_dynamic("open_time", every=every).agg(*prices, pl.col(SUMS).sum())
    return added.with_columns(pl.col(pl.Float64).round(8))


def test_hours_are_made_of_quarters(market):
    home, _ = market
    quarters, hours = (read_klines(home, key("BTCUSDT", iv, "sim")) for iv in ("15m", "1h"))
    added = added_up(quarters, "1h")
    exact = ["open_time", "open", "high", "low", "close", "count"]
    assert added.select(exact).equals(hours.select(exact))
    assert_frame_equal(added, hours, rel_tol=1e-12)  # sums of 8 decimals beyond 2**53


def test_a_month_does_not_depend_on_what_else_is_asked():
    whole = candles("SOLUSDT", STEP, *period_bounds("2025-03"))
    day = candles("SOLUSDT", STEP, *period_bounds("2025-03-09"))
    assert whole.filter(pl.col("open_time").dt.day() == 9).equals(day)


@pytest.mark.parametrize("coin", COINS)
def test_every_coin_trades_at_a_sane_price(coin):
    month = quarter_hours(symbol_of(coin), "2025-05")
    assert month["low"].min() > 0
    assert month["volume"].min() > 0
    assert np.abs(np.diff(np.log(month["close"]))).max() < 0.5


def test_returns_cluster_have_heavy_tails_and_no_memory():
    months = [quarter_hours("BTCUSDT", f"2024-{m:02}") for m in range(1, 13)]
    returns = np.diff(np.log(pl.concat(months)["close"].to_numpy()))
    size = np.abs(returns)
    assert np.mean(returns**4) / np.var(returns) ** 2 > 5
    assert np.corrcoef(size[1:], size[:-1])[0, 1] > 0.1
    assert abs(np.corrcoef(returns[1:], returns[:-1])[0, 1]) < 0.05
