"""MLflow keeps its connections to a database for the life of a process; tests that copy or fork close them."""

import os

from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore as Models
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore as Runs


def close_connections(uri):
    for engines in (Runs._engine_map, Models._engine_map):
        if (engine := engines.get(uri)) is not None:
            engine.dispose()


def then_leave(work, *arguments):
    """Work in a forked process, and end it there: what Prefect registers in this process fails at a fork's own end."""
    work(*arguments)
    os._exit(0)
