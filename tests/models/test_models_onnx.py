"""Models for other languages: the file gives the library's forecasts, the JSON says what goes in."""

import json
from importlib.util import find_spec

import numpy as np
import pytest
from test_models_frames import candles

from cpbmodels import ModelError, Series, ensemble, load, predict, train_fleet
from cpbmodels.adapters.onnx import export_onnx, exportable
from cpbmodels.data.columns import FEATURES, definition

pytestmark = pytest.mark.skipif(
    not (find_spec("onnxruntime") and find_spec("onnxscript")), reason="needs onnxruntime and onnxscript"
)


def trained(architecture, seeds=(1,)):
    series = Series.from_frame(candles(1500), "BTCUSDT")
    options = {} if architecture == "robust-har" else {"epochs": 1}
    return train_fleet(
        [series] * len(seeds), architecture, "smoke", seeds=list(seeds), device="cpu", **options
    ), series


def answers(paths, series, rows, context):
    """What a program that knows only the two files gets."""
    import onnxruntime  # takes seconds

    about = json.loads(paths[1].read_text())
    names = [one["name"] for one in about["inputs"]["columns"]["columns"]]
    assert about["inputs"]["columns"]["shape"] == ["N", context, len(names)]
    windows = np.stack([series.columns(tuple(names))[row - context + 1 : row + 1] for row in rows])
    inputs = {
        "columns": windows.astype(np.float32),
        "volatility": series.volatility[rows].astype(np.float32),
    }
    return onnxruntime.InferenceSession(str(paths[0])).run(["quantiles", "candle"], inputs)


@pytest.mark.slow  # torch's exporter takes seconds
@pytest.mark.parametrize("architecture", exportable())
def test_the_file_gives_the_models_forecasts(architecture, tmp_path):
    (member,), series = trained(architecture)
    paths = export_onnx(load(member.save(tmp_path / "model")), tmp_path / "out", series)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["model.json", "model.onnx"]
    rows = np.flatnonzero(series.usable(member.context))
    wanted = predict([member], [series], [rows])[0]
    quantiles, candle = answers(paths, series, rows, member.context)
    np.testing.assert_allclose(quantiles, wanted.quantiles, rtol=0, atol=1e-5)
    np.testing.assert_allclose(candle, wanted.candle, rtol=0, atol=1e-5)
    one, _ = answers(paths, series, rows[:1], member.context)
    np.testing.assert_allclose(one, wanted.quantiles[:1], rtol=0, atol=1e-5)
    example = json.loads(paths[1].read_text())["example"]
    np.testing.assert_allclose(example["quantiles"], wanted.quantiles[-3:], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_an_ensemble_is_averaged(tmp_path):
    members, series = trained("har", seeds=(1, 2))
    model = ensemble(members)
    rows = np.flatnonzero(series.usable(1))[-50:]
    quantiles, _ = answers(export_onnx(model, tmp_path, series), series, rows, 1)
    np.testing.assert_allclose(quantiles, predict([model], [series], [rows])[0].quantiles, rtol=0, atol=1e-5)


def test_what_cannot_be_exported_is_named(tmp_path):
    (member,), series = trained("gru")
    with pytest.raises(ModelError, match="linear, har, robust-har"):
        export_onnx(member, tmp_path / "out", series)
    assert not (tmp_path / "out").exists()


def test_every_column_has_a_definition():
    assert all(definition(name) for name in FEATURES)
