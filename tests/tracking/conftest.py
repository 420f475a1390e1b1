import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

from tasks.tracking.database import make_sqlite
from tasks.tracking.store import open_store


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


@pytest.fixture
def folder(tmp_path):
    """A model folder with real weights."""
    made = tmp_path / "m"
    made.mkdir()
    save_file({"w": np.arange(256, dtype=np.float32)}, made / "model.safetensors")
    (made / "config.json").write_text(json.dumps({"architecture": "har", "rows": 500}))
    (made / "loss.png").write_bytes(b"png")
    return made
