"""Backtesting: what is a method worth over several test periods, and does anything in it see the future?

`backtest` is the run from features to results. Its parts: `folds` (which series in which period), `models` (baselines)
and `fleets` (trained models) forecast, `judge` scores, `pairs` compares models, `audit` and `lookahead` search for
look-ahead, `pnl` simulates trading, and `rows`, `table`, `report` and `output` write what was found.
"""
