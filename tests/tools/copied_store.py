"""A copy of a SQLite store of MLflow, for tests that change one."""

import sqlite3
from contextlib import closing

from mlflow.tracking._tracking_service import utils

PLACES = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)


def record_place(database):
    """Record the folder beside a copied database as the place of its artifacts, as docs/operations.md says.

    MLflow remembers the place of a run's artifacts, by the run's id alone, for the life of a process.
    """
    utils._artifact_repos_cache.clear()
    new = (database.parent / "artifacts").as_uri()
    with closing(sqlite3.connect(database)) as connection, connection:
        query = "SELECT artifact_location FROM experiments WHERE name = 'cpb'"
        for (old,) in connection.execute(query).fetchall():
            for table, column in PLACES:
                connection.execute(f"UPDATE {table} SET {column} = replace({column}, ?, ?)", (old, new))
