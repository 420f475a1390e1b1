"""Registered versions are MLflow models: loaded, described, served and installed by MLflow's own means."""

import importlib.metadata
import json
import logging
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import polars as pl
import pytest
import yaml
from fastapi.testclient import TestClient
from mlflow.pyfunc import scoring_server
from mlflow.types.schema import AnyType, DataType

import cpbmodels
from cpbmodels.data.prediction import MEDIAN_COLUMNS, QUANTILE_COLUMNS
from cpbmodels.mlflow import COLUMNS
from schemas.identity import SeriesId
from tasks.storage.model_folder import first_damage
from tasks.storage.wheel import light_wheel
from tasks.tracking.champions import champions
from tasks.tracking.prune import LOADED, logged_names, unlogged_file
from tasks.tracking.store import open_store
from tasks.tracking.tags import MLFLOW_FILES
from tests.tools.known_markets import busy_hours
from tests.tools.mlflow_interface import tracking_server
from tests.tools.registering import register_champion
from tests.tools.tracked_members import fleet_of, log_member, member

BTC, ETH = (SeriesId("spot", f"{coin}USDT", "1h") for coin in ("BTC", "ETH"))
URI = "models:/cpb-BTCUSDT-1h@champion"
CANDLES = ["open_time", "open", "high", "low", "close", "volume"]
MODEL_NAMES = {"model.safetensors", "config.json"}
MLFLOW_NAMES = {"MLmodel", "conda.yaml", "python_env.yaml", "requirements.txt"}


@pytest.fixture(scope="module")
def candles():
    """1,000 hours, as a polars frame."""
    return busy_hours(1000)


@pytest.fixture(scope="module")
def trained(candles, tmp_path_factory):
    """The folder of a small model that learnt them."""
    series = cpbmodels.Series.from_frame(candles, "BTCUSDT")
    (made,) = cpbmodels.train_fleet([series], architecture="har", preset="smoke", seeds=[1])
    return made.save(tmp_path_factory.mktemp("trained") / "model", {"rows": len(series)})


