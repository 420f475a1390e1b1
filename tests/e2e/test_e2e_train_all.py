"""The main job as a user runs it: complete, killed and repeated. What fails alone: tests/steps/test_flow.py."""

import random
import shutil
import subprocess
import time
from contextlib import suppress
from datetime import datetime

import polars as pl
import pytest
from mlflow.tracking import MlflowClient

from schemas.identity import INTERVAL_SECONDS
from tasks.market.simulator import quarter_hours, serve, to_checksum, to_csv, to_zip
from tests.tools.folder_mirror import FolderMirror, rest_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

SMALL = ("--timeframes", "1h", "--preset", "smoke", "--architectures", "linear,har")


def hours_of(month):
    """One month of 1h candles of the simulator."""
    quarters = quarter_hours("BTCUSDT", month)
    return (
        quarters.group_by_dynamic("open_time", every="1h")
        .agg(
            pl.col("open").first(),
            pl.col("high").max(),
            pl.col("low").min(),
            pl.col("close").last(),
            pl.exclude("open", "high", "low", "close", "open_time").sum(),
        )
        .select(quarters.columns)
    )


def write_month(root, symbol, month):
    """Put one month of 1h candles of the simulator into a mirror folder."""
    folder = root / "data/spot/monthly/klines" / symbol / "1h"
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{symbol}-1h-{month}"
    body = to_zip(f"{name}.csv", to_csv(hours_of(month), "1h"))
    (folder / f"{name}.zip").write_bytes(body)
    (folder / f"{name}.zip.CHECKSUM").write_bytes(to_checksum(f"{name}.zip", body))


def member_runs(folder):
    client = MlflowClient(f"sqlite:///{folder}/mlruns/mlflow.db")
    experiment = client.get_experiment_by_name("cpb")
    runs = client.search_runs([experiment.experiment_id], "tags.`cpb.kind` = 'member'", max_results=1000)
    return {r.info.run_name: r for r in reversed(runs)}


def forecast_rows(folder):
    # Not those below hub: a repeated run publishes what the killed one has forecast.
    files = [
        p for place in ("forecasts", "sim/forecasts") for p in (folder / "data" / place).rglob("*.parquet")
    ]
    return (
        pl.concat([pl.read_parquet(f, hive_partitioning=False) for f in files]) if files else pl.DataFrame()
    )


def metrics_of(folder):
    """Return every member's final metrics and curves, without the clock's and the machine's."""
    clocks = ("windows_per_s", "seconds", "_mb", "util", "power")
    client = MlflowClient(f"sqlite:///{folder}/mlruns/mlflow.db")
    result = {}
    for name, run in member_runs(folder).items():
        assert run.info.status == "FINISHED"
        kept = {k: v for k, v in run.data.metrics.items() if not any(c in k for c in clocks)}
        curve = [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "val_loss")]
        assert len(curve) == len({step for step, _ in curve})
        result[name] = (kept, sorted(curve))
    return result


def test_killed_anywhere_and_repeated_equals_undisturbed(cpb, tmp_path):
    command = (
        "train-all",
        "--source",
        "sim",
        "--coins",
        "BTC,ETH",
        "--timeframes",
        "1h",
        "--preset",
        "smoke",
        "--architectures",
        "gru,har",
    )
    started = time.monotonic()
    assert cpb.start(*command).wait(600) == 0
    whole = time.monotonic() - started
    undisturbed, rows = metrics_of(tmp_path), forecast_rows(tmp_path).drop("model_version", "made_at")
    for name in ("data", "mlruns"):
        shutil.rmtree(tmp_path / name)

    chance = random.Random(7)
    for _ in range(12):
        process = cpb.start(*command)
        with suppress(subprocess.TimeoutExpired):  # it is killed, unless it has ended before
            process.wait(chance.uniform(0.1, whole))
        cpb.kill(process)
    done = cpb(*command)
    assert done.returncode == 0, done.stderr
    assert metrics_of(tmp_path) == undisturbed
    assert (
        forecast_rows(tmp_path)
        .drop("model_version", "made_at")
        .sort("symbol", "step")
        .equals(rows.sort("symbol", "step"))
    )
    assert not [p for p in (tmp_path / "data/sim/fleets").iterdir() if not (p / "result.json").exists()]

    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "data/sim/fleets").rglob("model.safetensors")}
    assert cpb(*command).returncode == 0
    assert before == {
        p: p.stat().st_mtime_ns for p in (tmp_path / "data/sim/fleets").rglob("model.safetensors")
    }
    assert metrics_of(tmp_path) == undisturbed


