"""A model's folder that was not written by `save`: one sentence, never another error, and never a forecast of NaN."""

import json
import pickle
import random
import re
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save, save_file

from cpbmodels import ModelError, architectures, load, predict, train_fleet
from cpbmodels.data.chances import Chances
from cpbmodels.data.extremes import DISTANCE, MAX_RATIO, Extremes
from cpbmodels.errors import DamagedModelError, printable
from cpbmodels.fleet.config import (
    DIGEST,
    FIELDS,
    JUDGED,
    OPTIONS,
    WEIGHTS_DIGEST,
    digest,
    extremes_fault,
    sealed,
)
from cpbmodels.fleet.predict import predict_each
from tests.tools.candles import ON_ROLLING_COLUMNS, series_for, walk

SMALL = {
    "preset": "smoke",
    "device": "cpu",
    "epochs": 1,
    "steps_per_epoch": 1,
    "hidden_dim": 8,
    "ff_dim": 8,
    "max_validation_windows": 8,
}
PIPELINE = {
    "market": "spot",
    "scope": "per-series",
    "preset": "smoke",
    "recipe": "abc",
    "data_digest": "abc",
    "code_digest": "abc",
    "rows": 400,
    "training_span": ["2024-01-01T00:00:00.000000Z", "2024-01-09T00:00:00.000000Z"],
    "bounds": {"timeframe": "1h", "test": ["2024-01-01T00:00:00Z", "2024-01-09T00:00:00Z"]},
    "metrics": {"test_crps_ratio": 0.9, "test_mae_ratio": float("nan")},
}
"""What cpb's own trainer and judge write beside the options."""
STRANGE = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    3,
    7,
    31,
    2**63,
    10**400,
    1e9,
    1e308,
    -0.5,
    float("nan"),
    float("inf"),
    "",
    "x",
    "x" * 5_000,
    "0",
    "har",
    "gru",
    "\ud800",
    [],
    [[]],
    ["x"],
    [None],
    [1] * 5_000,
    {},
    {"x": {}},
    {"": None},
]
MUTATIONS = 2_000


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Each architecture's folder, its series and its config."""
    folders = {}
    for name in architectures():
        series = series_for(name, 400, seed=1)
        folder = tmp_path_factory.mktemp(name)
        short = {} if name in ON_ROLLING_COLUMNS else {"context": 8, "horizon": 4}
        member = train_fleet([series], name, seeds=[1], **SMALL | short)[0]
        member.save(folder, extra=PIPELINE)
        folders[name] = (folder, series, json.loads((folder / "config.json").read_text()))
    return folders


def places(values, path=()):
    """Every place in nested objects and lists."""
    for key, value in values.items() if isinstance(values, dict) else enumerate(values):
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


def nested(depth):
    return "[" * depth + "]" * depth


def mutated(config, draw):
    """The text of a config with one or two changes, often with digests that fit: an attacker can compute them."""
    values = json.loads(json.dumps(config))
    for _ in range(draw.choice((1, 1, 2))):
        *path, last = draw.choice(list(places(values)))
        parent = values
        for key in path:
            parent = parent[key]
        change = draw.choice(("strange", "strange", "remove", "scale", "add", "wrap"))
        if change == "remove":
            del parent[last]
        elif change == "add" and isinstance(parent, dict):
            parent[draw.choice(("extra", *FIELDS, *OPTIONS))] = draw.choice(STRANGE)
        elif change == "scale" and isinstance(parent[last], int | float):
            parent[last] = parent[last] * draw.choice((2, 10, 1e9, -1, 0.5))
        elif change == "wrap":
            parent[last] = [parent[last]]
        else:
            parent[last] = draw.choice(STRANGE)
        if not values:
            break
    if draw.random() < 0.8:
        values[DIGEST] = digest(values)
    text = json.dumps(values, indent=2)
    damage = draw.random()
    if damage < 0.02:
        return text[: draw.randrange(len(text))]
    if damage < 0.04:
        return text[:-1] + ', "symbol": ' + nested(100_000) + "}"
    return text


