import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cpbmodels import ensemble, ineligible_reason, load, predict, preset, train_fleet
from cpbmodels.arch.heads import Point
from cpbmodels.data import RETURNS
from cpbmodels.errors import ModelError
from cpbmodels.fleet.bank import Bank
from cpbmodels.fleet.checkpoints import Checkpoints
from cpbmodels.fleet.fleet import Fleet
from tests.tools.candles import LEARNT, series_for, walk

SMALL = {"preset": "smoke", "device": "cpu", "epochs": 3}


def same(a, b):
    assert a.history == b.history
    assert torch.equal(a.rows, b.rows)
    assert torch.equal(a.table, b.table)


@pytest.mark.parametrize("architecture", ["gru", "har", "robust-har"])
def test_folds_and_seeds_share_their_candles_and_give_the_same_bits(architecture):
    whole = series_for(architecture, 900)
    early = replace(whole, spans={"train": (0, 400), "validation": (450, 600)})
    other = series_for(architecture, 700, seed=3)
    shared, seeds = [whole, early, other, whole], [1, 2, 3, 4]
    bank = Bank.build(shared, preset("smoke", architecture), torch.device("cpu"), torch.float32)
    assert bank.starts == (0, 0, 900, 0)
    assert len(bank.rows) == 1600

    copied = [replace(s, features=s.features.copy(), volatility=s.volatility.copy()) for s in shared]
    together, alone = (train_fleet(series, architecture, seeds=seeds, **SMALL) for series in (shared, copied))
    origins = [np.arange(650, 650 + n) for n in (5, 0, 9, 1)]
    forecasts = zip(predict(together, shared, origins), predict(alone, copied, origins), strict=True)
    for a, b in zip(together, alone, strict=True):
        same(a, b)
    for a, b in forecasts:
        assert np.array_equal(a.quantiles, b.quantiles)


@pytest.mark.parametrize("architecture", LEARNT)
def test_every_architecture_learns(architecture):
    member = train_fleet(
        [series_for(architecture, 900)],
        architecture,
        **(SMALL | {"epochs": 4, "patience": 9, "lr": 0.01, "steps_per_epoch": 0}),
    )[0]
    losses = [epoch["train_loss"] for epoch in member.history]
    assert losses[-1] < losses[0]
    assert member.report["stopped"] == "max_epochs"
    assert [epoch["epoch"] for epoch in member.history] == [1, 2, 3, 4]


@pytest.mark.parametrize("head", ["student-t", "point", "quantile"])
def test_every_head_fulfils_the_forecast_contract(head):
    series = walk(700)
    member = train_fleet([series], "gru", head=head, **SMALL)[0]
    rows = predict([member], [series], [series.origins("validation", 30, 10)])[0]
    assert rows.quantiles.shape == (len(rows.origins), 10, 19)
    assert rows.quantiles.dtype == np.float64
    assert (np.diff(rows.quantiles) >= 0).all()
    opened, high, low, close = np.moveaxis(rows.candle, -1, 0)
    assert (low <= np.minimum(opened, close)).all()
    assert (high >= np.maximum(opened, close)).all()
    forecast = member.forecast(series)
    np.testing.assert_allclose(forecast.close[0.5], forecast.candle[:, 3])
    np.testing.assert_array_equal(forecast.close["q05"], forecast.close[0])
    assert forecast.last_close == series.prices[-1, 3]
    assert forecast.issued_row == 699


def test_point_quantiles_are_those_of_the_validation_residuals():
    series = walk(700)
    member = train_fleet([series], "linear", head="point", **SMALL)[0]
    origins = series.origins("validation", 30, 10)
    quantiles = predict([member], [series], [origins])[0].quantiles
    real = np.log(series.prices[origins[:, None] + np.arange(1, 11), 3] / series.prices[origins, 3][:, None])
    below = (real[..., None] <= quantiles).mean((0, 1))
    np.testing.assert_allclose(below, np.arange(1, 20) * 0.05, atol=0.02)
    assert Point.needs_residuals


