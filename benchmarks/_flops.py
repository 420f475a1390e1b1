"""Dense floating-point operations of the seed models, and bytes that their products move: counted, not estimated."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from cpbmodels.arch.presets import preset
from cpbmodels.fleet import one_step

COUNTED_AS = {"lstm": "lstm-manual"}  # oneDNN's and cuDNN's fused LSTMs hide their products from the counter


def flops_per_window(architecture: str, **overrides: int) -> float:
    """Forward and backward products of one training window; elementwise work and the optimizer not counted."""
    name = COUNTED_AS.get(architecture, architecture)
    options = preset(f"seed-{architecture}", name, **{**overrides, "batch_size": 2, "mixed_precision": "off"})
    step = one_step.fleet_step(name, options, 1, torch.device("cpu"), torch.float32, rows=400)
    with FlopCounterMode(display=False) as counter:
        step.eager()
    return counter.get_total_flops() / options.batch_size


OPTIMIZER_BYTES = 28
"""A weight in a step: gradient, weight and both moments read, the last three and the bf16 copy written."""

_PRODUCTS = (torch.ops.aten.bmm, torch.ops.aten.baddbmm, torch.ops.aten.baddbmm_)


class _Traffic(TorchDispatchMode):
    """Values that products read and write; a weight counts once a step, because it may stay on the chip."""

    def __init__(self, weights: torch.Tensor) -> None:
        super().__init__()
        self.values, self._weights = 0, weights.untyped_storage().data_ptr()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket in _PRODUCTS:
            for tensor in (*args[-2:], out):
                self.values += tensor.numel() if tensor.untyped_storage().data_ptr() != self._weights else 0
        return out


def floor_bytes(architecture: str, batch: int, **overrides: int) -> float:
    """Bytes of one member's step in bf16 that no fusion of elementwise work saves.

    Operands and results of every product, once each, and the optimizer's. Attention counts as products, so kernels that
    keep its scores on the chip can go below.
    """
    name = COUNTED_AS.get(architecture, architecture)
    values = []
    for windows in (2, 4):  # what does not grow with the batch is told from what does
        sizes = {**overrides, "batch_size": windows, "mixed_precision": "off"}
        options = preset(f"seed-{architecture}", name, **sizes)
        step = one_step.fleet_step(name, options, 1, torch.device("cpu"), torch.float32, rows=400)
        with _Traffic(step.fleet.flat) as traffic:
            step.eager()
        values.append(traffic.values)
    each = (values[1] - values[0]) / 2
    weights = step.fleet.flat.numel()
    return 2 * (values[0] + each * (batch - 2) + weights) + OPTIMIZER_BYTES * weights
