"""Records runs, models and results in MLflow.

`store` opens the store, creating it if missing, and reconciles it; `runs` writes runs, with batch logging. `registry`
returns the champions, `leaderboard` compares architectures, `views` defines the views in MLflow's own interface.
"""