def test_classifier_reports_accuracy_and_confusion():
    series = walk(700)
    member = train_fleet([series], "classifier-gru", **SMALL)[0]
    confusion = np.array(member.report["confusion"])
    assert confusion.sum() == member.report["validation_windows"]
    assert member.report["accuracy"] == pytest.approx(np.trace(confusion) / confusion.sum())
    origins = series.origins("validation", 30, 10)
    probabilities = predict([member], [series], [origins])[0].probabilities
    moves = np.log(series.prices[origins + 1, 3] / series.prices[origins, 3]) / series.volatility[origins]
    truth = np.where(moves > 0.3, 0, np.where(moves < -0.3, 2, 1))
    assert (probabilities.argmax(1) == truth).mean() == pytest.approx(member.report["accuracy"], abs=0.01)


def test_interrupted_and_resumed_gives_the_same_bits(tmp_path):
    series = [walk(rows, seed=rows) for rows in (500, 600)]
    options = SMALL | {"seeds": [1, 2], "epochs": 6, "dropout": [0.2, 0.5], "lr": [1e-3, 0.02], "workers": 1}
    whole = train_fleet(series, "gru", **options)

    def interrupt(record):
        if record.epoch == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_fleet(series, "gru", checkpoint=tmp_path, on_epoch=interrupt, **options)
    assert 1 <= len(list(tmp_path.rglob("*.safetensors"))) <= 2
    seen = []
    resumed = train_fleet(
        series, "gru", checkpoint=tmp_path, resume=True, on_epoch=lambda r: seen.append(r.epoch), **options
    )
    assert seen[0] > 1
    assert not list(tmp_path.rglob("epoch-000006*"))  # nothing continues from the last epoch
    for a, b in zip(whole, resumed, strict=True):
        same(a, b)
    for other in ({"seeds": [3, 4]}, {"lr": [0.02, 1e-3]}):
        with pytest.raises(ModelError, match="a different training"):
            train_fleet(series, "gru", checkpoint=tmp_path, resume=True, **options | other)


def test_members_that_were_cut_into_other_fleets_start_anew(tmp_path, caplog):
    """As where the same command goes on with another number of cores, or memory ran out the first time."""
    series = [walk(rows, seed=rows) for rows in (500, 600)]
    options = SMALL | {"epochs": 3}
    train_fleet(series, "gru", checkpoint=tmp_path, workers=2, seeds=[1, 2], **options)

    together = train_fleet(
        series, "gru", checkpoint=tmp_path, resume=True, workers=1, seeds=[1, 2], **options
    )

    assert "these members start from new weights" in caplog.text
    alone = train_fleet(series, "gru", workers=1, seeds=[1, 2], **options)
    assert [member.history for member in together] == [member.history for member in alone]


def test_an_interrupt_stops_fleets_that_run_side_by_side():
    series = [walk(500, seed=seed) for seed in range(2)]

    def interrupt(record):
        raise KeyError("stop")

    endless = SMALL | {"epochs": 100_000, "patience": 100_000}
    with pytest.raises(KeyError):
        train_fleet(series, "gru", workers=2, on_epoch=interrupt, **endless)