@pytest.fixture
def champion(store, trained, monkeypatch):
    """BTC's, of a real model in a SQLite store that MLflow knows by its environment."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    register_champion(BTC, log_member(fleet_of().run_id, member(trained)), reason="best")
    return champions(open_store())[0]


def as_pandas(candles, times=None):
    frame = pd.DataFrame({name: candles[name].to_numpy() for name in CANDLES[1:]})
    aware = pd.to_datetime(candles["open_time"].dt.replace_time_zone(None).to_numpy(), utc=True)
    frame.insert(0, "open_time", times(pd.Series(aware)) if times else aware)
    return frame


def expected(folder, candles):
    series = cpbmodels.Series.from_frame(candles, "BTCUSDT", "1h")
    return cpbmodels.load(folder).forecast(series).to_pandas()


def seconds(times):
    return (times - pd.Timestamp(0, tz="UTC")) // pd.Timedelta(seconds=1)


TIMES = {
    "aware": lambda t: t,
    "milliseconds": lambda t: seconds(t) * 1000,
    "ISO texts with Z": lambda t: t.dt.strftime("%Y-%m-%dT%H:%M:%SZ"),
    "numbers as objects": lambda t: pd.Series(seconds(t).tolist(), dtype=object),
}


@pytest.mark.parametrize("kind", TIMES)
def test_mlflow_predicts_what_the_library_forecasts(champion, candles, kind):
    rows = mlflow.pyfunc.load_model(URI).predict(as_pandas(candles, TIMES[kind]))

    pd.testing.assert_frame_equal(rows, expected(champion.folder, candles))
    assert list(rows) == ["issued_at", "step", "target_time", *QUANTILE_COLUMNS, *MEDIAN_COLUMNS]
    assert rows["issued_at"][0] == candles["open_time"][-1] + timedelta(hours=1)


def test_since_gives_every_origin_for_a_backtest(champion, candles):
    series = cpbmodels.Series.from_frame(candles, "BTCUSDT", "1h")
    since = "2024-02-05T12:00"
    wanted = cpbmodels.load(champion.folder).predict(series, since)

    rows = mlflow.pyfunc.load_model(URI).predict(as_pandas(candles), params={"since": since})

    assert len(rows) == len(wanted) > 100
    assert rows["issued_at"][0] == pd.Timestamp(since, tz="UTC")
    np.testing.assert_array_equal(rows["q95"], wanted["q95"])


def test_a_candle_that_has_not_closed_is_refused_or_left_out(champion, candles):
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    shift = hour - candles["open_time"][-1]
    now = candles.with_columns(pl.col("open_time") + shift)
    model = mlflow.pyfunc.load_model(URI)

    with pytest.raises(mlflow.MlflowException, match="has not come yet") as caught:
        model.predict(as_pandas(now))
    assert caught.value.error_code == "INVALID_PARAMETER_VALUE"

    rows = model.predict(as_pandas(now), params={"partial": "drop"})
    pd.testing.assert_frame_equal(rows, expected(champion.folder, now[:-1]))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda f: f.assign(open_time=f["open_time"].astype(str).where(f.index != 7, "noon")), "noon.*row 7"),
        (lambda f: f.iloc[:20], "more history"),
    ],
)
def test_impossible_candles_are_one_sentence_of_mlflow(champion, candles, spoil, words):
    with pytest.raises(mlflow.MlflowException, match=words) as caught:
        mlflow.pyfunc.load_model(URI).predict(spoil(as_pandas(candles)))
    assert caught.value.error_code == "INVALID_PARAMETER_VALUE"


def test_the_service_of_mlflow_models_serve_answers_with_the_forecast(champion, candles):
    """In this process: `mlflow models serve` starts this application."""
    service = TestClient(scoring_server.init(mlflow.pyfunc.load_model(URI)))
    split = as_pandas(candles, TIMES["ISO texts with Z"]).to_dict("split", index=False)
    answer = service.post("/invocations", json={"dataframe_split": split})
    (*_, last) = answer.json()["predictions"]
    assert (answer.status_code, last["step"]) == (200, 10)
    assert last["q50"] == expected(champion.folder, candles)["q50"].iloc[-1]
    refused = service.post("/invocations", json={"dataframe_split": split | {"data": split["data"][:20]}})
    assert (refused.status_code, refused.json()["error_code"]) == (400, "INVALID_PARAMETER_VALUE")


def test_mlflow_describes_it(champion):
    info = mlflow.models.get_model_info(URI)

    types = {c.name: c.type for c in info.signature.inputs}
    assert types == {"open_time": AnyType(), **dict.fromkeys(CANDLES[1:], DataType.double)}
    assert info.signature.inputs.optional_input_names() == ["volume"]
    assert [p.name for p in info.signature.params] == ["partial", "since", *COLUMNS]
    assert info.run_id == champion.run_id
    assert info.flavors["python_function"]["loader_module"] == "cpbmodels.mlflow"
    assert mlflow.pyfunc.get_model_dependencies(URI).endswith("requirements.txt")


def test_the_version_holds_the_wheel_and_no_pickle(champion):
    wheel = light_wheel()
    files = {p.relative_to(champion.folder).as_posix() for p in champion.folder.rglob("*") if p.is_file()}
    assert files == {*MODEL_NAMES, *MLFLOW_NAMES, wheel.name}
    assert set(champion.mlflow_files) == {*MLFLOW_NAMES, wheel.name}
    assert champion.mlflow_files[wheel.name] == wheel.sha256
    lines = (champion.folder / "requirements.txt").read_text().splitlines()
    assert lines[-1] == f"./{wheel.name}"
    assert all("==" in line and "+" not in line for line in lines[:-1])


def test_an_environment_without_pip_as_uv_makes_it_brings_no_warning(store, trained, caplog, monkeypatch):
    def version(name):
        if name == "pip":
            raise importlib.metadata.PackageNotFoundError(name)
        return found(name)

    found = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", version)
    logging.getLogger("mlflow").addHandler(caplog.handler)
    try:
        run_id = log_member(fleet_of().run_id, member(trained))
        register_champion(BTC, run_id)
    finally:
        logging.getLogger("mlflow").removeHandler(caplog.handler)

    assert [record.message for record in caplog.records if record.name.startswith("mlflow")] == []
    folder = Path(store.client.get_run(run_id).info.artifact_uri.removeprefix("file://"))
    pins = (folder / "requirements.txt").read_text().splitlines()
    assert yaml.safe_load((folder / "conda.yaml").read_text())["dependencies"] == [
        f"python={platform.python_version()}",
        "pip",
        {"pip": pins},
    ]


def test_a_universal_run_that_serves_two_coins_is_written_once(store, champion, candles):
    before = {n: (champion.folder / n).stat().st_mtime_ns for n in champion.mlflow_files}
    register_champion(ETH, champion.run_id)
    register_champion(BTC, champion.run_id)

    assert {n: (champion.folder / n).stat().st_mtime_ns for n in before} == before
    assert len(mlflow.pyfunc.load_model("models:/cpb-ETHUSDT-1h@champion").predict(as_pandas(candles))) == 10


def test_all_files_of_a_version_are_known_to_pruning_until_somebody_adds_one(store, champion):
    mlflow.pyfunc.load_model(URI)
    run = store.client.get_run(champion.run_id)
    names = logged_names(run.data.tags)
    assert (champion.folder / LOADED).is_file()  # which MLflow itself has written
    assert unlogged_file(store, champion.run_id, run.info.artifact_uri, names) == ""
    (champion.folder / "mine.whl").write_bytes(b"")
    assert "mine.whl" in unlogged_file(store, champion.run_id, run.info.artifact_uri, names)


def test_a_newer_release_takes_the_place_of_an_older_wheel(store, champion, tmp_path):
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    old = champion.folder / "cpbmodels-0.1.0-py3-none-any.whl"
    (champion.folder / light_wheel().name).rename(old)
    recorded = {k: v for k, v in champion.mlflow_files.items() if k != light_wheel().name}
    outside = os.path.relpath(mine, champion.folder)
    tag = json.dumps(recorded | {old.name: "0" * 64, outside: "0" * 64})
    store.client.set_tag(champion.run_id, MLFLOW_FILES, tag)

    register_champion(BTC, champion.run_id)

    assert [p.name for p in champion.folder.glob("*.whl")] == [light_wheel().name]
    assert mine.read_text() == "mine"
    assert first_damage(champion.folder, champions(open_store())[0].mlflow_files) == ""


def test_promoting_again_after_a_kill_writes_what_is_missing(champion, candles):
    (champion.folder / "MLmodel").unlink()
    (champion.folder / "requirements.txt").unlink()

    register_champion(BTC, champion.run_id)

    assert first_damage(champion.folder, champions(open_store())[0].mlflow_files) == ""
    assert len(mlflow.pyfunc.load_model(URI).predict(as_pandas(candles))) == 10


def test_an_mlmodel_of_somebody_else_is_left_alone(store, trained, caplog):
    run_id = log_member(fleet_of().run_id, member(trained))
    theirs = Path(store.client.get_run(run_id).info.artifact_uri.removeprefix("file://")) / "MLmodel"
    theirs.write_text("flavors: {}\n")

    register_champion(BTC, run_id)

    assert theirs.read_text() == "flavors: {}\n"
    assert champions(open_store())[0].mlflow_files == {}
    assert "MLmodel is not cpb's" in caplog.text


@pytest.mark.slow
def test_what_was_downloaded_installs_and_forecasts_by_itself(store, champion, candles, tmp_path):
    run = {"check": True, "capture_output": True, "text": True}
    got, site = tmp_path / "got", tmp_path / "site"
    download = [sys.executable, "-m", "mlflow", "artifacts", "download", "-u", URI, "-d", str(got)]
    subprocess.run(download, **run)
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--disable-pip-version-check"]
    # every pin is what is installed here, so that nothing but the wheel is left to install
    subprocess.run([*pip, "--dry-run", "-r", "requirements.txt"], cwd=got, **run)
    wheel = (got / "requirements.txt").read_text().splitlines()[-1]
    subprocess.run([*pip, "--target", str(site), wheel], cwd=got, **run)
    as_pandas(candles).to_csv(tmp_path / "candles.csv", index=False)
    code = (
        "import sys, mlflow, pandas, cpbmodels; assert cpbmodels.__file__.startswith(sys.argv[1]);"
        "rows = mlflow.pyfunc.load_model(sys.argv[2]).predict(pandas.read_csv(sys.argv[3]));"
        "assert 'tasks' not in sys.modules; print(rows['q50'].iloc[-1])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(site), str(got), str(tmp_path / "candles.csv")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        **run,
    )
    assert float(done.stdout) == expected(champion.folder, candles)["q50"].iloc[-1]


@pytest.mark.slow
def test_a_tracking_server_keeps_them_as_well(trained, candles, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with tracking_server(tmp_path) as (url, _):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
        register_champion(BTC, log_member(fleet_of().run_id, member(trained)))
        (champion,) = champions(open_store())
        rows = mlflow.pyfunc.load_model(URI).predict(as_pandas(candles))
        pd.testing.assert_frame_equal(rows, expected(champion.folder, candles))
        assert {f.name for f in champion.folder.iterdir()} == MODEL_NAMES
        before = open_store().client.get_run(champion.run_id).data.tags[MLFLOW_FILES]
        register_champion(BTC, champion.run_id)
        assert open_store().client.get_run(champion.run_id).data.tags[MLFLOW_FILES] == before
