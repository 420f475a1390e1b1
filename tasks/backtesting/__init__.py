"""Backtesting: evaluates a method over several test periods, and checks it for look-ahead.

`backtest`: from features to results. `folds`: the series in each test period. `methods`: baselines and trained fleets.
`rolling`: the processes that judge them. `results`: scores and comparisons; `report`, `rows`: as files. `audit`:
the check for look-ahead, by `lookahead` and `shuffled`.
"""