SCRIPT = """
from tests.tools.candles import walk
from cpbmodels import train_fleet
members = train_fleet([walk(600, 1), walk(700, 2)], "lstm", "smoke", [1, 2], device="cpu", dropout=0.2, workers=1,
    epochs=12, patience=12, checkpoint={folder!r}, resume=True, on_epoch=lambda r: print(r.epoch, flush=True))
for k, member in enumerate(members):
    member.save({folder!r} + f"/done-{{k}}")
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_process_resumes_to_the_same_bits(tmp_path, number):
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}

    def start(folder):
        code = SCRIPT.format(folder=str(folder))
        return subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment, text=True
        )

    assert start(tmp_path / "whole").wait() == 0
    process = start(tmp_path / "killed")
    for line in process.stdout:
        if line.strip() == "5":
            process.send_signal(number)
            break
    assert process.wait() != 0
    assert start(tmp_path / "killed").wait() == 0
    for k in range(2):
        same(load(tmp_path / "whole" / f"done-{k}"), load(tmp_path / "killed" / f"done-{k}"))


def test_a_diverged_member_keeps_its_best_snapshot_and_says_so(monkeypatch):
    series = [walk(600, seed=seed) for seed in range(3)]
    step, calls = Fleet.step, []

    def poisoned(self, bank, origins, weight, lr):
        calls.append(1)
        if len(calls) == 14:  # the second epoch
            self.flat[1, 5] = torch.nan
        return step(self, bank, origins, weight, lr)

    options = SMALL | {"steps_per_epoch": 10, "seeds": [1, 2, 3], "workers": 1}
    clean = train_fleet(series, "gru", **options)
    monkeypatch.setattr(Fleet, "step", poisoned)
    fleet = train_fleet(series, "gru", **options)
    assert [member.report["stopped"] for member in fleet] == ["max_epochs", "nan", "max_epochs"]
    assert "epoch 2" in fleet[1].report["reason"]
    assert fleet[1].report["best_epoch"] == 1
    assert [member.report["diverged"] for member in fleet] == [False] * 3  # its snapshot is a trained one
    assert torch.isfinite(fleet[1].rows).all()
    for k in (0, 2):
        torch.testing.assert_close(fleet[k].rows, clean[k].rows)


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_member_that_diverges_in_its_first_epoch_is_marked_and_alone_in_it(tmp_path, epochs, monkeypatch):
    series = [walk(600, seed=seed) for seed in (1, 2)]
    options = SMALL | {"seeds": [1, 2], "workers": 1, "epochs": epochs}
    clean = train_fleet(series, "gru", **options)
    untrained = train_fleet(series, "gru", on_step=lambda record: True, **options)
    step = Fleet.step

    def poisoned(self, bank, origins, *rest):
        self.flat[1:2, 5] = torch.nan
        return step(self, bank, origins, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Fleet, "step", poisoned)
        good, bad = train_fleet(series, "gru", **options)
    assert (good.report["diverged"], bad.report["diverged"]) == (False, True)
    assert (bad.report["stopped"], bad.report["best_epoch"]) == ("nan", 0)
    assert "initial weights" in bad.report["reason"]
    assert torch.equal(bad.rows, untrained[1].rows)
    if epochs == 1:  # afterwards the other fleet is larger by one member: its products may round differently
        same(good, clean[0])
    torch.testing.assert_close(good.rows, clean[0].rows)
    assert good.report["diverged"] is load(good.save(tmp_path / "good")).report["diverged"] is False
    assert load(bad.save(tmp_path / "bad")).report["diverged"] is True
    assert ensemble([good, bad]).report["diverged"] is True
    assert ensemble([good, clean[0]]).report["diverged"] is False


def test_all_fleets_share_one_copy_of_the_candles(monkeypatch):
    made = []
    counting = SimpleNamespace(build=lambda *rest: made.append(1) or Bank.build(*rest))
    # forecasts of the finished models have their own
    monkeypatch.setattr("cpbmodels.fleet.train.Bank", counting)
    train_fleet([walk(500, seed=s) for s in range(4)], "linear", workers=2, fleet_size=1, **SMALL)
    assert len(made) == 1


def test_universal_members_learn_all_series_and_serve_others():
    series = [walk(600, seed=s, timeframe=t) for s, t in ((1, "1h"), (2, "1h"), (3, "15m"))]
    members = train_fleet(series, "linear", seeds=[7, 8], scope="universal", **SMALL)
    learned = [(m.config["timeframe"], m.config["seed"]) for m in members]
    assert learned == [("1h", 7), ("1h", 8), ("15m", 7), ("15m", 8)]
    alone = train_fleet(series[:1], "linear", seeds=[7], **SMALL)[0]
    assert members[0].report["train_windows"] > alone.report["train_windows"]
    assert members[0].forecast(walk(300, seed=9)).candle.shape == (10, 4)
    assert len(train_fleet(series, "linear", seeds=[7, 8, 9], scope="both", **SMALL)) == 3 + 2 * 3


def test_an_ensemble_averages_and_survives_its_folder(tmp_path):
    series = walk(600)
    members = train_fleet([series] * 3, "gru", seeds=[1, 2, 3], **SMALL)
    together = ensemble(members)
    origins = series.origins("validation", 30, 10)
    parts = predict(members, [series] * 3, [origins] * 3)
    together.save(tmp_path / "e")
    mean = predict([load(tmp_path / "e")], [series], [origins])[0]
    np.testing.assert_allclose(mean.quantiles, np.mean([p.quantiles for p in parts], 0), rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(mean.candle, np.mean([p.candle for p in parts], 0), rtol=1e-4, atol=1e-6)
    other = train_fleet([series], "gru", **(SMALL | {"hidden_dim": 8}))[0]
    with pytest.raises(ModelError, match="hidden_dim"):
        ensemble([members[0], other])


@pytest.mark.parametrize("architecture", ["transformer", "gru", "lstm"])
def test_accumulation_and_gradient_checkpointing_change_nothing_but_memory(architecture):
    series = walk(500)
    options = SMALL | {"dtype": "float64", "epochs": 1, "dropout": 0.0, "teacher_forcing": 0.0}
    plain = train_fleet([series], architecture, **options)[0]
    for spare in ({"accumulate": 4}, {"checkpoint_gradients": True}):
        spared = train_fleet([series], architecture, **options, **spare)[0]
        torch.testing.assert_close(plain.rows, spared.rows, rtol=1e-9, atol=1e-12)
    random = options | {"dropout": 0.3, "teacher_forcing": 0.5, "n_layers": 2}
    noisy = train_fleet([series], architecture, **random)[0]
    again = train_fleet([series], architecture, checkpoint_gradients=True, **random)[0]
    torch.testing.assert_close(noisy.rows, again.rows, rtol=1e-9, atol=1e-12)


def test_bf16_stays_close_to_float32():
    series = [walk(600, seed=s) for s in (1, 2)]
    for architecture in ("transformer", "gru"):
        options = SMALL | {"seeds": [1, 2], "epochs": 2}
        plain = train_fleet(series, architecture, **options)
        mixed = train_fleet(series, architecture, mixed_precision="bf16", **options)
        assert mixed[0].rows.dtype == torch.float32
        assert mixed[0].report["compute_dtype"] == "bfloat16"
        for a, b in zip(plain, mixed, strict=True):
            assert a.history[-1]["val_loss"] == pytest.approx(b.history[-1]["val_loss"], rel=0.02)


def test_the_callback_hears_every_member_of_every_epoch():
    series = [walk(600, seed=s, symbol=f"C{s}USDT") for s in range(2)]
    heard = []
    members = train_fleet(series, "linear", workers=2, on_epoch=heard.append, **SMALL)
    assert len(heard) == 6
    for record in heard:
        assert record.windows_per_s > 0
        assert record.memory["rss_peak_mb"] > 0
        for told in record.members:
            epoch = members[told["index"]].history[record.epoch - 1]
            assert told["symbol"] == members[told["index"]].config["symbol"]
            assert (told["train_loss"], told["val_loss"]) == (epoch["train_loss"], epoch["val_loss"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 2.5}, "batch_size must be a whole number"),
        ({"schedule": "linear"}, "schedule 'linear' is unknown: choose one of cosine, step, constant"),
        ({"widht": 3}, "option 'widht' is unknown"),
        ({"architecture": "lstn"}, "architecture 'lstn' is unknown: choose one of transformer"),
        (
            {"preset": "seed-lstm"},
            "preset 'seed-lstm' belongs to lstm or lstm-manual: use preset 'default' or 'seed-gru' or 'seed-gru-tuned' "
            "with gru.",
        ),
        ({"device": "cuda"}, "device 'cuda' is not available"),
        ({"dtype": "int8"}, "dtype 'int8' is unknown"),
        ({"device": "meta"}, "device 'meta' is unknown"),
        ({"device": "cuda:99"}, "device 'cuda:99' is not available"),
        ({"seeds": [1, 2]}, "seeds needs one number per series"),
        ({"seeds": [1.5]}, "seeds must be whole numbers from 0 to 2^63 - 1, not 1.5"),
        ({"seeds": -1, "scope": "both"}, "seeds must be whole numbers from 0"),
        ({"architecture": "har"}, "lacks the column"),
        ({"context": 400}, "no window of 400 + 10 candles fits into its training span; give it more history"),
    ],
)
def test_impossible_values_are_named_with_what_is_allowed(options, message):
    if options.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(ModelError) as error:
        train_fleet([walk(400)], **({"architecture": "gru", "preset": "smoke", "device": "cpu"} | options))
    assert message in str(error.value)


@pytest.mark.parametrize("span", ["train", "validation", "test"])
@pytest.mark.parametrize("architecture", ["gru", "robust-har"])
def test_a_price_that_never_moves_in_a_span_is_named(architecture, span):
    moving = series_for(architecture, 1200, validation=0.2, test=0.2)
    first, end = moving.spans[span]
    features = moving.features.copy()
    features[first:end, [moving.names.index(name) for name in RETURNS]] = 0
    frozen = replace(moving, features=features)
    word = {"train": "training"}.get(span, span)
    assert f"its price never moves in its {word} span" in ineligible_reason(frozen, architecture, "smoke")
    assert ineligible_reason(moving, architecture, "smoke") == ""
    if span != "test":
        with pytest.raises(
            ModelError, match=f"^AAAUSDT 1h: its price never moves in its {word} span: leave it out.$"
        ):
            train_fleet([moving, frozen], architecture, "smoke", device="cpu")


@pytest.mark.parametrize("share", [0.19, 0.25])
def test_a_training_span_of_candles_that_stand_still_is_named(share):
    moving = series_for("gru", 1200, validation=0.2, test=0.2)
    first, end = moving.spans["train"]
    still = np.zeros(len(moving), dtype=bool)
    still[first : first + int(share * (end - first)) + 1] = True
    still[end:] = True  # only what is learnt counts
    filled = replace(moving, still=still)
    reason = ineligible_reason(filled, "gru", "smoke")
    assert reason.startswith("AAAUSDT 1h: 25% of the candles in its training span stand still") == (
        share > 0.2
    )
    if reason:
        with pytest.raises(ModelError, match=re.escape(reason)):
            train_fleet([moving, filled], "gru", "smoke", device="cpu")


def test_copies_for_checkpoints_wait_until_the_last_one_has_paid_for_itself(tmp_path, monkeypatch):
    now = iter([0.0, 1.0, 30.0, 50.9, 51.5, 51.6])  # a copy takes a second: the next may come at 51
    monkeypatch.setattr("cpbmodels.fleet.checkpoints.time.monotonic", lambda: next(now))
    store = Checkpoints(tmp_path)
    for epoch in range(1, 5):
        store.save(epoch, {"flat": torch.zeros(1)}, {})
        store.pending.result()
    store.close()
    assert [path.name[:12] for path in store.files()] == ["epoch-000001", "epoch-000004"]


def test_a_damaged_checkpoint_is_never_resumed_from(tmp_path):
    store = Checkpoints(tmp_path)
    for epoch in (1, 2):
        store.save(epoch, {"flat": torch.full((64,), float(epoch))}, {"epoch": epoch})
        store.close()
        store = Checkpoints(tmp_path)
    older, newest = store.files()
    assert store.latest()[1] == {"epoch": 2}
    whole = newest.read_bytes()
    for at in (3, len(whole) // 2, len(whole) - 1):  # its length, its header, a weight
        newest.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        tensors, state = store.latest()
        assert (state, float(tensors["flat"][0])) == ({"epoch": 1}, 1.0)
    newest.write_bytes(b"")
    older.write_bytes(whole)
    assert store.latest() is None
