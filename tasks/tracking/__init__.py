"""Records runs, models and results in MLflow.

`store` opens the store, creating it if missing; `tags` has the names, tags, params and metrics; `runs` writes runs and
marks those of dead processes; `registry` returns champions and decisions; `model` makes versions MLflow models;
`boards` compares architectures; `prune` deletes old nights; `wandb` copies a run.
"""
