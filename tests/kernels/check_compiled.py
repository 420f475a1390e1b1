"""Every kernel at the seed presets' sizes, compiled for two chips: spills, shared memory, and number of variants."""

import re

import pytest
import torch

from cpbmodels.kernels import recurrent
from tests.tools.offline_kernels import SHARED_BYTES, compile_for
from tests.tools.small_fleets import SmallFleet, kernel_launches

pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")  # Triton's, of its next default
SEED = {
    "gru": {"hidden_dim": 128, "context": 30, "horizon": 10, "batch_size": 32},
    "lstm": {"hidden_dim": 256, "n_heads": 4, "context": 30, "horizon": 10, "batch_size": 32},
    "transformer": {
        "hidden_dim": 128,
        "n_heads": 8,
        "ff_dim": 512,
        "context": 30,
        "horizon": 10,
        "batch_size": 16,
    },
}
MAX_SPILL = {"gru": 16, "lstm": 16, "transformer": 0}  # bytes a thread
MAX_VARIANTS = {"gru": 17, "lstm": 16, "transformer": 19}


def _launches(architecture, chip, monkeypatch):
    """A training step, with and without rows that take none, and a validation of an odd number of windows."""
    monkeypatch.setattr(recurrent, "shared_bytes", lambda _: SHARED_BYTES[chip])
    dropout = {} if architecture == "transformer" else {"dropout": 0.3}
    size = {"compute": torch.bfloat16, **dropout, **SEED[architecture]}
    small = SmallFleet(architecture, torch.float32, kernels=True, **size)

    def run():
        small.fleet.step(small.bank, small.origins, small.weight, torch.tensor(1e-3), maskable=1)
        small.step()
        small.validation(size["batch_size"] - 1)

    return kernel_launches(run)


@pytest.mark.parametrize("architecture", SEED)
@pytest.mark.parametrize("chip", [86, 90])  # 80 has 86's launches, and more memory
def test_kernels_fit_on_the_chip_and_have_few_variants(architecture, chip, monkeypatch):
    launches = _launches(architecture, chip, monkeypatch)
    assert len(launches) <= MAX_VARIANTS[architecture]
    for kernel, args, constants in launches:
        made = compile_for(chip, kernel, args, constants)
        assert made.shared <= SHARED_BYTES[chip], made.name
        assert made.stack <= MAX_SPILL[architecture], f"{made.name} spills {made.stack} bytes"


@pytest.mark.parametrize("architecture", ["gru", "lstm"])
def test_the_decoders_attention_writes_where_it_reads_nothing(architecture, monkeypatch):
    """With several warps, which hold the same few values, one could read what another has written."""
    checked = 0
    for kernel, args, constants in _launches(architecture, 90, monkeypatch):
        if kernel.__name__ not in ("_step_attend", "_step_attend_back"):
            continue
        checked += 1
        names = [name for name in kernel.arg_names if name not in constants]
        tensors = {
            name: argument
            for name, argument in zip(names, args, strict=True)
            if isinstance(argument, torch.Tensor)
        }
        written = {name for name in tensors if re.search(rf"tl\.store\({name}\b", kernel.src)}
        assert len(written) >= 3
        for name in written:
            assert not re.search(rf"tl\.load\({name}\b", kernel.src), name
            span = _span(tensors[name])
            for other in tensors.keys() - written:
                low, high = _span(tensors[other])
                assert high <= span[0] or low >= span[1], (name, other)
    assert checked >= 2


def _span(tensor):
    """Addresses of the elements that a program of the first member and window may touch, at one step."""
    row = tensor[:1, :1] if tensor.dim() > 1 else tensor[:1]
    steps = sum((size - 1) * stride for size, stride in zip(row.shape, row.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (steps + 1) * tensor.element_size()


@pytest.mark.parametrize(("chip", "whole"), [(80, False), (86, False), (90, True)])
def test_a_gru_layer_is_one_launch_where_shared_memory_allows(chip, whole, monkeypatch):
    names = {kernel.__name__ for kernel, _, _ in _launches("gru", chip, monkeypatch)}
    assert ("_gru_layer_back" in names) is whole
