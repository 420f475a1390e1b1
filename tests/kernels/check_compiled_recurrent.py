"""Every kernel of gru and lstm at the seed presets' sizes, compiled for three chips: spills and shared memory."""

import pytest
import torch
from fleets import SmallFleet, kernel_launches
from offline import SHARED_BYTES, compile_for

from cpbmodels.kernels import recurrent

SEED = {
    "gru": {"hidden_dim": 128, "context": 30, "horizon": 10, "batch_size": 32},
    "lstm": {"hidden_dim": 256, "n_heads": 4, "context": 30, "horizon": 10, "batch_size": 32},
}
SPILLS = {("_gru_layer_back", 128): 96, ("_memory_back", 256): 2048}
"""Bytes a thread that these kernels spill as they are; what that costs is not measured. 16 where none is named."""


def _launches(architecture, chip, monkeypatch):
    """A training step, and a validation of an odd number of windows."""
    monkeypatch.setattr(recurrent, "shared_bytes", lambda _: SHARED_BYTES[chip])
    size = {"dropout": 0.3, "compute": torch.bfloat16, **SEED[architecture]}
    small = SmallFleet(architecture, torch.float32, kernels=True, **size)

    def run():
        small.step()
        small.validation(31)

    ours = ("cpbmodels.kernels.recurrent", "cpbmodels.kernels.decoder")
    return [launch for launch in kernel_launches(run) if launch[0].__module__ in ours]


@pytest.mark.parametrize("architecture", ["gru", "lstm"])
@pytest.mark.parametrize("chip", [80, 86, 90])
def test_kernels_fit_on_the_chip_and_have_few_variants(architecture, chip, monkeypatch):
    launches = _launches(architecture, chip, monkeypatch)
    assert len(launches) <= 11
    for kernel, args, constants in launches:
        made = compile_for(chip, kernel, args, constants)
        assert made.shared <= SHARED_BYTES[chip], made.name
        assert made.stack <= SPILLS.get((made.name, constants["H"]), 16), made.name


@pytest.mark.parametrize(("chip", "whole"), [(80, False), (86, False), (90, True)])
def test_a_gru_layer_is_one_launch_where_shared_memory_allows(chip, whole, monkeypatch):
    names = {kernel.__name__ for kernel, _, _ in _launches("gru", chip, monkeypatch)}
    assert ("_gru_layer_back" in names) is whole
