from datetime import timedelta

import numpy as np
import polars as pl
import pytest

from schemas.errors import MemberError
from schemas.forecast_rows import FORECAST_SCHEMA
from tasks.forecasting.issue import contract_rows
from tasks.forecasting.months import latest, series_with_forecasts
from tests.tools.forecast_tools import BTC, PEPE, SIM_PEPE, START, UM_PEPE, WEIGHTS, append, files_of, rows_at
from tests.tools.live_record import read


def test_a_ten_step_forecast_is_ten_rows_of_the_contract(tmp_path):
    frame = rows_at()

    assert dict(frame.schema) == FORECAST_SCHEMA
    assert frame["step"].to_list() == list(range(1, 11))
    assert frame["target_time"][0] == START + timedelta(hours=1)
    assert append(tmp_path, PEPE, frame) == 10
    assert read(tmp_path, PEPE).equals(frame)


def test_the_same_forecast_twice_is_there_once_and_the_first_stands(tmp_path):
    append(tmp_path, PEPE, rows_at())

    assert append(tmp_path, PEPE, rows_at(last=9e-6)) == 0
    assert read(tmp_path, PEPE)["last_close"].unique().to_list() == [8.25e-6]


def test_months_are_files_and_reading_joins_them(tmp_path):
    for hours in range(8):
        append(tmp_path, PEPE, rows_at(hours))

    folder = tmp_path / "forecasts" / "interval=1h" / "symbol=PEPEUSDT"
    assert sorted(p.name for p in folder.glob("*.parquet")) == ["2025-05.parquet", "2025-06.parquet"]
    assert len(read(tmp_path, PEPE)) == 80
    since = START + timedelta(hours=2)
    assert read(tmp_path, PEPE, since=since, until=since)["issued_at"].unique().to_list() == [since]
    assert latest(tmp_path, PEPE).equals(rows_at(7))
    assert len(pl.read_parquet(tmp_path / "forecasts" / "**" / "*.parquet")) == 80


def test_of_two_models_at_one_instant_the_later_written_is_latest(tmp_path):
    append(tmp_path, PEPE, rows_at(version=1))
    append(tmp_path, PEPE, rows_at(version=2))

    assert latest(tmp_path, PEPE)["model_version"].unique().to_list() == ["cpb-PEPEUSDT-1h/2"]
    assert len(read(tmp_path, PEPE)) == 20


def test_the_reference_is_stored_beside_the_forecast(tmp_path):
    close, candle = np.full((19, 10), 2.0), np.full((10, 4), 2.0)
    reference = np.linspace(1.0, 3.0, 19)[:, None] * np.linspace(1.0, 1.1, 10)

    how = {"weights_sha256": WEIGHTS, "standing": 0, "reference": reference}
    append(tmp_path, BTC, contract_rows(BTC, "m/1", START, close, candle, 2.0, **how))

    assert read(tmp_path, BTC).select("^ref_.*$").to_numpy().T.tolist() == reference.tolist()


def test_markets_lie_apart_and_never_share_a_file(tmp_path):
    everything = [BTC, PEPE, SIM_PEPE, UM_PEPE]
    for i, series in enumerate(everything):
        append(tmp_path, series, rows_at(series=series, last=1.0 + i))

    assert series_with_forecasts(tmp_path) == sorted(everything)
    assert series_with_forecasts(tmp_path, "um") == [UM_PEPE]
    assert [read(tmp_path, s)["last_close"][0] for s in everything] == [1.0, 2.0, 3.0, 4.0]
    assert [f.parent.parent.parent for f in files_of(tmp_path, "")] == [
        tmp_path / tree for tree in (*["forecasts"] * 2, "forecasts-um", "sim/forecasts")
    ]


def test_rows_are_stored_under_their_own_series_alone(tmp_path):
    with pytest.raises(MemberError) as caught:
        append(tmp_path, BTC, rows_at())

    assert (caught.value.code, caught.value.field) == ("rows", "symbol")
    assert series_with_forecasts(tmp_path) == []


BROKEN = {
    "crossing quantiles": pl.col("q95") * 0.5,
    "a NaN": pl.lit(float("nan")).alias("q05"),
    "a negative price": pl.lit(-1.0).alias("last_close"),
    "a wrong target time": pl.col("target_time") + timedelta(minutes=1),
    "a wrong type": pl.col("step").cast(pl.Int32),
}


@pytest.mark.parametrize("name", BROKEN)
def test_rows_that_break_the_contract_are_not_written(tmp_path, name):
    with pytest.raises(MemberError) as caught:
        append(tmp_path, PEPE, rows_at().with_columns(BROKEN[name]))

    assert caught.value.code == "rows"
    assert series_with_forecasts(tmp_path) == []
