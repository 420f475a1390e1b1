"""Backtesting: evaluates a method over several test periods, and checks it for look-ahead.

`backtest` runs from features to results. Its parts: `folds` (the series in each test period); `models` (baselines) and
`fleets` (trained models) forecast; `judge` scores and compares models; `audit` and `lookahead` detect look-ahead;
`output` writes the rows, tables and the report.
"""
