"""The space, the batches of trials and luck: what tuning needs besides Optuna."""

import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

import cpbmodels
import tasks.tuning
from cpbmodels.errors import pip_install
from flows import tune
from schemas.errors import CpbError, UsageError
from schemas.tuning import Choice, Range, TuneSpec, parse_range
from tasks.running.progress import reports_to
from tasks.tuning.trials import _Watch
from tasks.tuning.winner import best_of_null_trials


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("lr=1e-4..1e-2:log", "lr", Range(1e-4, 1e-2, log=True)),
        ("dropout=0..0.5", "dropout", Range(0, 0.5)),
        ("dropout=0.1..0.5", "dropout", Range(0.1, 0.5)),
        ("warmup-steps=0..50", "warmup_steps", Range(0, 50, whole=True)),
        ("lr=1..2", "lr", Range(1, 2)),
        ("learning-rate=1e-4..1e-2:log", "lr", Range(1e-4, 1e-2, log=True)),
        ("num_layers=1..4", "n_layers", Range(1, 4, whole=True)),
        ("hidden_dim=16|32", "hidden_dim", Choice((16, 32))),
        ("schedule=cosine|constant", "schedule", Choice(("cosine", "constant"))),
        ("dropout=0|0.3", "dropout", Choice((0, 0.3))),
    ],
)
def test_ranges_and_choices_are_read(text, name, values):
    assert parse_range(text) == (name, values)


@pytest.mark.parametrize("text", ["lr", "lr=", "lr=1", "lr=2..1", "lr=0..1:log", "lr=a..b", "=1|2", "lr=1|"])
def test_what_is_no_range_is_refused(text):
    with pytest.raises(UsageError) as error:
        parse_range(text)
    assert (error.value.code, error.value.field) == ("search", "search")


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"search": "lr=1e-4..5"}, "search"),
        ({"search": "learning=1..2"}, "search"),
        ({"search": "candle_weight=0..1"}, "search"),
        ({"search": "n_heads=2|4"}, "search"),
        ({"search": "lr=1e-4..1e-3,learning_rate=1e-4..1e-2"}, "search"),
        ({"search": "lr=1e-4..1e-3", "overrides": {"learning_rate": 1e-3}}, "search"),
        ({"architectures": "gru,lstm"}, "architectures"),
        ({"architectures": None}, "architectures"),
        ({"architectures": "har-universal"}, "architectures"),
        ({"architectures": "robust-har"}, "architectures"),
        ({"architectures": "classifier-gru"}, "architectures"),
        ({"budget": "soon"}, "budget"),
        ({"budget": "0m"}, "budget"),
        ({"trials": 0}, "trials"),
        ({"folds": 13}, "folds"),
        ({"overrides": {"lr": 7}}, "overrides"),
    ],
)
def test_wrong_values_name_their_field(values, field):
    with pytest.raises(UsageError) as error:
        TuneSpec(**{"preset": "smoke", "architectures": "gru"} | values)
    assert error.value.field == field


def test_the_default_space_leaves_out_what_is_fixed_or_has_no_effect():
    assert "dropout" not in TuneSpec(preset="smoke", architectures="gru").ranges  # gru with one layer
    assert "dropout" in TuneSpec(preset="smoke", architectures="gru", overrides={"n_layers": 2}).ranges
    assert "lr" not in TuneSpec(preset="smoke", architectures="gru", overrides={"learning_rate": 0.01}).ranges
    assert "location_shrink" not in TuneSpec(preset="seed-gru").ranges
    assert TuneSpec(preset="smoke", architectures="gru", budget="10m").budget_s == 600


def noise(trials, blocks, seed, skill=0.0):
    draw = np.random.default_rng(seed)
    reference = draw.uniform(0.5, 1.5, blocks)
    return reference * (1 - skill + 0.02 * draw.normal(size=(trials, blocks))), reference