def outcome(folder, series):
    """The sentence of the error, or the forecast."""
    try:
        member = load(folder)
        repr(member)
        return "", member.forecast(series)
    except ModelError as error:
        return str(error), None


@pytest.mark.parametrize("name", architectures())
def test_a_mutated_config_is_a_model_error_or_a_finite_forecast(name, saved, tmp_path):
    folder, series, config = saved[name]
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    draw = random.Random(f"21 {name}")
    refused = 0
    for _ in range(MUTATIONS // len(architectures())):
        text = mutated(config, draw)
        (tmp_path / "config.json").write_text(text, errors="surrogatepass")
        sentence, forecast = outcome(tmp_path, series)
        if forecast is None:
            assert "\n" not in sentence
            assert len(sentence) < 1_000
            refused += 1
            continue
        assert_sane(forecast, text)
    assert refused > MUTATIONS // len(architectures()) // 2
    for content in (b"", b"\2\0\0\0\0\0\0\0{}", b"x" * 60):
        (tmp_path / "config.json").write_text(json.dumps(sealed(config, sha256(content).hexdigest())))
        (tmp_path / "model.safetensors").write_bytes(content)
        assert outcome(tmp_path, series)[0]


def rewrite(folder, to, tensors=None, **changes):
    """A copy of a folder with other fields or tensors, and digests that fit."""
    to.mkdir(exist_ok=True)
    weights = save(tensors) if tensors else (folder / "model.safetensors").read_bytes()
    (to / "model.safetensors").write_bytes(weights)
    values = json.loads((folder / "config.json").read_text()) | changes
    (to / "config.json").write_text(json.dumps(sealed(values, sha256(weights).hexdigest())))
    return to


def test_a_huge_context_asks_for_no_memory(saved, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "arange", lambda *_, **__: pytest.fail("allocated before the check"))
    with pytest.raises(ModelError, match="context must be a whole number from 1 to 2,048"):
        load(rewrite(saved["gru"][0], tmp_path, context=10**9))


def test_an_unknown_field_is_refused_and_another_version_says_so(saved, tmp_path):
    with pytest.raises(ModelError, match=r"'surprise' in config\.json is unknown"):
        load(rewrite(saved["gru"][0], tmp_path, surprise=1))
    with pytest.raises(ModelError, match="model format 4, this version reads 3: update"):
        load(rewrite(saved["gru"][0], tmp_path, surprise=1, format=4))
    with pytest.raises(ModelError, match="model format 2, this version reads 3: train or fetch"):
        load(rewrite(saved["gru"][0], tmp_path, format=2))


def test_a_field_that_cannot_be_read_back_is_not_saved(saved, tmp_path):
    with pytest.raises(ModelError, match=r"'surprise' in config\.json is unknown"):
        load(saved["gru"][0]).save(tmp_path / "new", extra={"surprise": 1})
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("field", "value"),
    [("input_clip", 5.0), ("known_until", "2025-01-01T00:00:00Z"), ("seed", 2), (WEIGHTS_DIGEST, "0" * 64)],
)
def test_the_digest_covers_every_field_but_what_judging_adds(field, value, saved, tmp_path):
    folder = rewrite(saved["har"][0], tmp_path)
    values = json.loads((folder / "config.json").read_text())
    for name in JUDGED:
        values[name] = {"test_crps_ratio": 0.5}
    (folder / "config.json").write_text(json.dumps(values))
    load(folder)
    (folder / "config.json").write_text(json.dumps(values | {field: value}))
    with pytest.raises(ModelError, match="damaged"):
        load(folder)


