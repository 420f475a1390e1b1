"""Zero-shot baselines: the real libraries with tiny, randomly initialised models; Kronos with a stub of its clone."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from known_markets import A, H, bounds_of, busy_hours
from scipy.stats import norm

from cpbmodels.data.columns import feature_frame
from schemas.errors import CpbError
from tasks.backtesting.models import check_installed
from tasks.judging import zeroshot
from tasks.judging.scores import LEVELS
from tasks.signals.feature_files import series_of

ROWS = 3000

KRONOS_STUB = '''
"""A stub of Kronos's package `model`: not the model. It draws each path as a random walk of the candles it is given."""
import numpy as np
import pandas as pd
import torch

class _Named(torch.nn.Module):
    @classmethod
    def from_pretrained(cls, name):
        assert name == {"Kronos": "a/model", "KronosTokenizer": "a/tokenizer"}[cls.__name__]
        return cls()

class Kronos(_Named): pass
class KronosTokenizer(_Named): pass

class KronosPredictor:
    def __init__(self, model, tokenizer, device=None, max_context=512, clip=5):
        assert isinstance(model, Kronos) and isinstance(tokenizer, KronosTokenizer)
        assert not model.training
        self.max_context = max_context

    def predict_batch(self, df_list, x_timestamp_list, y_timestamp_list, pred_len, T=1.0, top_k=0, top_p=0.9,
                      sample_count=1, verbose=True):
        assert sample_count == 1  # it returns the mean of the samples
        out = []
        for df, before, after in zip(df_list, x_timestamp_list, y_timestamp_list, strict=True):
            assert not df.isnull().values.any() and len(df) == len(before) == self.max_context
            assert len(after) == pred_len and after.dt.hour.iloc[0] == (before.dt.hour.iloc[-1] + 1) % 24
            moves = np.diff(np.log(df["close"]), prepend=np.log(df["close"].iloc[0]))
            steps = torch.randn(pred_len).numpy() * moves.std()
            out.append(pd.DataFrame({"close": df["close"].iloc[-1] * np.exp(np.cumsum(steps))}, index=after))
        return out