def test_luck_grows_with_the_number_of_trials_and_skill_is_told_from_it():
    few, reference = noise(4, 60, 1)
    many, other = noise(400, 60, 1)
    best_of = {}
    for name, (losses, walk) in {"few": (few, reference), "many": (many, other)}.items():
        luck = best_of_null_trials(losses, walk, float((losses.sum(1) / walk.sum()).min()))
        best_of[name] = luck["best_of_null"]
        assert 0.02 < luck["p"] <= 1  # the best of trials without skill is no surprise
        assert luck["trials"] == len(losses)
        assert luck["best_of_null_low"] <= luck["best_of_null"] < 1
    assert best_of["many"] < best_of["few"]
    skilled, walk = noise(400, 60, 2, skill=0.02)
    assert best_of_null_trials(skilled, walk, float((skilled.sum(1) / walk.sum()).min()))["p"] < 0.01


def test_equal_trials_are_one_trial():
    """Copies of one trial give luck no more chances: their correlation is kept."""
    losses, reference = noise(1, 60, 3)
    alone = best_of_null_trials(losses, reference, 1.0)
    copies = best_of_null_trials(np.repeat(losses, 50, 0), reference, 1.0)
    assert copies["best_of_null"] == pytest.approx(alone["best_of_null"])


def record(epoch, *members):
    members = [
        {"index": index, "best_val_loss": loss, "stopped": stopped} for index, loss, stopped in members
    ]
    return cpbmodels.EpochRecord(epoch, 8, 0.1, members, 1.0, 1.0, {})


def step(done, epoch=1):
    return cpbmodels.StepRecord(epoch, 8, done, 10, [0, 1], 2, "cpu", (100, 4), "float32", 0.1)


def test_the_time_is_up_within_an_epoch_too():
    now = time.monotonic()
    past, later = (_Watch(1, 2, lambda *_: False, end) for end in (now - 1, now + 3600))
    assert past.on_step(step(1))
    assert not later.on_step(step(1))
    assert not _Watch(1, 2, lambda *_: False, None).on_step(step(1))


def test_epochs_and_what_is_left_of_the_budget_are_heard_from_the_threads_of_fleets():
    heard = []
    with reports_to(SimpleNamespace(progress=heard.append)):
        watch = _Watch(1, 2, lambda *_: False, time.monotonic() + 3600)
        thread = threading.Thread(target=watch.on_step, args=(step(5, epoch=3),))
        thread.start()
        thread.join()
    (told,) = heard
    assert (told.step, told.total, told.unit) == ("train trials", 8, "epochs")
    assert told.done == pytest.approx(2.5, abs=1e-3)
    assert told.facts[0].startswith("budget ends in 3")


def test_a_trial_is_compared_once_all_its_members_have_come_so_far():
    asked = []

    def prune(trial, epoch, loss):
        asked.append((trial, epoch, loss))
        return trial == 1 and epoch == 2

    watch = _Watch(2, 2, prune, None)
    assert watch(record(1, (0, 1.0, ""), (1, 3.0, ""), (2, 4.0, ""))) == []  # member 3 is in another fleet
    assert asked == [(0, 1, 2.0)]
    assert watch(record(1, (3, 6.0, ""))) == []
    assert asked[1:] == [(1, 1, 5.0)]
    watch(record(2, (0, 1.0, "early_stop"), (1, 2.0, ""), (2, 4.0, "")))
    assert asked[2:] == [(0, 2, 1.5)]  # a member that has stopped counts with its best
    assert watch(record(2, (3, 6.0, ""))) == [2, 3]
    assert watch.pruned == {1}
    before = len(asked)
    watch(record(3, (1, 2.0, "")))
    assert len(asked) == before  # epochs 1, 2, 4, 8 ..
    watch(record(4, (1, 1.0, "")))
    assert asked[before:] == [(0, 4, 1.0)]


def test_without_optuna_the_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    for name in ("study", "search"):
        monkeypatch.delitem(sys.modules, f"tasks.tuning.{name}", raising=False)
        monkeypatch.delattr(tasks.tuning, name, raising=False)
    with pytest.raises(CpbError) as error:
        tune._tuning()
    assert error.value.code == "extra-missing"
    assert f"run `{pip_install('optuna<6,>=4')}`" in str(error.value)


def test_at_the_deadline_all_members_stop():
    watch = _Watch(1, 2, lambda *_: False, time.monotonic() - 1)
    assert watch(record(1, (0, 1.0, ""), (1, 1.0, ""))) == [0, 1]
