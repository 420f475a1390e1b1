"""MLflow: where runs, models and results are recorded.

`store` opens the store (making and reconciling it), `runs` writes runs, with batch logging. `registry` has the
champions, `leaderboard` the comparison of architectures, `views` the views of MLflow's own interface.
"""
