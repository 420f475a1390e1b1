"""Registered versions are MLflow models: loaded, described, served and installed by MLflow's own means."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import polars as pl
import pytest
from known_markets import busy_hours
from mlflow.types.schema import AnyType, DataType
from ports import free_port
from registering import register_champion
from test_runs import fleet_of, log_member, member
from verifying import verify_champions as verify

import cpbmodels
from cpbmodels.data.series import MEDIAN_COLUMNS, QUANTILE_COLUMNS
from schemas.identity import SeriesId
from tasks.storage.wheel import light_wheel
from tasks.tracking.prune import LOADED, logged_names, unlogged_file
from tasks.tracking.registry import champions
from tasks.tracking.store import MLFLOW_FILES, damaged, make_sqlite, open_store

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
    return champions()[0]


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
    "another zone": lambda t: t.dt.tz_convert("Asia/Tokyo"),
    "naive UTC": lambda t: t.dt.tz_localize(None),
    "seconds": seconds,
    "milliseconds": lambda t: seconds(t) * 1000,
    "microseconds": lambda t: seconds(t) * 1_000_000,
    "float seconds": lambda t: seconds(t).astype(float),
    "ISO texts": lambda t: t.map(lambda x: x.isoformat()),
    "ISO texts with Z": lambda t: t.dt.strftime("%Y-%m-%dT%H:%M:%SZ"),
    "ISO texts without a zone": lambda t: t.dt.strftime("%Y-%m-%d %H:%M:%S"),
    "objects": lambda t: pd.Series(list(t.dt.to_pydatetime()), dtype=object),
    "numbers as objects": lambda t: pd.Series(seconds(t).tolist(), dtype=object),
}


@pytest.mark.parametrize("kind", TIMES)
def test_mlflow_predicts_what_the_library_forecasts(champion, candles, kind):
    found = mlflow.pyfunc.load_model(URI).predict(as_pandas(candles, TIMES[kind]))

    pd.testing.assert_frame_equal(found, expected(champion.folder, candles))
    assert list(found) == ["issued_at", "step", "target_time", *QUANTILE_COLUMNS, *MEDIAN_COLUMNS]
    assert found["issued_at"][0] == candles["open_time"][-1] + timedelta(hours=1)


def test_the_volume_is_optional_and_other_columns_do_no_harm(champion, candles):
    model = mlflow.pyfunc.load_model(URI)
    wanted = expected(champion.folder, candles)

    frame = as_pandas(candles)
    pd.testing.assert_frame_equal(model.predict(frame.drop(columns="volume")), wanted)
    pd.testing.assert_frame_equal(model.predict(frame.assign(count=1)[["count", *reversed(CANDLES)]]), wanted)


def test_since_gives_every_origin_for_a_backtest(champion, candles):
    series = cpbmodels.Series.from_frame(candles, "BTCUSDT", "1h")
    since = "2024-02-05T12:00"
    wanted = cpbmodels.load(champion.folder).predict(series, since)

    found = mlflow.pyfunc.load_model(URI).predict(as_pandas(candles), params={"since": since})

    assert len(found) == len(wanted) > 100
    assert found["issued_at"][0] == pd.Timestamp(since, tz="UTC")
    np.testing.assert_array_equal(found["q95"], wanted["q95"])


def test_a_candle_that_has_not_closed_is_refused_or_left_out(champion, candles):
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    shift = hour - candles["open_time"][-1]
    now = candles.with_columns(pl.col("open_time") + shift)
    model = mlflow.pyfunc.load_model(URI)

    with pytest.raises(mlflow.MlflowException, match="has not come yet") as caught:
        model.predict(as_pandas(now))
    assert caught.value.error_code == "INVALID_PARAMETER_VALUE"

    found = model.predict(as_pandas(now), params={"partial": "drop"})
    pd.testing.assert_frame_equal(found, expected(champion.folder, now[:-1]))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda f: f.assign(open_time=f["open_time"].astype(str).where(f.index != 7, "noon")), "noon.*row 7"),
        (lambda f: f.assign(high=1.0), "row 0 is not a valid candle"),
        (lambda f: f.sample(frac=1, random_state=1), "earlier than the candle before"),
        (lambda f: f.iloc[:20], "more history"),
        (lambda f: f.assign(open_time=f["open_time"].where(f.index != 7)), "missing in 1 rows"),
    ],
)
def test_impossible_candles_are_one_sentence_of_mlflow(champion, candles, spoil, words):
    with pytest.raises(mlflow.MlflowException, match=words) as caught:
        mlflow.pyfunc.load_model(URI).predict(spoil(as_pandas(candles)))
    assert caught.value.error_code == "INVALID_PARAMETER_VALUE"


def test_mlflow_describes_it(champion):
    info = mlflow.models.get_model_info(URI)

    types = {c.name: c.type for c in info.signature.inputs}
    assert types == {"open_time": AnyType(), **dict.fromkeys(CANDLES[1:], DataType.double)}
    assert info.signature.inputs.optional_input_names() == ["volume"]
    assert [p.name for p in info.signature.params] == ["since", "partial"]
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


def test_registering_and_loading_print_no_warning(store, trained, recwarn, capfd, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    register_champion(BTC, log_member(fleet_of().run_id, member(trained)))
    mlflow.pyfunc.load_model(URI)
    assert "WARNING" not in capfd.readouterr().err
    assert [str(w.message) for w in recwarn if "mlflow" in str(w.message).lower()] == []


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
    assert damaged(champion.folder, champions()[0].mlflow_files) == []


def test_promoting_again_after_a_kill_writes_what_is_missing(champion, candles):
    (champion.folder / "MLmodel").unlink()
    (champion.folder / "requirements.txt").unlink()

    register_champion(BTC, champion.run_id)

    assert damaged(champion.folder, champions()[0].mlflow_files) == []
    assert len(mlflow.pyfunc.load_model(URI).predict(as_pandas(candles))) == 10


def test_verify_names_damage(store, champion, tmp_path):
    wheel = champion.folder / light_wheel().name
    with wheel.open("r+b") as file:
        file.write(b"XX")
    (champion.folder / "MLmodel").unlink()
    seen = []

    found = list(verify(tmp_path / "data", seen=seen.append))

    assert {Path(d.path).name for d in found} == {"MLmodel", wheel.name}
    assert all(d.command.startswith("cpb train-all --coins BTCUSDT ") for d in found)
    assert wheel in seen


def test_an_mlmodel_of_somebody_else_is_left_alone(store, trained, caplog):
    run_id = log_member(fleet_of().run_id, member(trained))
    theirs = Path(store.client.get_run(run_id).info.artifact_uri.removeprefix("file://")) / "MLmodel"
    theirs.write_text("flavors: {}\n")

    register_champion(BTC, run_id)

    assert theirs.read_text() == "flavors: {}\n"
    assert champions()[0].mlflow_files == {}
    assert "MLmodel is not cpb's" in caplog.text


@pytest.mark.slow
def test_the_real_server_answers(store, champion, candles, tmp_path):
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", URI, "--env-manager", "local",
               "-p", str(port), "--host", "127.0.0.1"]  # fmt: skip
    frame = as_pandas(candles, TIMES["ISO texts with Z"])
    bodies = [
        {"dataframe_split": frame.to_dict(orient="split")},
        {"dataframe_records": frame.drop(columns="volume").to_dict(orient="records")},
        {"dataframe_records": as_pandas(candles, TIMES["milliseconds"]).to_dict(orient="records")},
    ]
    # as in an activated environment: MLflow finds uvicorn by its name
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with running(command, f"http://127.0.0.1:{port}/ping", tmp_path / "serve.log", environment):
        answers = [_ask(port, body) for body in bodies]
        refused = _ask(port, {"dataframe_split": frame[:5].to_dict(orient="split")})
    wanted = expected(champion.folder, candles)
    for status, answer in answers:
        rows = pd.DataFrame(answer["predictions"])
        assert status == 200
        assert pd.to_datetime(rows["target_time"]).tolist() == wanted["target_time"].tolist()
        np.testing.assert_array_equal(rows[list(QUANTILE_COLUMNS)], wanted[list(QUANTILE_COLUMNS)])
    assert refused[0] == 400
    assert "more history" in refused[1]["message"]


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
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(site)}, **run,
    )  # fmt: skip
    assert float(done.stdout) == expected(champion.folder, candles)["q50"].iloc[-1]


@pytest.mark.slow
def test_a_tracking_server_keeps_them_as_well(trained, candles, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_sqlite(tmp_path / "mlflow.db")
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--port", str(port),
               "--backend-store-uri", f"sqlite:///{tmp_path}/mlflow.db",
               "--artifacts-destination", str(tmp_path / "kept")]  # fmt: skip
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    uri = f"http://127.0.0.1:{port}"
    with running(command, f"{uri}/health", tmp_path / "server.log", environment):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        register_champion(BTC, log_member(fleet_of().run_id, member(trained)))
        (champion,) = champions()
        found = mlflow.pyfunc.load_model(URI).predict(as_pandas(candles))
        pd.testing.assert_frame_equal(found, expected(champion.folder, candles))
        assert {f.name for f in champion.folder.iterdir()} == MODEL_NAMES
        before = open_store().client.get_run(champion.run_id).data.tags[MLFLOW_FILES]
        register_champion(BTC, champion.run_id)
        assert open_store().client.get_run(champion.run_id).data.tags[MLFLOW_FILES] == before


@contextmanager
def running(command, url, log, environment=None, limit_s=120):
    """Run a server until the block ends; it begins when the server answers at `url`."""
    with log.open("wb") as file:
        server = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True, env=environment)
    end = time.monotonic() + limit_s
    try:
        while True:
            try:
                with urllib.request.urlopen(url, timeout=5):
                    break
            except OSError:
                assert server.poll() is None, log.read_text()
                assert time.monotonic() < end
                time.sleep(0.3)
        yield
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)


def _ask(port, body):
    data = json.dumps(body, default=str).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/invocations", data, {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())
