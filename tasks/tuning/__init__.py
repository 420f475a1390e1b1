"""Tuning: Optuna proposes trials, fleets train them, rolling folds before the test span select the winner."""
