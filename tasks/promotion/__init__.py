"""Promotion: chooses the model that serves a series, by the gate's rules (`tasks.judging.gate`) on stored figures.

`contenders`: tonight's and the registered models in the gate's form. `losses`: their losses on the same rows. `pairs`:
the evidence store, a file per challenger and champion recipe. `standings`, `refresh`, `challenge`: state and rules of a
timeframe. `night`: the decisions of a run. `trial`: evidence from shadow forecasts, switch and drop. `by_hand`: manual
promotion. `weekly`: models that a nightly run skips. All alias changes are made under a single lock (`moves`).
"""
