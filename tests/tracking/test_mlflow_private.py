"""What cpb uses of MLflow beyond its documentation is still there, in the version that is installed."""

import sqlite3
from importlib.metadata import version

from tasks.tracking.database import CHECKED_MLFLOW, write_schema
from tasks.tracking.home_store import sqlite_path
from tasks.tracking.prune import delete_runs_for_good


def test_the_checked_version_is_the_installed_one():
    assert version("mlflow").rpartition(".")[0] == CHECKED_MLFLOW.rpartition(".")[0]


def test_the_schema_is_one_that_mlflow_accepts(tmp_path):
    from mlflow.store.db import utils

    path = tmp_path / "mlflow.db"
    path.touch()
    write_schema(path)

    engine = utils.create_sqlalchemy_engine(f"sqlite:///{path}")
    utils._verify_schema(engine)
    assert utils._all_tables_exist(engine)
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def rows(store, *tables):
    with sqlite3.connect(sqlite_path(store.uri)) as connection:
        return {table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables}


def test_runs_are_deleted_with_everything_of_theirs_and_nothing_of_others(store):
    kept, *others = (store.client.create_run(store.experiment_id).info.run_id for _ in range(3))
    for run in (kept, *others):
        store.client.log_metric(run, "m", 1)
        store.client.log_param(run, "p", 1)
        store.client.set_tag(run, "t", 1)

    delete_runs_for_good(store.client, others)

    tables = ("runs", "metrics", "latest_metrics", "params")
    assert rows(store, *tables) == dict.fromkeys(tables, 1)
    (left,) = store.client.search_runs([store.experiment_id])
    assert left.info.run_id == kept