@pytest.mark.parametrize("tensor", ["weights.out.weight", "input.mean", "head.table"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(tensor, value, saved, tmp_path):
    rewrite(saved["gru"][0], tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[tensor].view(-1)[0] = value
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=f"{tensor} holds NaN or infinity"):
        load(rewrite(tmp_path, tmp_path))


@pytest.mark.parametrize(
    "change",
    [
        {"input.mean": torch.zeros(1, 2)},
        {"head.table": torch.zeros(0, 4, 19)},
        {"head.table": torch.zeros(2, 4, 19)},
        {"input.mean": torch.zeros(())},
        {"more": torch.zeros(3)},
        {"weights.out.bias": None},
        {"dtype": torch.float64},
    ],
)
def test_tensors_of_other_shapes_are_refused(change, saved, tmp_path):
    tensors = load_file(saved["gru"][0] / "model.safetensors")
    if kind := change.pop("dtype", None):
        change = {name: tensor.to(kind) for name, tensor in tensors.items()}
    tensors = {name: tensor for name, tensor in (tensors | change).items() if tensor is not None}
    rewrite(saved["gru"][0], tmp_path)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="config and weights differ"):
        load(rewrite(tmp_path, tmp_path))


def test_a_file_instead_of_its_folder_is_named(saved, tmp_path):
    folder = saved["gru"][0]
    for name in ("model.safetensors", "config.json"):
        with pytest.raises(ModelError, match=f"give the folder that holds it, {folder}"):
            load(folder / name)
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ModelError, match="cannot be read"):
        load(tmp_path)


def assert_sane(forecast, why):
    """Prices are finite and positive, quantiles ascend, chances are chances, and stops lie on their side."""
    for prices in (forecast.close.array, forecast.candle):
        assert np.isfinite(prices).all(), why
        assert (prices > 0).all(), why
    if forecast.probabilities is not None:
        assert np.isfinite(forecast.probabilities).all(), why
        return
    assert (np.diff(np.log(forecast.close.array)) >= -1e-9).all(), why
    assert (np.abs(np.log(forecast.close.array / forecast.last_close)) <= 1.5).all(), why
    if forecast.extremes is None:
        return
    for price in (0.5, 0.99, 1.0, 1.01, 2.0):
        chances = forecast.touch(forecast.last_close * price)
        assert ((chances >= 0) & (chances <= 1)).all(), why
    for chance in (0.5, 0.05, 0.01, 1e-6):
        for side, sign in (("up", 1), ("down", -1)):
            try:
                stop = forecast.stop(chance, side)
            except ModelError:  # beyond MAX_STOP
                continue
            assert np.isfinite(stop).all(), why
            assert (stop > 0).all(), why
            assert (sign * (stop - forecast.last_close) >= 0).all(), why


def _within(tensor, value):
    """The value, or infinity where the tensor's type has none as large."""
    return value if abs(value) <= torch.finfo(tensor.dtype).max else float("inf")


def filled(value):
    return lambda tensor: torch.full_like(tensor, _within(tensor, value))


def one(value):
    def change(tensor):
        out = tensor.clone()
        out.view(-1)[-1] = _within(tensor, value)
        return out

    return change


ABSURD = {
    **{f"all {value}": filled(value) for value in (0.0, 1.0, -1.0, 500.0, 1e30, -1e30, float("nan"))},
    **{f"one {value}": one(value) for value in (50.0, -50.0, 1e5, -1e5, 1e30, -1e30, float("inf"))},
    "reversed": lambda tensor: tensor.flip(-1),
    "negated": lambda tensor: -tensor,
    "times 1000": lambda tensor: tensor * 1000,
    "times 1e30": lambda tensor: tensor * 1e30,
}
"""What a stranger may write instead of a tensor."""


@pytest.mark.parametrize(
    "name",
    [
        # half a minute of a processor together
        pytest.param(
            name, marks=[pytest.mark.slow] if name in ("transformer", "average", "lstm", "gru") else []
        )
        for name in architectures()
    ],
)
def test_any_tensor_gives_a_sane_forecast_or_one_sentence(name, saved, tmp_path):
    folder, series, _ = saved[name]
    series = replace(series, times=np.arange(len(series)) * 3_600_000_000)
    tensors, refused, made = load_file(folder / "model.safetensors"), 0, 0
    kinds = {
        re.sub(r"\d+", "N", key): (key, tensor) for key, tensor in tensors.items()
    }  # of layers and members: the last
    for key, tensor in kinds.values():
        for how, change in ABSURD.items():
            rewrite(folder, tmp_path, tensors | {key: change(tensor).contiguous()})
            sentence, forecast = outcome(tmp_path, series)
            if forecast is None:
                assert str(tmp_path) in sentence or repr(load(folder)) in sentence
                assert "\n" not in sentence
                refused += 1
                continue
            made += 1
            assert_sane(forecast, f"{key} {how}")
            if forecast.probabilities is None:
                assert np.isfinite(forecast.paths(50).close).all()
                with suppress(ModelError):  # another origin's forecast may be absurd
                    rows = load(tmp_path).predict(series, since=series.end_of(len(series) - 20))
                    assert np.isfinite(rows.select(pl.selectors.float()).to_numpy()).all()
    assert refused
    assert made


