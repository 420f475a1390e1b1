"""Promotion: chooses the model that serves a series, by the gate's rules (`tasks.judging.gate`) on stored figures.

night        the decisions of a run: first champions, refreshes, coins that follow a switch
losses       models in the gate's form, and their losses on the same rows
moves        changes of the registry, a person's too, under a single lock
by_backtest  the register of recipes that a backtest judges, its decision, and the switches it leaves
"""
