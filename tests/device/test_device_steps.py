import pytest
import torch

from cpbmodels import architecture, architectures, preset
from cpbmodels.device import steps
from cpbmodels.errors import ModelError

CPU = torch.device("cpu")
TINY = {"hidden_dim": 8, "n_heads": 2, "batch_size": 4, "dropout": 0.0}


# An average has no step of its own: its members are trained.
@pytest.mark.parametrize(
    "name", [name for name in architectures() if not architecture(name).closed_form and name != "average"]
)
def test_a_step_of_every_architecture_runs_and_learns(name):
    step = steps.fleet_step(name, preset("default", name, **TINY), 2, CPU, rows=400)
    losses = []
    for _ in range(30):
        step.fleet.loss_sum.zero_()
        step()
        losses.append(step.fleet.loss_sum.sum().item())
    assert losses[-1] < losses[0]
    assert steps.placement_of(step.eager, CPU) == "all on cpu"


def test_timing_names_what_was_timed(monkeypatch):
    monkeypatch.setattr(steps, "seed_size", lambda name: preset("default", name, **TINY))
    row = steps.time_one("gru", CPU)
    assert row["members"] == 1
    assert row["batch"] == 4
    assert row["windows_per_s"] == pytest.approx(4 / (row["step_ms"] / 1e3))


def test_a_seed_architecture_is_timed_at_its_seed_size():
    assert steps.seed_size("lstm").hidden_dim == 256
    assert steps.seed_size("har") == preset("default", "har")


def test_too_little_history_for_a_batch_is_one_sentence():
    with pytest.raises(ModelError, match="less than one batch"):
        steps.fleet_step("gru", preset("seed-gru", "gru", batch_size=5000), 1, CPU)
