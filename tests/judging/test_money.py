"""The illustration with money: costs, sizes and figures in cases worked out by hand."""

import numpy as np
import pytest
from test_judgement import market

from tasks.judging.money import trade


def forecasts(medians, spread=0.02):
    levels = np.linspace(-spread, spread, 19)
    return np.asarray(medians)[:, None, None] + levels[None, None, :]


def test_no_opinion_no_trade():
    series = market()
    account = trade(series, np.arange(2500, 2600), forecasts(np.zeros(100)))
    assert account.equity[-1] == 0
    assert account.figures["turnover_per_year"] == 0
    assert account.figures["strategy_sharpe"] == 0


def test_an_opinion_smaller_than_the_costs_is_no_opinion():
    series = market()
    account = trade(series, np.arange(2500, 2600), forecasts(np.full(100, 0.002)), cost=0.0015)
    assert account.figures["exposure"] == 0


def test_always_long_is_buy_and_hold_less_one_entry():
    series, rows = market(), np.arange(2500, 2900)
    account = trade(series, rows, forecasts(np.full(400, 1.0)), cost=0.001)
    assert account.equity[-1] == pytest.approx(account.hold[-1] - 0.001)
    assert account.hold[-1] == pytest.approx(np.log(series.prices[2900, 3] / series.prices[2500, 3]))
    assert account.figures["exposure"] == 1


def test_short_gains_where_the_price_falls_and_every_turn_costs():
    series, rows = market(), np.arange(2500, 2900)
    signs = np.where(np.arange(400) % 2 == 0, 1.0, -1.0)
    free, paid = (trade(series, rows, forecasts(signs), cost=c) for c in (0.0, 0.001))
    assert free.equity[-1] - paid.equity[-1] == pytest.approx(0.001 * (1 + 399 * 2))
    moves = np.diff(np.log(series.prices[2500:2901, 3]))
    assert free.equity[-1] == pytest.approx((signs * moves).sum())


def test_figures_of_a_known_path():
    series, rows = market(), np.arange(2500, 2900)
    account = trade(series, rows, forecasts(np.full(400, 1.0)), cost=0.0)
    moves = np.diff(np.log(series.prices[2500:2901, 3]))
    figures = account.figures
    assert figures["hold_sharpe"] == pytest.approx(moves.mean() / moves.std() * np.sqrt(365.25 * 24))
    assert figures["hold_sharpe_low"] < figures["hold_sharpe"] < figures["hold_sharpe_high"]
    equity = np.r_[0, np.cumsum(moves)]
    assert figures["hold_drawdown"] == pytest.approx(
        max((equity[: i + 1].max() - equity[i]) for i in range(401))
    )
