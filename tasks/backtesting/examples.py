"""Examples in the report for each trained model: a forecast, and simulated trading on all series.

From the newest fold of every series: an illustration, never used to choose a model.
"""

import math
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl

from cpbmodels.data.rows import QUANTILE_COLUMNS
from cpbmodels.data.series import Prediction
from tasks.backtesting.folds import FoldSeries
from tasks.backtesting.pnl import BacktestPnL, simulate_trading
from tasks.figures.forecast import SHOWN, forecast_figure
from tasks.figures.theme import Figure
from tasks.figures.training import Curve, equity_figure


class Examples:
    """Collects a forecast of each model, and the simulated trading of each model on each series."""

    def __init__(self) -> None:
        self.forecasts: dict[str, tuple[str, Figure]] = {}
        self._trades: dict[str, dict[str, tuple[BacktestPnL, BacktestPnL]]] = defaultdict(dict)

    def add(self, name: str, one: FoldSeries, forecasts: Prediction) -> None:
        """Add a model's forecasts of the newest fold of a series."""
        series = f"{one.id.label} {one.id.timeframe}"
        if name not in self.forecasts:
            self.forecasts[name] = series, fan(one, forecasts, len(forecasts.origins) // 2)
        paid = simulate_trading(one.series, forecasts.origins, forecasts.quantiles)
        free = simulate_trading(one.series, forecasts.origins, forecasts.quantiles, cost=0.0)
        self._trades[name][series] = paid, free

    def equity(self) -> dict[str, Figure]:
        """Return a figure per model with the equity of all its series."""
        return {name: _equity(trades) for name, trades in self._trades.items()}

    def trades(self) -> list[dict[str, Any]]:
        """Return a row per model and series: returns over the whole fold, other figures per year."""
        return [
            {"architecture": name, "series": series, **_figures(paid, free)}
            for name, trades in self._trades.items()
            for series, (paid, free) in trades.items()
        ]


def fan(one: FoldSeries, forecasts: Prediction, index: int) -> Figure:
    """Return the fan chart of an origin over its candles, with the realised candles."""
    series, origin = one.series, int(forecasts.origins[index])
    quantiles = forecasts.quantiles[index]
    assert series.times is not None  # series from the store have times
    rows = slice(max(0, origin + 1 - SHOWN), origin + 1 + len(quantiles))
    shown = pl.DataFrame(series.prices[rows], schema=["open", "high", "low", "close"])
    candles = shown.with_columns(
        open_time=pl.Series(series.times[rows]).cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
    )
    step, last = timedelta(seconds=one.id.seconds), float(series.prices[origin, 3])
    issued = datetime.fromtimestamp(int(series.times[origin]) / 1e6, UTC) + step
    steps = range(1, len(quantiles) + 1)
    forecast = pl.DataFrame(
        {"step": list(steps), "issued_at": issued, "target_time": [issued + k * step for k in steps],
         "last_close": last}
    )  # fmt: skip
    prices = pl.DataFrame(last * np.exp(quantiles), schema=list(QUANTILE_COLUMNS))
    return forecast_figure(candles, forecast.hstack(prices))


def _equity(trades: dict[str, tuple[BacktestPnL, BacktestPnL]]) -> Figure:
    own: dict[str, Curve] = {series: (paid.times, paid.equity) for series, (paid, _) in trades.items()}
    hold: dict[str, Curve] = {series: (paid.times, paid.hold) for series, (paid, _) in trades.items()}
    return equity_figure(own, hold)


def _figures(paid: BacktestPnL, free: BacktestPnL) -> dict[str, float]:
    f = paid.figures
    return {
        "return": math.expm1(f["strategy_return"]),
        "without_costs": math.expm1(free.figures["strategy_return"]),
        "hold": math.expm1(f["hold_return"]),
        "volatility": f["strategy_volatility"],
        "sharpe": f["strategy_sharpe"],
        "sharpe_low": f["strategy_sharpe_low"],
        "sharpe_high": f["strategy_sharpe_high"],
        "drawdown": -math.expm1(-f["strategy_drawdown"]),
        "turnover": f["turnover_per_year"],
    }