'''


@pytest.fixture(scope="module")
def series():
    return series_of(feature_frame(busy_hours(ROWS), "1h"), A, bounds_of(ROWS))


def save_bolt(folder):
    pytest.importorskip("chronos", reason="the extra zeroshot is not installed")
    from chronos.chronos_bolt import ChronosBoltModelForForecasting
    from transformers import T5Config

    told = {"context_length": 512, "prediction_length": 16, "input_patch_size": 16, "input_patch_stride": 16,
            "quantiles": [round(0.1 * n, 1) for n in range(1, 10)], "use_reg_token": True}  # fmt: skip
    config = T5Config(
        vocab_size=2, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, feed_forward_proj="gated-gelu",
        architectures=["ChronosBoltModelForForecasting"], chronos_config=told, decoder_start_token_id=0,
        chronos_pipeline_class="ChronosBoltPipeline",
    )  # fmt: skip
    ChronosBoltModelForForecasting(config).save_pretrained(folder)


def save_chronos(folder):
    pytest.importorskip("chronos", reason="the extra zeroshot is not installed")
    from transformers import T5Config, T5ForConditionalGeneration

    told = {"tokenizer_class": "MeanScaleUniformBins", "tokenizer_kwargs": {"low_limit": -15.0, "high_limit": 15.0},
            "n_tokens": 64, "n_special_tokens": 2, "pad_token_id": 0, "eos_token_id": 1, "use_eos_token": True,
            "model_type": "seq2seq", "context_length": 512, "prediction_length": 16, "num_samples": 20,
            "temperature": 1.0, "top_k": 50, "top_p": 1.0}  # fmt: skip
    config = T5Config(
        vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, chronos_config=told,
        decoder_start_token_id=0, architectures=["T5ForConditionalGeneration"],
    )  # fmt: skip
    T5ForConditionalGeneration(config).save_pretrained(folder)


def save_chronos2(folder):
    pytest.importorskip("chronos", reason="the extra zeroshot is not installed")
    from chronos.chronos2 import Chronos2CoreConfig, Chronos2Model

    told = {"context_length": 512, "input_patch_size": 16, "input_patch_stride": 16, "output_patch_size": 16,
            "quantiles": [0.01, *LEVELS.tolist(), 0.99], "use_reg_token": True, "use_arcsinh": True,
            "max_output_patches": 2}  # fmt: skip
    config = Chronos2CoreConfig(
        d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, chronos_config=told,
        architectures=["Chronos2Model"], chronos_pipeline_class="Chronos2Pipeline",
    )  # fmt: skip
    Chronos2Model(config).save_pretrained(folder)


def save_timesfm(folder):
    timesfm = pytest.importorskip("timesfm", reason="the extra zeroshot is not installed")
    timesfm.TimesFM_2p5_200M_torch(torch_compile=False)._save_pretrained(folder)


@pytest.fixture
def small_timesfm(monkeypatch):
    """Make the library's TimesFM 2.5 of one layer and a sixteenth of the width."""
    pytest.importorskip("timesfm", reason="the extra zeroshot is not installed")
    from timesfm.timesfm_2p5.timesfm_2p5_torch import TimesFM_2p5_200M_torch_module as Module

    def narrow(block):
        return replace(block, hidden_dims=80)

    whole = Module.config
    layers = replace(
        whole.stacked_transformers, num_layers=1,
        transformer=replace(whole.stacked_transformers.transformer, model_dims=80, hidden_dims=80, num_heads=2),
    )  # fmt: skip
    small = replace(
        whole, stacked_transformers=layers, tokenizer=replace(narrow(whole.tokenizer), output_dims=80),
        output_projection_point=replace(narrow(whole.output_projection_point), input_dims=80),
        output_projection_quantiles=replace(narrow(whole.output_projection_quantiles), input_dims=80),
    )  # fmt: skip
    monkeypatch.setattr(Module, "config", small)


@pytest.fixture
def kronos_stub(tmp_path, monkeypatch):
    (tmp_path / "clone" / "model").mkdir(parents=True)
    (tmp_path / "clone" / "model" / "__init__.py").write_text(KRONOS_STUB)
    yield f"kronos:{tmp_path / 'clone'}:a/model:a/tokenizer"
    sys.modules.pop("model", None)


SAVED = {"bolt": save_bolt, "chronos": save_chronos, "chronos2": save_chronos2, "timesfm": save_timesfm}


@pytest.fixture
def named(request, tmp_path):
    """The name of a tiny model with seeded random weights, as `--baselines` takes it."""
    if request.param == "kronos-stub":
        pytest.importorskip("pandas")
        return request.getfixturevalue("kronos_stub")
    if request.param == "timesfm":
        request.getfixturevalue("small_timesfm")
    torch.manual_seed(3)
    SAVED[request.param](tmp_path)
    return f"{'timesfm' if request.param == 'timesfm' else 'chronos'}:{tmp_path}"


@pytest.mark.parametrize("named", [*SAVED, "kronos-stub"], indirect=True)
def test_a_zero_shot_model_forecasts_quantiles_from_the_past_alone(named, series, monkeypatch):
    monkeypatch.setattr(zeroshot, "PATHS", 4)
    check_installed((named,))
    fit = zeroshot.zero_shot(named, "cpu")
    test = series.origins("test", 1, H)[-70:]  # two batches
    state = torch.get_rng_state()
    quantiles = fit(series, test[:0], H).quantiles(series, test)
    assert torch.equal(torch.get_rng_state(), state)
    assert quantiles.shape == (70, H, 19)
    assert np.isfinite(quantiles).all()
    assert (np.diff(quantiles, axis=-1) >= 0).all()
    np.testing.assert_array_equal(fit(series, test, H).quantiles(series, test), quantiles)
    dearer = replace(series, prices=series.prices * 8)  # a power of two: not a bit of any ratio changes
    np.testing.assert_array_equal(fit(dearer, test, H).quantiles(dearer, test), quantiles)
    prices = series.prices.copy()
    prices[test[29] + 1 :] *= 3
    np.testing.assert_array_equal(
        fit(series, test, H).quantiles(replace(series, prices=prices), test[:30]), quantiles[:30]
    )


def test_nothing_is_read_from_before_a_hole_or_after_the_origin(series):
    asked = []

    def predict(prices, times, horizon):
        asked.append((prices, times))
        return LEVELS, np.zeros((len(prices), horizon, 19))

    origin = 2000
    segments = np.where(np.arange(len(series)) < origin - 99, 0, 1)
    rows = np.array([origin])
    out = zeroshot.ZeroShot(predict, H).quantiles(replace(series, segments=segments), rows)
    (prices, times), *others = asked
    assert (out.shape, others, prices.shape) == ((1, H, 19), [], (zeroshot.BATCH, 512, 4))
    assert np.isnan(prices[0, :412]).all()
    known = np.log(series.prices[origin - 99 : origin + 1] / series.prices[origin, 3])
    np.testing.assert_array_equal(prices[0, 412:], known)
    assert prices[0, -1, 3] == 0
    np.testing.assert_array_equal(times[0], series.times[origin - 511 : origin + H + 1])
    assert zeroshot.ZeroShot(predict, H).quantiles(series, rows[:0]).shape == (0, H, 19)


def test_deciles_become_the_quantiles_of_a_normal_that_has_them():
    given = np.arange(1, 10) / 10
    spread = np.array([1.0, 3.0])[:, None]
    np.testing.assert_allclose(zeroshot.at_levels(spread * norm.ppf(given), given), spread * norm.ppf(LEVELS))
    np.testing.assert_allclose(zeroshot.at_levels(LEVELS**3, LEVELS), LEVELS**3)


@pytest.mark.parametrize("kind", ["chronos", "timesfm"])
def test_a_model_that_cannot_be_loaded_is_one_sentence_before_any_work(kind, tmp_path, monkeypatch):
    pytest.importorskip(kind, reason="the extra zeroshot is not installed")
    for package in ("huggingface_hub.constants", "transformers.utils.hub"):
        if package in sys.modules:
            monkeypatch.setattr(sys.modules[package], "HF_HUB_OFFLINE", True, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CpbError, match="cannot be loaded") as refused:
        check_installed((f"{kind}:nobody/no-such-model",))
    assert (refused.value.code, refused.value.field) == ("baseline-model", "baselines")
    assert "\n" not in str(refused.value)
    with pytest.raises(CpbError, match="cannot be loaded"):
        check_installed((f"{kind}:{tmp_path}",))


def test_without_the_extra_the_sentence_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "chronos", None)
    with pytest.raises(CpbError, match="the package chronos is not installed") as refused:
        check_installed(("chronos:amazon/chronos-bolt-small",))
    assert refused.value.code == "extra-missing"


def test_a_clone_without_kronos_is_refused(tmp_path):
    pytest.importorskip("pandas")
    with pytest.raises(CpbError, match="No module named 'model'"):
        check_installed((f"kronos:{tmp_path}:a/model:a/tokenizer",))
