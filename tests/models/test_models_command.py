"""What `cpb train` says to options that are impossible, or that the architecture would not read."""

import pytest
import torch
from candles import LEARNT

from cpbmodels import preset, without_effect
from cpbmodels.device.steps import fleet_step
from cpbmodels.options import RANGES, SIZES
from flows.cli_train import train
from flows.remarks import of_fleet, of_member, standing
from schemas.errors import UsageError
from tasks.files import write_json

PLAIN = {"hidden_dim": 12, "n_layers": 2, "n_heads": 2, "ff_dim": 16, "dropout": 0.2, "batch_size": 4}
OTHER = {"hidden_dim": 24, "n_layers": 3, "n_heads": 3, "ff_dim": 40, "dropout": 0.6}


def after_a_step(architecture, **sizes):
    options = preset("default", architecture, **PLAIN | sizes)
    step = fleet_step(architecture, options, 1, torch.device("cpu"))
    step.fleet.step(step.bank, step.origins, step.weight, 1e-3)
    return step.fleet.flat


@pytest.mark.parametrize("architecture", LEARNT)
def test_what_is_said_to_have_no_effect_has_none_and_all_else_has_one(architecture):
    plain, options = after_a_step(architecture), preset("default", architecture, n_layers=2)
    for name in SIZES:
        other = after_a_step(architecture, **{name: OTHER[name]})
        same = plain.shape == other.shape and torch.equal(plain, other)
        assert same == bool(without_effect(options, architecture, [name])), name


@pytest.mark.parametrize("architecture", ["gru", "lstm", "lstm-manual"])
def test_dropout_between_layers_needs_two_of_them(architecture):
    ours, other = (after_a_step(architecture, n_layers=1, dropout=rate) for rate in (0.2, 0.6))
    assert torch.equal(ours, other)
    options = preset("default", architecture, n_layers=1)
    assert "between layers" in without_effect(options, architecture, ["dropout"])[0]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"arch": "gru", "n_heads": 4},
            "--n-heads has no effect on gru, which reads --hidden-dim, --n-layers,",
        ),
        ({"arch": "linear", "hidden_dim": 8}, "--hidden-dim has no effect on linear"),
        ({"arch": "har-universal", "n_layers": 3}, "--n-layers has no effect on har"),
        ({"arch": "gru", "n_layers": 1, "dropout": 0.5}, "--dropout has no effect on gru with --n-layers 1"),
        (
            {"arch": "robust-har", "max_epochs": 9},
            "--max-epochs has no effect on robust-har, which is solved at once",
        ),
        ({"arch": "gru", "max_epochs": 0}, "--max-epochs must be a whole number from 1 to 100,000, not 0"),
        ({"arch": "gru", "learning_rate": float("nan")}, "--learning-rate must be a number from 1e-08 to 1"),
        ({"arch": "lstm", "hidden_dim": 250}, "--hidden-dim 250 must be a multiple of --n-heads 4"),
        ({"arch": "gru", "head": "classes"}, "--head 'classes' and --arch 'classifier-gru' belong together"),
        ({"arch": "lstn"}, "--arch 'lstn'"),
        ({"arch": "gru", "preset": "seed-lstm"}, "--preset 'seed-lstm' belongs to lstm or lstm-manual"),
        ({"arch": "gru", "timeframe": "7h"}, "timeframe '7h'"),
    ],
)
def test_one_sentence_names_the_option_as_it_is_typed(options, sentence):
    with pytest.raises(UsageError) as error:
        train(**{"coin": "BTCUSDT", "timeframe": "1h", "source": "sim", "market": "spot"} | options)
    assert sentence in str(error.value)
    assert error.value.exit_code == 2


@pytest.mark.parametrize("name", sorted(RANGES))
def test_both_ends_of_every_range_are_kept(name):
    from cpbmodels import ModelError
    from cpbmodels.options import CHOICES, Preset, check

    low, high = RANGES[name]
    for value in (low - 1, high + 1, float("nan"), True, "3", None):
        with pytest.raises(ModelError, match=rf"^{name} must be a .*number from .* to .*, not "):
            check(Preset(**{name: value}))
    assert set(CHOICES).isdisjoint(RANGES)


def test_what_went_otherwise_than_asked_is_said():
    fine = {"stopped": "max_epochs", "accumulate": 1, "device_warning": ""}
    assert of_member(fine) == []
    told = of_member(
        {"stopped": "nan", "reason": "epoch 3", "accumulate": 4, "device_warning": "busy only 3 %"}
    )
    assert told == [
        "stopped early: epoch 3",
        "memory was short: each batch went in 4 parts",
        "busy only 3 %",
    ]


def test_a_fleet_says_each_thing_once_and_of_how_many(tmp_path):
    for name, accumulate, warning in (("A", 2, "busy only 3 %"), ("B", 1, "busy only 3 %")):
        report = {"stopped": "max_epochs", "accumulate": accumulate, "device_warning": warning}
        (tmp_path / "members" / name).mkdir(parents=True)
        write_json(tmp_path / "members" / name / "history.json", {"history": [], "report": report})
    assert of_fleet(tmp_path) == [
        "memory was short: each batch went in 2 parts (1 of 2 members)",
        "busy only 3 %",
    ]


def test_a_fleet_that_was_there_before_is_told_from_a_new_one(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    assert standing(tmp_path) == ""
    (tmp_path / "checkpoints" / "000001").touch()
    assert standing(tmp_path) == "from its last checkpoint on"
    (tmp_path / "done.json").touch()
    assert standing(tmp_path) == "trained before by the same command"
