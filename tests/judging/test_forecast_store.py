from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import numpy as np
import pandera.errors
import polars as pl
import pytest

from schemas.forecasts import FORECAST_SCHEMA
from tasks.judging.forecast_store import append, forecast_rows, latest, read, stored_series

START = datetime(2025, 5, 31, 20, tzinfo=UTC)


def rows_at(hours=0, last=8.25e-6, symbol="PEPEUSDT", model="cpb-PEPEUSDT-1h/1", horizon=10):
    spread = 0.01 * np.sqrt(np.arange(1, horizon + 1))
    close = last * np.exp(np.linspace(-1.6, 1.6, 19)[:, None] * spread)
    candle = np.stack([close[9], close[9] * 1.01, close[9] * 0.99, close[9]], axis=1)
    return forecast_rows(symbol, "1h", model, START + timedelta(hours=hours), 3600, close, candle, last)


def test_a_ten_step_forecast_is_ten_rows_of_the_contract(tmp_path):
    frame = rows_at()

    assert dict(frame.schema) == FORECAST_SCHEMA
    assert frame["step"].to_list() == list(range(1, 11))
    assert frame["target_time"][0] == START + timedelta(hours=1)
    assert append(tmp_path, frame) == 10
    assert read(tmp_path, "PEPEUSDT", "1h").equals(frame)


def test_the_same_forecast_twice_is_there_once_and_the_first_stands(tmp_path):
    append(tmp_path, rows_at())

    assert append(tmp_path, rows_at(last=9e-6)) == 0
    assert read(tmp_path, "PEPEUSDT", "1h")["last_close"].unique().to_list() == [8.25e-6]


def test_months_are_files_and_reading_joins_them(tmp_path):
    for hours in range(8):
        append(tmp_path, rows_at(hours))

    folder = tmp_path / "forecasts" / "interval=1h" / "symbol=PEPEUSDT"
    assert sorted(p.name for p in folder.glob("*.parquet")) == ["2025-05.parquet", "2025-06.parquet"]
    assert len(read(tmp_path, "PEPEUSDT", "1h")) == 80
    since = START + timedelta(hours=2)
    assert read(tmp_path, "PEPEUSDT", "1h", since=since, until=since)["issued_at"].unique().to_list() == [
        since
    ]
    assert latest(tmp_path, "PEPEUSDT", "1h").equals(rows_at(7))
    assert len(pl.read_parquet(tmp_path / "forecasts" / "**" / "*.parquet")) == 80


def test_of_two_models_at_one_instant_the_later_written_is_latest(tmp_path):
    append(tmp_path, rows_at(model="cpb-PEPEUSDT-1h/1"))
    append(tmp_path, rows_at(model="cpb-PEPEUSDT-1h/2"))

    assert latest(tmp_path, "PEPEUSDT", "1h")["model_version"].unique().to_list() == ["cpb-PEPEUSDT-1h/2"]
    assert len(read(tmp_path, "PEPEUSDT", "1h")) == 20


def test_an_unknown_series_is_empty(tmp_path):
    assert latest(tmp_path, "BTCUSDT", "1h").is_empty()
    assert read(tmp_path, "BTCUSDT", "1h").columns == list(FORECAST_SCHEMA)
    assert stored_series(tmp_path) == []


def test_several_series_in_one_call(tmp_path):
    both = pl.concat([rows_at(), rows_at(symbol="BTCUSDT", last=1e5, model="cpb-BTCUSDT-1h/1")])

    assert append(tmp_path, both) == 20
    assert stored_series(tmp_path) == [("BTCUSDT", "1h"), ("PEPEUSDT", "1h")]


def test_parallel_writers_lose_nothing(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        written = list(pool.map(lambda i: append(tmp_path, rows_at(i % 16)), range(32)))

    assert sum(written) == 160
    assert len(read(tmp_path, "PEPEUSDT", "1h")) == 160


BROKEN = {
    "crossing quantiles": pl.col("q95") * 0.5,
    "an infinite price": pl.lit(float("inf")).alias("q95"),
    "a NaN": pl.lit(float("nan")).alias("q05"),
    "a negative price": pl.lit(-1.0).alias("last_close"),
    "a high below the body": pl.col("q50_high") * 0.9,
    "a low above the body": pl.col("q50_low") * 1.1,
    "a wrong target time": pl.col("target_time") + timedelta(minutes=1),
    "a step of zero": pl.col("step") - 1,
    "an unknown interval": pl.lit("7m").alias("timeframe"),
    "a wrong type": pl.col("step").cast(pl.Int32),
}


@pytest.mark.parametrize("name", BROKEN)
def test_rows_that_break_the_contract_are_not_written(tmp_path, name):
    with pytest.raises((pandera.errors.SchemaError, pandera.errors.SchemaErrors)):
        append(tmp_path, rows_at().with_columns(BROKEN[name]))

    assert stored_series(tmp_path) == []


def test_duplicates_missing_columns_and_emptiness_are_refused(tmp_path):
    frame = rows_at()
    for bad in (pl.concat([frame, frame]), frame.drop("q50"), frame.select(reversed(frame.columns))):
        with pytest.raises(pandera.errors.SchemaError):
            append(tmp_path, bad)
    with pytest.raises(ValueError, match="no rows"):
        append(tmp_path, frame.clear())


def test_arrays_of_the_wrong_shape_are_named():
    with pytest.raises(ValueError, match=r"\[19, H\]"):
        forecast_rows("BTCUSDT", "1h", "m", START, 3600, np.ones((18, 10)), np.ones((10, 4)), 1.0)
