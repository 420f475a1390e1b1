"""Options that are impossible, or that an architecture does not read."""

import pytest
import torch

from cpbmodels import preset, without_effect
from cpbmodels.arch.options import RANGES, SIZES
from cpbmodels.fleet.one_step import fleet_step
from tests.tools.candles import LEARNT

PLAIN = {"hidden_dim": 12, "n_layers": 2, "n_heads": 2, "ff_dim": 16, "dropout": 0.2, "batch_size": 4}
OTHER = {"hidden_dim": 24, "n_layers": 3, "n_heads": 3, "ff_dim": 40, "dropout": 0.6, "location_share": 0.5}


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


@pytest.mark.parametrize("name", sorted(RANGES))
def test_both_ends_of_every_range_are_kept(name):
    from cpbmodels import ModelError
    from cpbmodels.arch.options import CHOICES, Preset, check

    low, high = RANGES[name]
    for value in (low - 1, high + 1, float("nan"), True, "3", None):
        with pytest.raises(ModelError, match=rf"^{name} must be a .*number from .* to .*, not "):
            check(Preset(**{name: value}))
    assert set(CHOICES).isdisjoint(RANGES)
