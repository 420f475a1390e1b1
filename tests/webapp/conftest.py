import shutil
from dataclasses import replace

import numpy as np
import pytest

import cpbmodels
from cpbmodels.data.extremes import Extremes
from cpbmodels.data.series import Series
from tasks.storage.records import file_digest
from tests.tools.copied_store import record_place
from tests.tools.page_browser import browsing
from tests.tools.page_service import client_of
from tests.tools.webapp_store import (
    BTC,
    ETH,
    LTC,
    PEPE,
    SIM_BTC,
    UM_BTC,
    fill,
    fill_record,
    track,
)
from webapp import cache, store_cache


@pytest.fixture(autouse=True)
def _always_looking(monkeypatch):
    """Changes are seen at once, and nothing is left of what another test has read of a store."""
    monkeypatch.setattr(cache, "_CHECK_S", 0.0)
    monkeypatch.setattr(store_cache, "_CHECK_S", 0.01)
    monkeypatch.setattr(store_cache, "_PAUSE", 0)
    store_cache._results.clear()


@pytest.fixture(scope="session")
def filled(tmp_path_factory):
    """A folder with `data` and `mlruns`: three series of spot, forecasts, scores, one finished flow."""
    folder = tmp_path_factory.mktemp("filled")
    fill(folder / "data", BTC)
    fill(folder / "data", ETH, 2500.0, open_end=False, seed=1)
    fill(folder / "data", PEPE, 1.2e-5, seed=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.chdir(folder)
        track(folder, [BTC, ETH, PEPE])
    return folder


@pytest.fixture(scope="session")
def mixed(filled, tmp_path_factory):
    """The same with BTC in two more markets, the simulated one with forecasts of its own and a run."""
    folder = tmp_path_factory.mktemp("mixed") / "home"
    shutil.copytree(filled, folder, ignore=shutil.ignore_patterns("mlruns", "model", "cpb-store.json"))
    fill(folder / "data", UM_BTC, 50_000.0, seed=3)
    fill(folder / "data", SIM_BTC, 777.0, seed=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.chdir(folder)
        track(folder, [BTC, ETH, PEPE])
        track(folder, [SIM_BTC], (("gru", 0.5),))
    return folder


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    """A home in which version 2 of BTC has forecast live for 60 days, better than its reference; 1 was replayed."""
    folder = tmp_path_factory.mktemp("recorded")
    fill_record(folder / "data", BTC)
    return folder


@pytest.fixture(scope="session")
def touchable(tmp_path_factory):
    """A home with forecasts of three packaged champions: of BTC; of ETH, without a table of extremes; of LTC, whose
    table is of the format before, which does not know what comes first."""
    folder = tmp_path_factory.mktemp("touchable")
    close = 100 * np.exp(np.cumsum(np.random.default_rng(3).normal(0, 0.01, 600)))
    opened = np.r_[100.0, close[:-1]]
    high, low = np.maximum(opened, close) * 1.002, np.minimum(opened, close) / 1.002
    series = Series.from_ohlc(np.column_stack([opened, high, low, close]), timeframe="1h")
    (member,) = cpbmodels.train_fleet([series], "linear", "smoke", seeds=[1], device="cpu", epochs=1)
    before = Extremes(np.tile(np.linspace(0.01, 3, 99, dtype=np.float32), (2, 10, 1)))
    champions = {BTC: member, ETH: replace(member, extremes=None), LTC: replace(member, extremes=before)}
    for coin, model in champions.items():
        about = {"model_version": f"{coin.registered}/1", "market": "spot", "symbol": coin.symbol}
        packaged = model.save(folder / "data" / "hub" / coin.label / coin.timeframe, about)
        fill(folder / "data", coin, weights=file_digest(packaged / "model.safetensors"))
    return folder


@pytest.fixture
def client(filled, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(filled)
    with client_of(filled) as made:
        yield made


@pytest.fixture
def mixed_client(mixed, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(mixed)
    with client_of(mixed) as made:
        yield made


@pytest.fixture
def empty_client(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    with client_of(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def pages():
    """One browser and one server a home for a module's tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        with browsing(patch.chdir) as made:
            yield made


@pytest.fixture
def open_page(pages):
    """Return a function that opens a page of a home; faults on the console fail the test."""
    pages.faults.clear()
    yield pages
    pages.close_pages()
    assert pages.faults == []


@pytest.fixture
def own_folder(filled, tmp_path, monkeypatch):
    """A copy of the store that may be written."""
    folder = tmp_path / "own"
    shutil.copytree(filled, folder)
    record_place(folder / "mlruns/mlflow.db")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(folder)
    return folder
