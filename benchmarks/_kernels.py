"""How many GPU kernels a step would launch, counted without a GPU: operators on torch's meta device, by stated rules.

An operator is one launch, but for these (read from torch 2.13's CUDA sources; `python -m benchmarks.gpu` holds the
count beside what the profiler sees):

- views, empty tensors and `detach` launch nothing;
- `baddbmm` that is not in place first copies its bias to the result: two launches, one where beta is 0;
- an operand of a product whose last two axes are neither contiguous nor transposed is copied first;
- `cat` and `stack` take 128 contiguous inputs a launch, 64 others, and one a launch where dtypes differ;
- `_foreach_copy_` and `_foreach_add_` of lists take one launch per 48 or 64 tensors where all are dense and alike in
  dtype and strides, else one for each tensor;
- the fused optimizers take at most 36 rows and 320 blocks of 65,536 values a launch (4 kB of arguments; newer drivers
  take more);
- the gradient of a slice or selection is a tensor of zeros and a copy: two launches.

Copies between host and device do not occur in a step (tests/device/test_device_gpu_path.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import ceil
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from cpbmodels.arch.layers import Layout
from cpbmodels.arch.presets import preset
from cpbmodels.fleet import one_step

NO_LAUNCH = {
    "view",
    "_unsafe_view",
    "_reshape_alias",
    "reshape",
    "transpose",
    "permute",
    "t",
    "expand",
    "slice",
    "select",
    "split",
    "split_with_sizes",
    "chunk",
    "unbind",
    "unsqueeze",
    "squeeze",
    "narrow",
    "detach",
    "alias",
    "as_strided",
    "empty",
    "empty_like",
    "new_empty",
    "new_empty_strided",
    "empty_strided",
    "lift_fresh",
    "diagonal",
    "unfold",
}
CAT_INPUTS = {True: 128, False: 64}  # inputs of one launch of `cat`: contiguous, or not
FOREACH_TENSORS = {1: 110, 2: 64, 3: 48, 4: 36}  # tensors of one launch, by number of lists
FOREACH_BLOCKS, CHUNK = 320, 65_536


class KernelLog(TorchDispatchMode):
    """Launches by operator, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: Counter[str] = Counter()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """torch's hook: run the operator and count its launches."""
        name = str(func).split(".")[1]
        if name not in NO_LAUNCH:
            rule = RULES.get(name)
            self.launches[name] += rule(args, kwargs or {}) if rule else 1
        return func(*args, **(kwargs or {}))

    @property
    def total(self) -> int:
        """Launches of all operators."""
        return self.launches.total()


Rule = Callable[[Sequence[Any], Mapping[str, Any]], int]


