import shutil

import pytest

from tasks.tracking.store import make_sqlite, open_store


@pytest.fixture(scope="session")
def schema(tmp_path_factory):
    """A store's empty schema; copying it saves every test the second that making it takes."""
    path = tmp_path_factory.mktemp("schema") / "mlflow.db"
    make_sqlite(path)
    return path


@pytest.fixture
def store(schema, tmp_path, monkeypatch):
    """An empty store in a folder of its own, which is the working folder."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mlruns").mkdir()
    shutil.copyfile(schema, tmp_path / "mlruns" / "mlflow.db")
    return open_store()
