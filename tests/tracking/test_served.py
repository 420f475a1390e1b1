"""Forecasts go on with what the MLflow server named last, while that is away."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request

import pytest
from nights import model_files
from ports import free_port
from registering import register_champion
from test_runs import log_member, member

from schemas.errors import CpbError, DamagedError
from schemas.identity import SeriesId
from tasks.storage.model_folder import file_digests
from tasks.tracking import mlflow_store, served
from tasks.tracking.database import DOWN, make_sqlite
from tasks.tracking.mlflow_store import open_store
from tasks.tracking.registry import Champion
from tasks.tracking.runs import start_fleet, start_parent
from tasks.tracking.served import serving
from tasks.tracking.tags import FILES

BTC, ETH = (SeriesId("spot", f"{coin}USDT", "1h") for coin in ("BTC", "ETH"))
SERVER = "http://cpb:hunter2@head.example:5000"


@pytest.fixture
def folder(tmp_path):
    return model_files(tmp_path / "model", "model")


@pytest.fixture
def server(tmp_path, monkeypatch, folder):
    """A server that answers or not, as its attribute `code` says; its champions by series."""
    monkeypatch.setenv("CPB_HOME", str(tmp_path / "data"))

    class Server:
        code, uri, champions = "", SERVER, {}

        def add(self, series, number):
            copy = tmp_path / "data/champions" / f"{series.registered}-{number}-0123456789ab"
            shutil.copytree(folder, copy)
            tags = {FILES: json.dumps(file_digests(copy))}
            self.champions[series] = Champion(series, number, "run", copy, tags=tags)

    one = Server()
    one.champions = {}

    def opened(_uri, *, create):
        if one.code:
            raise CpbError("the MLflow store http://head.example:5000 cannot be reached", code=one.code)

    def champions(series, market, store):
        return [model for of, model in one.champions.items() if series is None or of in series]

    monkeypatch.setattr(served, "tracking_uri", lambda: one.uri)
    monkeypatch.setattr(served, "open_store", opened)
    monkeypatch.setattr(served, "champions", champions)
    one.add(BTC, "3")
    one.add(ETH, "1")
    return one


def names(models):
    return [one.model_version for one in models]


def test_what_the_server_named_last_serves_while_it_is_away(server, tmp_path, caplog):
    before = serving()
    path = tmp_path / "data/champions/served.json"
    assert "hunter2" not in path.read_text()
    server.code = DOWN
    kept = serving()
    assert names(kept) == names(before)
    assert [one.folder for one in kept] == [one.folder for one in before]
    for one in kept:
        one.check()
    assert "forecasting continues" in caplog.text
    assert names(serving([ETH])) == ["cpb-ETHUSDT-1h/1"]
    assert serving(market="um") == []


def test_a_look_at_some_series_forgets_no_other_and_writes_nothing_twice(server, tmp_path):
    serving()
    path = tmp_path / "data/champions/served.json"
    stamp = path.stat().st_mtime_ns
    serving()
    assert path.stat().st_mtime_ns == stamp
    server.add(BTC, "5")
    serving([BTC])
    server.code = DOWN
    assert sorted(names(serving())) == ["cpb-BTCUSDT-1h/5", "cpb-ETHUSDT-1h/1"]


def test_a_kept_model_that_is_damaged_forecasts_nothing(server):
    (btc, _) = serving()
    server.code = DOWN
    weights = btc.folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(DamagedError):
        serving([BTC])[0].check()


@pytest.mark.parametrize("code", ["database-refused", "store-version", DOWN])
def test_another_error_or_another_server_is_no_reason_to_go_on(server, code):
    serving()
    server.code = code
    if code == DOWN:
        server.uri = "http://other.example:5000"
    with pytest.raises(CpbError) as caught:
        serving()
    assert caught.value.code == code


def test_of_a_store_on_this_machine_nothing_is_kept_twice(store, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("CPB_HOME", str(tmp_path / "data"))
    fleet = start_fleet(start_parent("key", {}).run_id, "gru", "key/gru").run_id
    register_champion(BTC, log_member(fleet, member(folder)))
    assert names(serving()) == ["cpb-BTCUSDT-1h/1"]
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
def test_a_server_that_is_killed_is_gone_on_without(tmp_path, folder, monkeypatch):
    monkeypatch.setenv("CPB_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    port = free_port()
    url, database = f"http://127.0.0.1:{port}", tmp_path / "mlflow.db"
    make_sqlite(database)
    command = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--port", str(port), "--backend-store-uri",
               f"sqlite:///{database}", "--artifacts-destination", str(tmp_path / "kept")]  # fmt: skip
    process = subprocess.Popen(
        command, env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        end = time.monotonic() + 240
        while time.monotonic() < end:
            try:
                urllib.request.urlopen(f"{url}/health", timeout=2).close()
                break
            except OSError:
                time.sleep(0.5)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
        fleet = start_fleet(start_parent("key", {}).run_id, "gru", "key/gru").run_id
        register_champion(BTC, log_member(fleet, member(folder)))
        (before,) = serving()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
    mlflow_store._opened.clear()
    with pytest.raises(CpbError) as caught:
        open_store(create=False)
    assert caught.value.code == DOWN
    (kept,) = serving([BTC])
    kept.check()
    assert (kept.model_version, kept.folder) == (before.model_version, before.folder)
