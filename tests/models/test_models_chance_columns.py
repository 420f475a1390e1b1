"""Chances as columns of a forecast's rows: of the library, of pandas, and by MLflow's parameters."""

from dataclasses import replace

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature
from mlflow.types.schema import ParamSchema

from cpbmodels import ModelError, Series, load, train_fleet
from cpbmodels.data.extremes import Extremes
from cpbmodels.mlflow import signature
from tests.tools.candles import table

CANDLES = table(1500)
SERIES = Series.from_frame(CANDLES, "BTCUSDT", test=0.3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    (member,) = train_fleet([SERIES], "robust-har", "smoke", seeds=[1], device="cpu")
    return member.save(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def forecast(folder):
    return load(folder).forecast(SERIES)


def prices_around(close):
    """A price above and one below the close, as few digits as a user types."""
    return float(f"{close * 1.02:.4g}"), float(f"{close * 0.98:.4g}")


def test_pairs_and_closes_above_are_columns(forecast):
    high, low = prices_around(forecast.last_close)
    rows = forecast.to_frame(touch=[high], stop=[0.05], first=[(high, low), (low, high)], above=[high, low])
    names = [
        f"{name}_first_{pair}"
        for pair in (f"{high:g}_{low:g}", f"{low:g}_{high:g}")
        for name in ("target", "stop")
    ]
    assert rows.columns[-9:] == [
        f"touch_{high:g}",
        "stop_up_0.05",
        "stop_down_0.05",
        *names,
        f"above_{high:g}",
        f"above_{low:g}",
    ]
    np.testing.assert_array_equal(rows.select(names[:2]), forecast.first(high, low))
    np.testing.assert_array_equal(rows.select(names[2:]), forecast.first(low, high))
    np.testing.assert_array_equal(rows[f"above_{low:g}"], forecast.above(low))
    one = forecast.to_pandas(first=(high, low), above=low)  # a single pair and a single price need no list
    assert one.columns[-3:].tolist() == [*names[:2], f"above_{low:g}"]
    np.testing.assert_array_equal(one[names[0]], rows[names[0]])


def test_a_pair_has_no_chance_after_closes_that_do_not_lie_between_its_prices(folder, forecast):
    model = load(folder)
    last = SERIES.prices[:, 3]
    high, low = np.quantile(last[-300:], [0.75, 0.25])
    rows = model.predict(SERIES, since=SERIES.end_of(1200), first=[(high, low)], above=[high])
    names = [f"{name}_first_{high:.12g}_{low:.12g}" for name in ("target", "stop")]
    inside = (last[1200:] > low) & (last[1200:] < high)
    assert 50 < inside.sum() < len(inside) - 50
    for name in names:
        np.testing.assert_array_equal(
            np.isfinite(rows[name].to_numpy().reshape(-1, 10)), inside[:, None] & np.ones(10, bool)
        )
    origin = 1200 + int(np.flatnonzero(inside)[0])
    alone = model.forecast(Series.from_frame(CANDLES[: origin + 1], "BTCUSDT"))
    at = rows.filter(rows["issued_at"] == alone.issued_at)
    np.testing.assert_allclose(at.select(names), alone.first(high, low), rtol=1e-4)
    np.testing.assert_allclose(at[f"above_{high:.12g}"], alone.above(high), rtol=1e-4)
    outside = 1200 + int(np.flatnonzero(~inside)[0])
    with pytest.raises(ModelError, match="do not lie on opposite sides of the last close"):
        model.forecast(Series.from_frame(CANDLES[: outside + 1], "BTCUSDT")).to_frame(first=[(high, low)])
    assert rows[f"above_{high:.12g}"].is_finite().all()
    assert forecast.to_frame(first=[]).columns == forecast.to_frame().columns


@pytest.mark.parametrize(
    "wrong", [107_000, [107_000], [(1, 2, 3)], [(1, 2), (3,)], [[(1, 2)]], "ab", [("a", "b")]]
)
def test_what_is_no_pair_is_refused(forecast, wrong):
    with pytest.raises(ModelError, match="is no list of pairs: give a target and a stop each"):
        forecast.to_frame(first=wrong)


@pytest.fixture(scope="module")
def served(folder):
    """The model as MLflow loads it."""
    write_mlmodel(folder, signature())
    return mlflow.pyfunc.load_model(str(folder))


def write_mlmodel(folder, signed):
    model = Model(signature=signed)
    model.add_flavor("python_function", loader_module="cpbmodels.mlflow", env={})
    model.save(folder / "MLmodel")


def as_pandas():
    columns = CANDLES.to_dict()
    times = pd.to_datetime(columns.pop("open_time").dt.replace_time_zone(None).to_numpy(), utc=True)
    return pd.DataFrame({"open_time": times, **{name: values.to_numpy() for name, values in columns.items()}})


def test_mlflow_takes_targets_stops_and_prices_as_texts(served, forecast):
    high, low = prices_around(forecast.last_close)
    rows = served.predict(
        as_pandas(), params={"target_price": f"{high:g}", "stop_price": f"{low:g}", "above": f"{low:g}"}
    )
    pd.testing.assert_frame_equal(rows, forecast.to_pandas(first=[(high, low)], above=[low]))
    many = served.predict(
        as_pandas(), params={"target_price": f"{high:g},{low:g}", "stop_price": f"{low:g},{high:g}"}
    )
    pd.testing.assert_frame_equal(many, forecast.to_pandas(first=[(high, low), (low, high)]))
    since = {"since": forecast.issued_at.isoformat(), "target_price": f"{high:g}", "stop_price": f"{low:g}"}
    late = served.predict(as_pandas(), params=since)
    np.testing.assert_allclose(
        late[f"target_first_{high:g}_{low:g}"], forecast.first(high, low)[:, 0], rtol=1e-4
    )


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"target_price": "107"}, "target_price names 1 and stop_price 0 prices: give each target its stop"),
        ({"stop_price": "103"}, "target_price names 0 and stop_price 1 prices"),
        ({"target_price": "107.0,109", "stop_price": "103"}, "target_price names 2 and stop_price 1 prices"),
        (
            {"target_price": "107,500", "stop_price": "103"},
            "target_price '107,500' can be read as one price or as several",
        ),
        ({"above": "98.5,107,500"}, "above '107,500' can be read as one price or as several"),
        ({"touch": "98,500"}, "touch '98,500' can be read as one price or as several"),
        ({"target_price": "1e9", "stop_price": "1e8"}, "do not lie on opposite sides of the last close"),
        ({"target_price": "x", "stop_price": "y"}, "is no list of pairs"),
        ({"above": "x"}, "neither a number nor a list of numbers"),
    ],
)
def test_impossible_parameters_are_one_sentence_of_mlflow(served, asked, words):
    with pytest.raises(MlflowException, match=words) as caught:
        served.predict(as_pandas(), params=asked)
    assert caught.value.error_code == "INVALID_PARAMETER_VALUE"