def test_forecasts_come_from_closed_candles_only(cpb, tmp_path):
    for month in ("2025-01", "2025-02", "2025-03"):
        write_month(tmp_path / "mirror", "BTCUSDT", month)
    command = ("--source", tmp_path / "mirror", "--coins", "BTC", "--as-of", "2025-03-20T12:30")
    assert cpb("train-all", *command, *SMALL).returncode == 0
    rows = forecast_rows(tmp_path)
    assert rows["issued_at"].max() == datetime.fromisoformat("2025-03-20T12:00:00+00:00")
    assert rows.height == 10
    later = ("forecast", "--source", tmp_path / "mirror", "--coins", "BTC", "--timeframes", "1h")
    first = cpb.json(*later, "--as-of", "2025-03-20T17:30")
    assert (first["new_rows"], first["scored"]) == (10, 5)
    again = cpb.json(*later, "--as-of", "2025-03-20T17:30")
    assert (again["new_rows"], again["scored"]) == (0, 0)
    steps = (rows["target_time"] - rows["issued_at"]).dt.total_seconds() // INTERVAL_SECONDS["1h"]
    assert steps.sort().to_list() == list(range(1, 11))

    # `--tail`: the files end with March; April's first hours are those of REST, of which the last is still open.
    with serve(FolderMirror(tmp_path / "mirror"), rest_of(hours_of("2025-04"))) as url:
        tail = ("forecast", "--source", url, "--coins", "BTC", "--tail", "--as-of", "2025-04-01T05:30")
        assert cpb.json(*tail)["new_rows"] == 10
    newest = forecast_rows(tmp_path).filter(pl.col("issued_at") == pl.col("issued_at").max())
    assert newest["issued_at"][0] == datetime.fromisoformat("2025-04-01T05:00:00+00:00")
    assert newest.height == 10


def test_a_hub_that_is_away_costs_nothing_but_the_commit(cpb, tmp_path):
    command = ("train-all", "--source", "sim", "--coins", "BTC", *SMALL, "--repo", "alice/models")
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path / "hf")}
    untold = cpb(*command, HF_TOKEN="", **nowhere)
    assert untold.returncode == 1
    assert "no Hub token" in untold.stderr
    assert not (tmp_path / "data").exists()  # said before hours of work, not after
    done = cpb.json(*command, code=3, HF_TOKEN="hf_secret", **nowhere)
    assert [(f["step"], f["symbol"]) for f in done["failures"]] == [("publish", None)]
    assert "cannot be reached" in done["failures"][0]["reason"]
    assert "hf_secret" not in str(done)
    assert (done["champions"], done["forecast_rows"]) == (1, 10)
    assert forecast_rows(tmp_path).height == 10
    again = cpb.json(*command[:-2])
    assert again["forecast_rows"] == 10


def test_a_leap_of_the_price_level_and_prices_that_never_move_are_named_and_the_rest_goes_on(cpb, tmp_path):
    """Tables: a coin in another unit from some candle on, a stablecoin, a price that freezes in its test span, and one
    with three of four candles filled in."""
    hours = pl.concat([hours_of(month) for month in ("2025-01", "2025-02", "2025-03", "2025-04")])
    row, prices = pl.int_range(pl.len()), pl.col("open", "high", "low", "close")
    kept = row % 4 == 0
    last = pl.when(kept).then("close").forward_fill()
    filled = {name: pl.when(kept).then(name).otherwise(last) for name in ("open", "high", "low", "close")}
    tables = {
        "FILL": hours.with_columns(volume=pl.when(kept).then("volume").otherwise(0), **filled),
        "BTC": hours,
        "XEC": hours.with_columns(pl.when(row < 1000).then(prices).otherwise(prices * 1000)),
        "USDC": hours.with_columns(prices * 0 + 1),
        "ICE": hours.with_columns(pl.when(row < len(hours) - 600).then(prices).otherwise(prices * 0 + 1e5)),
    }
    folder = tmp_path / "tables"
    folder.mkdir()
    for coin, table in tables.items():
        table.write_parquet(folder / f"{coin}USDT-1h.parquet")
    leap = f"{hours['open_time'][1000]:%Y-%m-%d %H:%M}"
    ingested = cpb.json("ingest", "--source", folder, code=3)
    reasons = {series["symbol"]: series["reason"] for series in ingested["series"]}
    assert f"the price level leaps × 1,000 at {leap} UTC: " in reasons["XECUSDT"]
    result = cpb.json("train-all", "--source", folder, *SMALL, code=3)
    reasons = {f["symbol"]: f["reason"] for f in result["failures"]}
    assert f" at {leap} UTC: " in reasons["XECUSDT"]
    assert "its price never moves in the train span" in reasons["USDCUSDT"]
    assert "its price never moves in the test span" in reasons["ICEUSDT"]
    assert ": 75% of the candles in the train span " in reasons["FILLUSDT"]
    runs = member_runs(tmp_path)
    trained = {name for name, run in runs.items() if run.info.status == "FINISHED"}
    assert trained == {f"{a}/own-{s}/1h" for a in ("linear", "har") for s in ("BTCUSDT", "XECUSDT")}
    assert cpb.json("train", "XEC", "1h", "--source", folder, "--preset", "smoke", code=3)["verdict"]
    for coin, reason in (("USDC", "its price never moves"), ("FILL", "stand still")):
        alone = cpb("train-all", "--source", folder / f"{coin}USDT-1h.parquet", *SMALL)
        assert alone.returncode == 3
        assert reason in alone.stderr.strip().splitlines()[-1]
