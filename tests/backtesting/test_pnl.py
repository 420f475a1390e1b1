"""Simulated trading: costs, sizes and figures in cases worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest
from known_markets import market

from tasks.backtesting.pnl import simulate_trading


def forecasts(medians, spread=0.02):
    levels = np.linspace(-spread, spread, 19)
    return np.asarray(medians)[:, None, None] + levels[None, None, :]


def test_a_median_of_zero_is_no_position():
    series = market()
    pnl = simulate_trading(series, np.arange(2500, 2600), forecasts(np.zeros(100)))
    assert pnl.equity[-1] == 0
    assert pnl.figures["turnover_per_year"] == 0
    assert pnl.figures["strategy_sharpe"] == 0


def test_a_median_within_the_costs_is_no_position():
    series = market()
    pnl = simulate_trading(series, np.arange(2500, 2600), forecasts(np.full(100, 0.002)), cost=0.0015)
    assert pnl.figures["exposure"] == 0


def test_always_long_is_buy_and_hold_with_its_entry_and_exit_paid():
    series, rows = market(), np.arange(2500, 2900)
    pnl = simulate_trading(series, rows, forecasts(np.full(400, 1.0)), cost=0.001)
    assert pnl.equity[-1] == pytest.approx(pnl.hold[-1])
    free = np.log(series.prices[2900, 3] / series.prices[2500, 3])
    assert pnl.hold[-1] == pytest.approx(free - 2 * 0.001, abs=1e-4)
    assert pnl.figures["exposure"] == 1
    assert simulate_trading(series, rows, forecasts(np.full(400, 1.0)), cost=0.0).hold[-1] == pytest.approx(
        free
    )


def test_five_candles_by_hand():
    """Long, turned short, flat, then a hole, then long: 100 -> 110 -> 99 -> 99 | 50 -> 60, 1 % a trade."""
    series = market()
    prices = series.prices.copy()
    prices[100:104, 3] = 100, 110, 99, 99
    prices[200:202, 3] = 50, 60
    pnl = simulate_trading(
        replace(series, prices=prices),
        np.array([100, 101, 102, 200]),
        forecasts([1.0, -1.0, 0.0, 1.0]),
        cost=0.01,
    )
    first = 1 + 0.10 - 0.01  # bought
    second = 1 + 0.10 - 0.02  # sold twice over, and the price fell by a tenth
    third = 1 - 0.01  # bought back, then nothing
    fourth = 1 + 0.20 - 0.02  # bought and, at the end, sold
    np.testing.assert_allclose(np.exp(pnl.equity), np.cumprod([first, second, third, fourth]))
    held = np.cumprod([1 + 0.10 - 0.01, 0.9, 1.0, 1 + 0.20 - 0.01])
    np.testing.assert_allclose(np.exp(pnl.hold), held)


def test_a_position_is_closed_before_a_hole():
    series = market()
    joined, torn = (
        simulate_trading(series, rows, forecasts([1.0, 1.0]), cost=0.01).figures["turnover_per_year"]
        for rows in (np.array([100, 101]), np.array([100, 105]))
    )
    per_candle = joined / (365.25 * 24)
    assert per_candle == pytest.approx((1 + 1) / 2)
    assert torn / (365.25 * 24 / 5) == pytest.approx((2 + 2) / 2)


def test_a_short_that_loses_everything_stays_finite():
    series = market()
    prices = series.prices.copy()
    prices[101] *= 10
    pnl = simulate_trading(replace(series, prices=prices), np.array([100, 101]), forecasts([-1.0, -1.0]))
    assert np.isfinite(pnl.equity).all()
    assert pnl.equity[0] < -10


def test_short_gains_where_the_price_falls_and_every_turn_costs():
    series, rows = market(), np.arange(2500, 2900)
    signs = np.where(np.arange(400) % 2 == 0, 1.0, -1.0)
    free, paid = (simulate_trading(series, rows, forecasts(signs), cost=c) for c in (0.0, 0.001))
    assert free.equity[-1] - paid.equity[-1] == pytest.approx(0.001 * (1 + 399 * 2 + 1), rel=0.01)
    moves = np.expm1(np.diff(np.log(series.prices[2500:2901, 3])))
    assert free.equity[-1] == pytest.approx(np.log(np.prod(1 + signs * moves)))


def test_figures_of_a_known_path():
    series, rows = market(), np.arange(2500, 2900)
    pnl = simulate_trading(series, rows, forecasts(np.full(400, 1.0)), cost=0.0)
    moves = np.diff(np.log(series.prices[2500:2901, 3]))
    figures = pnl.figures
    assert figures["hold_sharpe"] == pytest.approx(moves.mean() / moves.std() * np.sqrt(365.25 * 24))
    assert figures["hold_sharpe_low"] < figures["hold_sharpe"] < figures["hold_sharpe_high"]
    equity = np.r_[0, np.cumsum(moves)]
    assert figures["hold_drawdown"] == pytest.approx(
        max((equity[: i + 1].max() - equity[i]) for i in range(401))
    )
