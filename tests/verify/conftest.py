"""A home with everything in it: two series of the simulator, two architectures, champions, forecasts and scores."""

import shutil
import sqlite3
from contextlib import closing

import pytest

from tests.tools import stored_home
from tests.tools.in_process import serve_here


def copy_database(source, target):
    """Copy a database as one transaction: MLflow's connections to it stay open between tests."""
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    place = tmp_path_factory.mktemp("stored")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CPB_HOME", str(place / "data"))
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{place}/mlruns/mlflow.db")
        serve_here(patch)
        stored_home.build()
    shutil.copytree(place / "data", place / "kept/data")
    shutil.copytree(place / "mlruns/artifacts", place / "kept/artifacts")
    copy_database(place / "mlruns/mlflow.db", place / "kept/mlflow.db")
    return place


@pytest.fixture
def stored(built, monkeypatch):
    """The home, as it was built; MLflow's artifacts lie where they were logged, so all are put back in place."""
    monkeypatch.setenv("CPB_HOME", str(built / "data"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{built}/mlruns/mlflow.db")
    serve_here(monkeypatch)
    monkeypatch.chdir(built)
    for kept, place in (("data", "data"), ("artifacts", "mlruns/artifacts")):
        shutil.rmtree(built / place)
        shutil.copytree(built / "kept" / kept, built / place)
    copy_database(built / "kept/mlflow.db", built / "mlruns/mlflow.db")
    return built / "data"