@pytest.mark.parametrize("key", [DISTANCE, "head.table"])
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda t: t.flip(-1), "falls between"),
        (lambda t: torch.full_like(t, 6e4), "beyond"),
        (lambda t: -t.abs() - 1, None),
    ],
)
def test_a_table_that_falls_or_is_huge_is_refused_when_it_is_loaded(key, change, why, saved, tmp_path):
    folder = saved["har"][0]
    tensors = load_file(folder / "model.safetensors")
    if why is None and key == "head.table":
        why, change = "falls between", lambda t: -t
    rewrite(folder, tmp_path, tensors | {key: change(tensors[key]).contiguous()})
    with pytest.raises(ModelError, match=f"damaged .{key} .*{why or 'beyond'}"):
        load(tmp_path)


ENTRIES = (
    st.floats(width=32) | st.floats(0, 5, width=32) | st.sampled_from([0.0, 1.0, float(np.float32(1e30))])
)


@given(
    seed=st.integers(0, 1000),
    changes=st.dictionaries(
        st.tuples(st.integers(0, 1), st.integers(0, 3), st.integers(0, 17)), ENTRIES, max_size=5
    ),
    ordered=st.booleans(),
    of_before=st.booleans(),
    width=st.floats(1e-12, 20),
    chance=st.floats(1e-9, 0.999),
)
@settings(max_examples=150, deadline=None)
def test_every_table_that_passes_gives_stops_on_their_side(seed, changes, ordered, of_before, width, chance):
    draw, (levels, kind) = np.random.default_rng(seed), ((99, np.float32) if of_before else (18, np.float16))
    table = np.sort(draw.lognormal(0, 2, (2, 4, levels)).astype(kind))
    for place, value in changes.items():
        table[place] = np.clip(value, -6e4, 1e4 if ordered else 6e4)
    table = np.sort(np.clip(np.nan_to_num(table), 0, MAX_RATIO)) if ordered else table
    # Any shares: they need not be of one set of windows, as those of a real table are.
    shares = None if of_before else draw.uniform(0, 1, (3, 4, 19, 19)).astype(np.float16)
    extremes = Extremes(table, shares)
    if fault := extremes_fault(extremes.tensors(), 4):
        assert not ordered
        assert fault
        return
    close = np.exp(np.linspace(-width, width, 19) / 1.6 * np.ones((4, 1)))
    chances = Chances(extremes, close, 1.0)
    for price in (0.5, 2.0):
        for of_price in (chances.touch(price), chances.above(price)):
            assert ((of_price >= 0) & (of_price <= 1)).all()
    if not of_before:
        for prices in ((2.0, 0.5), (0.5, 2.0), (1.001, 0.999)):
            first = chances.first(*prices)
            assert ((first >= 0) & (np.diff(first, axis=0, prepend=0) >= 0)).all()
            assert (first.sum(axis=-1) <= 1 + 1e-12).all()
    for side, sign in (("up", 1), ("down", -1)):
        try:
            stops = chances.stop(chance, side)
        except ModelError:
            continue
        assert np.isfinite(stops).all()
        assert (stops > 0).all()
        assert (sign * (stops - 1) >= 0).all()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("known_until", "0001-01-01T00:00:00+14:00"),
        ("known_until", "9999-12-31T23:59:59-14:00"),
        ("training_span", ["2024-01-09T00:00:00Z", "2024-01-01T00:00:00Z"]),
        ("training_span", ["2024-01-09T00:00:00Z"]),
        ("bounds", {"test": ["2024-01-09T00:00:00Z", "2024-01-01T00:00:00Z"]}),
        ("bounds", {"validation": []}),
    ],
)
def test_times_are_of_these_centuries_and_spans_in_order(field, value, saved, tmp_path):
    with pytest.raises(ModelError, match=f"{field}' in config.json cannot be"):
        load(rewrite(saved["har"][0], tmp_path, **{field: value}))


