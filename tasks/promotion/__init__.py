"""Promotion: which model serves a series, decided by the gate's rules (`tasks.judging.gate`) on stored figures.

`contenders`: tonight's models and the registered ones as the gate sees them. `losses`: what each loses on the same
rows. `pairs`: the evidence store, one file per challenger and champion recipe. `night`: the decisions of one run.
`trial`: shadow forecasts' evidence, switch and drop. `by_hand`: what a person asks for. `weekly`: what a
night does not train. All moves of aliases happen
under one lock (`moves`).
"""