def _product(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    return 1 + sum(map(_copied, args[-2:]))


def _biased_product(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    copies_bias = kwargs.get("beta", 1) != 0 and kwargs.get("out") is not args[0]
    return _product(args[:3], kwargs) + copies_bias


def _copied(operand: Tensor) -> bool:
    """Whether cuBLAS cannot read a batch of matrices as it lies: neither rows nor columns are dense."""
    *_, rows, columns = operand.shape
    row, column = operand.stride()[-2:]
    return not ((column == 1 and row >= max(1, columns)) or (row == 1 and column >= max(1, rows)))


def _joined(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    inputs = args[0]
    if len({tensor.dtype for tensor in inputs}) > 1:
        return len(inputs)
    return ceil(len(inputs) / CAT_INPUTS[all(tensor.is_contiguous() for tensor in inputs)])


def _foreach(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    lists = [part for part in args if isinstance(part, (list, tuple))]
    for group in zip(*lists, strict=True):
        if len({(tensor.dtype, tensor.stride()) for tensor in group}) > 1 or not all(map(_dense, group)):
            return len(lists[0])
    return _multi_tensor(lists[0], len(lists))


def _dense(tensor: Tensor) -> bool:
    """Without gaps and overlaps, in any order of its axes."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def _optimizer(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    return _multi_tensor(args[0], 4)


def _multi_tensor(tensors: Sequence[Tensor], lists: int) -> int:
    """Launches over all chunks: one ends when its list of tensors or its list of blocks is full."""
    launches, blocks, count = 0, 0, 0
    for tensor in tensors:
        count += 1
        chunks = ceil(tensor.numel() / CHUNK)
        for chunk in range(chunks):
            blocks += 1
            last = chunk == chunks - 1
            if blocks == FOREACH_BLOCKS or (last and count == FOREACH_TENSORS[lists]):
                launches, blocks, count = launches + 1, 0, 0 if last else 1
    return launches + (blocks > 0)


RULES: dict[str, Rule] = {
    "bmm": _product,
    "mm": _product,
    "baddbmm": _biased_product,
    "baddbmm_": _product,
    "cat": _joined,
    "stack": _joined,
    "_foreach_copy_": _foreach,
    "_foreach_add_": _foreach,
    "_fused_adamw_": _optimizer,
    "_fused_adam_": _optimizer,
    "select_backward": lambda args, kwargs: 2,
    "slice_backward": lambda args, kwargs: 2,
}


def launches(architecture: str, members: int = 40) -> Counter[str]:
    """Launches of one training step of a fleet of seed size in bf16, by operator."""
    options, meta = preset(f"seed-{architecture}", architecture), torch.device("meta")
    empty = patch.object(Layout, "initial", lambda layout, seed: np.zeros(layout.size, np.float16))
    with meta_kernels(), KernelLog() as log:
        with empty:  # 40 LSTMs' initial weights are 80 million random numbers that nobody looks at
            step = one_step.fleet_step(architecture, options, members, meta, torch.bfloat16, rows=500)
        log.launches.clear()
        step()
    return log.launches


# --- Kernels that have no form on the meta device: their results' shapes, and what their CUDA code demands. ----------


def _gru_cell(inputs: Tensor, hidden: Tensor, h: Tensor, *biases: Tensor | None) -> tuple[Tensor, Tensor]:
    _demand_cell(inputs, hidden, h, gates=3)
    return torch.empty_like(h), h.new_empty(len(h), 5 * h.shape[1])


def _gru_cell_backward(
    grad: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, None, None]:
    gates = grad.new_empty(len(grad), 3 * grad.shape[1])
    return gates, torch.empty_like(gates), torch.empty_like(grad), None, None


def _lstm_cell(
    inputs: Tensor, hidden: Tensor, c: Tensor, *biases: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    _demand_cell(inputs, hidden, c, gates=4)
    return torch.empty_like(c), torch.empty_like(c), torch.empty_like(inputs)


def _lstm_cell_backward(
    grad_h: Tensor | None, grad_c: Tensor | None, c: Tensor, new: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, None]:
    return torch.empty_like(workspace), torch.empty_like(c), None


def _demand_cell(inputs: Tensor, hidden: Tensor, state: Tensor, gates: int) -> None:
    """What RNN.cu checks."""
    assert inputs.shape == hidden.shape == (len(state), gates * state.shape[1])
    assert inputs.dtype == hidden.dtype == state.dtype
    assert inputs.device == hidden.device == state.device


def _adam(
    rows: list[Tensor],
    grads: list[Tensor],
    first: list[Tensor],
    second: list[Tensor],
    most: list[Tensor],
    counts: list[Tensor],
    *,
    lr: Tensor,
    found_inf: Tensor | None = None,
    **options: Any,
) -> None:
    """What FusedAdam checks: like in kind and place, dense, counts, rate and flag in float32 on the device."""
    for row, *others in zip(rows, grads, first, second, strict=True):
        assert row.is_contiguous()
        for other in others:
            assert (other.dtype, other.device, other.stride()) == (row.dtype, row.device, row.stride())
    for number in (*counts, lr, *([found_inf] if found_inf is not None else [])):
        assert (number.dtype, number.shape, number.device) == (torch.float32, (), rows[0].device)


META_KERNELS = {
    "_thnn_fused_gru_cell": _gru_cell,
    "_thnn_fused_gru_cell_backward": _gru_cell_backward,
    "_thnn_fused_lstm_cell": _lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
    "_fused_adamw_.tensor_lr": _adam,
    "_fused_adam_.tensor_lr": _adam,
}


@contextmanager
def meta_kernels() -> Iterator[None]:
    """Register the stand-ins on the meta device for the time of a count."""
    library = torch.library.Library("aten", "IMPL")
    for name, kernel in META_KERNELS.items():
        # Some builds of torch have a meta form of the LSTM cell; `library.impl` refuses to replace it before torch 2.8.
        library.m.impl(name, "Meta", kernel, False)
    try:
        yield
    finally:
        library._destroy()
