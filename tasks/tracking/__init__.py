"""Records runs, models and results in MLflow.

`mlflow_store` opens the store, creating it if missing, and reconciles it; `runs` writes runs, with batch logging.
`registry` returns the champions, `model` makes their versions MLflow models, `boards` compares architectures.
"""
