"""MLflow's schema made once per process: a new SQLite store then gets a copy instead of all of MLflow's migrations."""

import sqlite3
import sys
from contextlib import closing

_mlflows = []
_schema = []


def copy_schemas():
    """Let MLflow create the tables of an empty SQLite database from a copy, once MLflow is imported.

    MLflow itself makes the first two, the second of which is kept; a migration takes a second of processor time and its
    result depends on MLflow's version alone.
    """
    utils = sys.modules.get("mlflow.store.db.utils")
    if _mlflows or not hasattr(utils, "_initialize_tables"):
        return  # not imported, or a thread that a test left behind is importing it: the next test asks again
    _mlflows.append(utils._initialize_tables)

    def initialize(engine):
        if engine.dialect.name != "sqlite" or not utils._is_empty_database(engine):
            _mlflows[0](engine)
            return
        if not _schema:
            fresh = utils.create_sqlalchemy_engine("sqlite:///:memory:")
            _mlflows[0](fresh)
            with fresh.connect() as connection:
                _schema.append(connection.connection.driver_connection.serialize())
            fresh.dispose()
        with engine.connect() as connection, closing(sqlite3.connect(":memory:")) as copy:
            copy.deserialize(_schema[0])
            copy.backup(connection.connection.driver_connection)

    utils._initialize_tables = initialize
