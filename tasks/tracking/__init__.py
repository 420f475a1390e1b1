"""Records runs, models and results in MLflow.

`mlflow_store` opens the store, creating it if missing, and reconciles it; `runs` writes runs, with batch logging.
`registry` returns the champions, `boards` compares architectures, `views` links to views in MLflow's own page.
"""