HOSTILE = "BTC\033]0;title\a\r\n\x9b31m\u202e\u2066 80 %"


@given(text=st.text(st.characters(categories=("Cc", "Cf", "Cs", "Zl", "Zp", "Lu")), max_size=30))
@settings(max_examples=50)
def test_every_sentence_is_printable(text):
    for error in (ModelError(f"{text} is unknown"), DamagedModelError(text)):
        assert str(error).isprintable()
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert printable("plain text, ä 币\n") == "plain text, ä 币\n"


def test_control_characters_of_a_strangers_config_are_escaped(saved, tmp_path):
    folder, series, _ = saved["linear"]
    texts = {"symbol": HOSTILE, "symbols": [HOSTILE], "verdict": HOSTILE, "model_version": HOSTILE}
    member = load(rewrite(folder, tmp_path, **texts))
    sentences = [
        repr(member),
        repr(replace(series, symbol=HOSTILE)),
        repr(member.forecast(replace(series, symbol=HOSTILE))),
    ]
    with pytest.raises(ModelError, match="learned") as caught:
        member.forecast(series)
    sentences.append(str(caught.value))
    for field in ("architecture", HOSTILE, "known_until"):
        with pytest.raises(ModelError) as caught:
            load(rewrite(folder, tmp_path, **{field: HOSTILE}))
        sentences.append(str(caught.value))
    with pytest.raises(ModelError) as caught:
        load(tmp_path / HOSTILE)
    sentences.append(str(caught.value))
    for sentence in sentences:
        assert sentence.isprintable()
        assert r"BTC\x1b]0;title\x07" in sentence


def test_a_model_without_forecasts_costs_no_other_its_own(saved):
    folder, series, _ = saved["gru"]
    good, broken = load(folder), load(folder)
    broken.rows = broken.rows * 1e38
    origins = [np.array([300, 301])] * 3
    first, error, last = predict_each([good, broken, good], [series] * 3, origins)
    assert isinstance(error, ModelError)
    (alone,) = predict([good], [series], origins[:1])
    for forecast in (first, last):
        np.testing.assert_array_equal(forecast.quantiles, alone.quantiles)
    with pytest.raises(ModelError, match="a forecast is not finite"):
        predict([good, broken], [series] * 2, origins[:2])


def test_a_model_of_one_series_refuses_another_symbol_and_a_universal_model_none(tmp_path):
    bitcoin, ether = walk(500, symbol="BTCUSDT"), walk(500, seed=1, symbol="ETHUSDT")
    alone = train_fleet([bitcoin], "linear", **SMALL)[0]
    everyone = train_fleet([bitcoin, ether], "linear", scope="universal", **SMALL)[0]
    for ask in (alone.forecast, alone.predict):
        with pytest.raises(ModelError, match="ETHUSDT 1h: the model learned BTCUSDT alone"):
            ask(ether)
    for name in ("BTCUSDT", "BTC/USDT", "BTC/USDT:USDT", "btc-usdt", ""):
        alone.forecast(walk(500, seed=2, symbol=name))
    everyone.forecast(walk(500, seed=2, symbol="SOLUSDT"))
    # also where it is kept under the symbol of a coin
    load(everyone.save(tmp_path, extra={"symbol": "BTCUSDT"})).forecast(walk(500, symbol="SOLUSDT"))
    unnamed = train_fleet([walk(500, symbol="")], "linear", **SMALL)[0]
    unnamed.forecast(ether)
