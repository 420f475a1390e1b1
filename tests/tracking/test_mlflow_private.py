"""What cpb uses of MLflow beyond its documentation is still there, in the version that is installed."""

import sqlite3
from importlib.metadata import version
from pathlib import Path

from tasks.tracking import mlflow_private
from tasks.tracking.database import sqlite_path
from tasks.tracking.store import open_store


def test_the_checked_version_is_the_installed_one():
    assert version("mlflow").rpartition(".")[0] == mlflow_private.CHECKED.rpartition(".")[0]


def test_the_schema_is_one_that_mlflow_accepts(tmp_path):
    from mlflow.store.db import utils

    path = tmp_path / "mlflow.db"
    path.touch()
    mlflow_private.write_schema(path)

    engine = utils.create_sqlalchemy_engine(f"sqlite:///{path}")
    utils._verify_schema(engine)
    assert utils._all_tables_exist(engine)
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_local_artifacts_are_told_from_remote_ones(tmp_path):
    assert mlflow_private.local_path(tmp_path.as_uri()) == tmp_path
    assert mlflow_private.local_path(str(tmp_path)) == tmp_path
    assert mlflow_private.local_path("mlflow-artifacts:/1/x") is None
    assert mlflow_private.local_path("s3://bucket/x") is None


def test_connections_are_closed_and_opened_again(store):
    mlflow_private.close_connections(store.uri)
    assert open_store().client.get_experiment(store.experiment_id).name == "cpb"
    assert sqlite_path(store.uri).is_file()


def test_private_names_stand_in_two_modules():
    sources = Path(mlflow_private.__file__).parents[1].rglob("*.py")
    users = [f.name for f in sources if "mlflow.store" in f.read_text() or "mlflow.utils" in f.read_text()]
    assert sorted(users) == ["artifact_guard.py", "mlflow_private.py"]
