"""Backtesting: evaluates a method over several test periods, and checks it for look-ahead.

`folds`: the series in each test period. `judge`: baselines, scores, comparisons. `audit`: detects look-ahead. `report`:
the plan before the training, judging after it, rows, tables and the report.
"""
