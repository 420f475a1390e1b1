"""Dense floating-point operations of the seed models, counted and not estimated."""

import torch
from torch.utils.flop_counter import FlopCounterMode

from cpbmodels.arch.presets import preset
from cpbmodels.device import steps

COUNTED_AS = {"lstm": "lstm-manual"}  # oneDNN's and cuDNN's fused LSTMs hide their products from the counter


def flops_per_window(architecture: str, **overrides: int) -> float:
    """Forward and backward products of one training window; elementwise work and the optimizer not counted."""
    name = COUNTED_AS.get(architecture, architecture)
    options = preset(f"seed-{architecture}", name, **{**overrides, "batch_size": 2, "mixed_precision": "off"})
    step = steps.fleet_step(name, options, 1, torch.device("cpu"), torch.float32, rows=400)
    with FlopCounterMode(display=False) as counter:
        step.eager()
    return counter.get_total_flops() / options.batch_size
