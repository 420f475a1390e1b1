"""Records runs, models and results in MLflow.

store            the store of a home, taken or refused; `home_store` its record, `experiment` any store by its address,
                 `database` its file, `calls` MLflow's client, `store_errors` its errors as sentences
tags, metrics    the names of tags, params and metrics
runs             writes runs, `context` their standard tags; `flow_log` and `fleet_log` what is in them;
                 `dead_runs` marks those of dead processes
registry         registered models, versions, aliases; `champions` and `decisions` what they hold; `model` their files;
                 `registry_copy` what it says, read by MLflow once for each state of the store
leaderboard      compares architectures; `judged_models`, `flow_runs`, `epochs`, `views`: what else is read
results          a row per model for people's own scripts
prune, archive   deletes old nights; writes archives of a home
wandb            copies a run
"""
