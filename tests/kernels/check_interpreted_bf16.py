"""A step's gradients as a GPU computes them, in bf16: as close to float64 as torch's own bf16 path for a GPU.

That path runs here on a CPU (`gpu_path`). A CPU's own has fewer roundings: there a product adds its bias in float32.
"""

import bf16
import pytest
import torch
from fleets import SmallFleet, difference
from gpu_on_cpu import gpu_path

from cpbmodels.kernels import recurrent

SIZES = {
    "gru": {"dropout": 0.3},
    "lstm": {"dropout": 0.3},
    "transformer": {"batch_size": 4},
}


def _whole(gradients):
    return torch.cat([gradient.flatten().double() for gradient in gradients.values()])


@pytest.mark.parametrize(
    ("architecture", "shared"),
    [("gru", 232_448), ("gru", 101_376), ("lstm", 232_448), ("transformer", 232_448)],
)
def test_gradients_are_as_close_to_float64_as_torchs(architecture, shared, monkeypatch):
    """At most a tenth farther; rounding that cuts off is half as far again."""
    monkeypatch.setattr(recurrent, "shared_bytes", lambda _: shared)
    bf16.mend(monkeypatch)
    options = SIZES[architecture]
    losses, exact = SmallFleet(architecture, torch.float64, **options).gradients()
    mixed = {"compute": torch.bfloat16, **options}
    with gpu_path():
        _, torchs = SmallFleet(architecture, torch.float32, **mixed).gradients()
    close, ours = SmallFleet(architecture, torch.float32, kernels=True, **mixed).gradients()
    off, limit = (difference(_whole(gradients), _whole(exact)) for gradients in (ours, torchs))
    print(f"{architecture}: kernels {off:.2e}, torch {limit:.2e}")
    assert off < 1.1 * limit < 0.01
    assert difference(close, losses) < 2e-3
