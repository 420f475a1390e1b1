"""Promotion: chooses the model that serves a series, by the gate's rules (`tasks.judging.gate`) on stored figures.

night         the decisions of a run: first champions, refreshes, coins that follow a switch
night_fleets  which fleets a run trains; `remade` how a champion's recipe was made
losses        models in the gate's form, and their losses on the same rows
moves         changes of the registry under a single lock; `by_hand` those of a person
by_backtest   recipes that a backtest judges; `submissions` their register, `switches` the recipes that won
"""