def test_a_version_logged_before_and_a_table_of_before_go_on(folder, forecast, tmp_path, caplog):
    levels = np.sort(np.random.default_rng(0).exponential(0.5, (2, 1, 99))) * np.arange(10, 20)[:, None] / 10
    of_before = replace(load(folder), extremes=Extremes(levels.astype(np.float32))).save(tmp_path)
    signed = signature()
    params = [spec for spec in signed.params.params if spec.name in ("partial", "since", "touch", "stop")]
    write_mlmodel(of_before, ModelSignature(signed.inputs, signed.outputs, ParamSchema(params)))
    model = mlflow.pyfunc.load_model(str(of_before))
    close = forecast.last_close
    rows = model.predict(as_pandas(), params={"touch": f"{close * 1.02}", "stop": "0.05"})
    np.testing.assert_array_equal(rows["q50"], forecast.close[0.5])
    assert rows.columns[-2:].tolist() == ["stop_up_0.05", "stop_down_0.05"]
    # MLflow itself leaves out parameters that the signature does not know.
    ignored = model.predict(as_pandas(), params={"target_price": f"{close * 1.02}"})
    assert ignored.columns[-1] == "q50_low"
    assert "target_price" in caplog.text
    write_mlmodel(of_before, signed)
    pair = {"target_price": f"{close * 1.02}", "stop_price": f"{close * 0.98}"}
    with pytest.raises(MlflowException, match="train it again"):
        mlflow.pyfunc.load_model(str(of_before)).predict(as_pandas(), params=pair)
    above = mlflow.pyfunc.load_model(str(of_before)).predict(as_pandas(), params={"above": "100"})
    np.testing.assert_array_equal(above["above_100"], forecast.above(100))
