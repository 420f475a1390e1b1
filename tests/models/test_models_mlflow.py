"""The library's adapter for MLflow, without cpb and without a store."""

import json
import subprocess
import sys

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow.exceptions import MlflowException
from mlflow.models import Model

import cpbmodels
from cpbmodels.data.series import Series
from cpbmodels.mlflow import CandleModel, signature
from tests.tools.candles import walk

HOURS = pd.date_range("2024-01-01", periods=700, freq="h", tz="UTC")


@pytest.fixture(scope="module")
def member():
    return cpbmodels.train_fleet([walk()], architecture="linear", preset="smoke", seeds=[1])[0]


def candles(times):
    return pd.DataFrame(walk().prices, columns=["open", "high", "low", "close"]).assign(open_time=times)


@pytest.mark.parametrize(
    "times",
    [
        HOURS.tz_convert("America/New_York"),
        HOURS.tz_localize(None),
        [t.strftime("%Y-%m-%d %H:%M") for t in HOURS],
        pd.Series([int(t.timestamp()) for t in HOURS]).astype("Int64"),
    ],
)
def test_times_of_any_kind_are_utc(times, member):
    rows = CandleModel(member).predict(candles(times))
    wanted = CandleModel(member).predict(candles(HOURS))
    pd.testing.assert_frame_equal(rows, wanted)
    assert rows["issued_at"][0] == HOURS[-1] + pd.Timedelta(hours=1)


def test_what_is_no_time_is_named_with_its_row(member):
    times = [t.isoformat() for t in HOURS]
    with pytest.raises(MlflowException, match="in row 1 is not a time"):
        CandleModel(member).predict(candles([times[0], "noon", *times[2:]]))


def test_any_folder_of_the_library_is_a_model_with_an_mlmodel_beside_it(tmp_path, member):
    """What a user of the wheel alone can do with a model of their own."""
    member.save(tmp_path)
    model = Model(signature=signature())
    model.add_flavor("python_function", loader_module="cpbmodels.mlflow", env={})
    model.save(tmp_path / "MLmodel")

    rows = mlflow.pyfunc.load_model(str(tmp_path)).predict(candles(HOURS.tz_localize(None)))

    forecast = member.forecast(Series.from_frame(candles(HOURS)))
    np.testing.assert_array_equal(rows["q50"], forecast.close[0.5])


def test_the_signature_needs_no_torch():
    code = (
        "import sys, json; from cpbmodels.mlflow import signature; print(json.dumps('torch' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) is False
