"""The library's adapter for MLflow, without cpb and without a store."""

import json
import subprocess
import sys

import mlflow
import numpy as np
import pandas as pd
import pytest
from candles import walk
from mlflow.models import Model

import cpbmodels
from cpbmodels import ModelError
from cpbmodels.data.series import Series
from cpbmodels.mlflow import signature, utc_times

HOURS = pd.date_range("2025-01-01", periods=3, freq="h", tz="UTC")


@pytest.mark.parametrize(
    "times",
    [
        HOURS,
        HOURS.tz_convert("America/New_York"),
        HOURS.tz_localize(None),
        HOURS.as_unit("ms"),
        [t.isoformat() for t in HOURS],
        ["2025-01-01", "2025-01-01 01:00", "2025-01-01T04:00+02:00"],
        [t.to_pydatetime() for t in HOURS],
    ],
)
def test_times_become_aware(times):
    assert utc_times(pd.Series(times)).tolist() == HOURS.tolist()


@pytest.mark.parametrize("kind", ["int64", "float64", "Int64", "object"])
def test_numbers_stay_numbers(kind):
    numbers = pd.Series([1735689600, 1735693200]).astype(kind)
    assert utc_times(numbers).tolist() == [1735689600, 1735693200]


@pytest.mark.parametrize("wrong", ["noon", "1735689600", "01/02/2025", True])
def test_what_is_no_time_is_named_with_its_row(wrong):
    with pytest.raises(ModelError, match="in row 1 is not a time"):
        utc_times(pd.Series(["2025-01-01", wrong], dtype=object))


def test_any_folder_of_the_library_is_a_model_with_an_mlmodel_beside_it(tmp_path):
    """What a user of the wheel alone can do with a model of their own."""
    (member,) = cpbmodels.train_fleet([walk()], architecture="linear", preset="smoke", seeds=[1])
    member.save(tmp_path)
    model = Model(signature=signature())
    model.add_flavor("python_function", loader_module="cpbmodels.mlflow", env={})
    model.save(tmp_path / "MLmodel")
    opened = pd.date_range("2024-01-01", periods=700, freq="h")
    frame = pd.DataFrame(walk().prices, columns=["open", "high", "low", "close"]).assign(open_time=opened)

    rows = mlflow.pyfunc.load_model(str(tmp_path)).predict(frame)

    aware = frame.assign(open_time=opened.tz_localize("UTC"))
    np.testing.assert_array_equal(rows["q50"], member.forecast(Series.from_frame(aware)).close[0.5])


def test_the_signature_needs_no_torch():
    code = (
        "import sys, json; from cpbmodels.mlflow import signature; print(json.dumps('torch' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) is False
