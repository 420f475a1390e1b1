"""Every kernel of a step and of a validation, compiled for three chips: no spills, shared memory below the limit."""

import pytest
import torch
from fleets import SmallFleet, kernel_launches
from offline import SHARED_BYTES, compile_for

SEED = {"hidden_dim": 128, "n_heads": 8, "ff_dim": 512, "context": 30, "horizon": 10, "batch_size": 16}
WIDEST = {"hidden_dim": 256, "n_heads": 4, "ff_dim": 512, "context": 64, "horizon": 64, "batch_size": 16}


def _launches(architecture, options):
    """A training step, with and without rows that take none, and a validation."""
    small = SmallFleet(architecture, torch.float32, kernels=True, compute=torch.bfloat16, **options)

    def run():
        small.fleet.step(small.bank, small.origins, small.weight, torch.tensor(1e-3), maskable=1)
        small.step()
        small.validation(16)

    return kernel_launches(run)


@pytest.mark.parametrize("chip", [80, 86, 90])
def test_kernels_fit_on_the_chip(chip):
    for kernel, args, constants in _launches("transformer", SEED):
        made = compile_for(chip, kernel, args, constants)
        assert made.shared <= SHARED_BYTES[chip], made.name
        assert made.stack == 0, f"{made.name} spills {made.stack} bytes"


def test_the_widest_sizes_fit_on_the_smallest_chip():
    for kernel, args, constants in _launches("transformer", WIDEST):
        made = compile_for(86, kernel, args, constants)
        assert made.shared <= SHARED_BYTES[86], made.name


def test_there_are_few_variants():
    assert len(_launches("transformer", SEED)) <= 19
