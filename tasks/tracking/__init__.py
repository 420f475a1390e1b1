"""Records runs, models and results in MLflow.

`store` opens the store, creating it if missing, and reconciles it; `runs` writes runs, with batch logging; `registry`
returns champions and decisions; `model` makes versions MLflow models; `boards` compares architectures; `prune` deletes
old nights; `wandb` copies a run.
"""
