import pytest
from fastapi.testclient import TestClient
from webapp_store import fill, track

from webapp.app import create_app

PAIRS = [("BTCUSDT", "1h"), ("ETHUSDT", "1h"), ("PEPEUSDT", "15m")]


@pytest.fixture(scope="session")
def filled(tmp_path_factory):
    """A folder with `data` and `mlruns`: three series, forecasts, scores, one finished flow."""
    folder = tmp_path_factory.mktemp("filled")
    fill(folder / "data", "BTCUSDT", "1h")
    fill(folder / "data", "ETHUSDT", "1h", 2500.0, open_end=False, seed=1)
    fill(folder / "data", "PEPEUSDT", "15m", 1.2e-5, seed=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.chdir(folder)
        track(folder, PAIRS)
    return folder


@pytest.fixture
def client(filled, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(filled)
    with TestClient(create_app(filled / "data")) as made:
        yield made


@pytest.fixture
def empty_client(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    with TestClient(create_app(tmp_path / "data")) as made:
        yield made
