"""Every part of torch used here that its documentation does not promise, each with the reason and the version checked.

"Checked" means: the signature below and the results of `tests/models` and `tests/device` on that version. On a new
torch, run those tests first (the import names what is gone), then change the version.
"""

from typing import Any

import torch
from torch.autograd import DeviceType as DeviceType  # type: ignore[attr-defined]
from torch.utils._python_dispatch import TorchDispatchMode

# --- Derivatives for backward passes written by hand: one kernel each, those that autograd itself calls. -------------

softmax_backward: Any = torch._softmax_backward_data
"""(gradient of the shares, shares, dim, dtype of the scores) -> gradient of the scores. Checked: torch 2.13.0."""

tanh_backward: Any = torch.ops.aten.tanh_backward
"""(gradient, y = tanh(x)) -> gradient * (1 - y^2). Checked: torch 2.13.0."""

tanh_backward_into: Any = torch.ops.aten.tanh_backward.grad_input
"""As `tanh_backward`, written into `grad_input`: saves a copy if the result is a slice. Checked: torch 2.13.0."""

sigmoid_backward: Any = torch.ops.aten.sigmoid_backward
"""(gradient, y = sigmoid(x)) -> gradient * y * (1 - y). Checked: torch 2.13.0."""

softplus_backward: Any = torch.ops.aten.softplus_backward
"""(gradient, x, beta, threshold) -> gradient of x for softplus(x); F.softplus has beta 1 and threshold 20.
Checked: torch 2.13.0."""

# --- Recurrent kernels. ----------------------------------------------------------------------------------------------

fused_gru_cell: Any = torch.ops.aten._thnn_fused_gru_cell
"""GPU only. (input gates [N, 3H], hidden gates [N, 3H], h [N, H]) -> (next h, workspace), with its own backward: one
launch for a step's pointwise work. What torch's nn.GRUCell calls on a GPU. Checked: torch 2.13.0 (on the meta device:
shapes and dtypes)."""

fused_lstm_cell: Any = torch.ops.aten._thnn_fused_lstm_cell
"""GPU only. (input gates [N, 4H], hidden gates [N, 4H], c [N, H]) -> (next h, next c, workspace), with its own
backward. What torch's nn.LSTMCell calls on a GPU. Checked: torch 2.13.0 (on the meta device: shapes and dtypes)."""

fused_gru_cell_backward: Any = torch.ops.aten._thnn_fused_gru_cell_backward
"""GPU only. (gradient of next h, workspace, has_bias) -> gradients of input gates, hidden gates and h, then two of
biases (None if has_bias is False). What autograd calls for `fused_gru_cell`. Checked: torch 2.13.0."""

fused_lstm_cell_backward: Any = torch.ops.aten._thnn_fused_lstm_cell_backward_impl
"""GPU only. (gradients of next h and next c, c, next c, workspace, has_bias) -> gradients of the gates (the same for
input and hidden gates), of c, and of the bias (None if has_bias is False). Checked: torch 2.13.0."""

lstm_kernel: Any = torch._VF.lstm
"""(x, (h, c), flat weights, has_biases, num_layers, dropout, train, bidirectional, batch_first) -> (out, h, c): what
nn.LSTM.forward calls. nn.LSTM itself owns its weights as parameters; here they are views of the fleet's matrix.
Checked: torch 2.13.0."""

# --- The optimizer over rows: nn.Module parameters and torch.optim would need a Python object per member and step. ---

foreach_add_: Any = torch._foreach_add_
"""(list of tensors, tensors or a number): one launch adds to all of them. Checked: torch 2.13.0."""

foreach_copy_: Any = torch._foreach_copy_
"""(list of targets, list of sources): one launch copies all of them. Checked: torch 2.13.0."""

fused_adamw_: Any = torch._fused_adamw_
"""AdamW on lists of rows in one launch, in place, with one step counter per row; what torch.optim.AdamW(fused=True)
calls. `lr` is a float or a tensor on the device, which a CUDA graph needs. Checked: torch 2.13.0."""

fused_adam_: Any = torch._fused_adam_
"""The same for Adam (weight decay as an L2 term of the gradient). Checked: torch 2.13.0."""


# --- Questions about tensors and devices. ----------------------------------------------------------------------------


class DispatchMode(TorchDispatchMode):
    """Base of classes whose `__torch_dispatch__` is called for each operator, forward and backward, in their context.

    Without the query below, which torch asks each subclass, torch wraps that method for its compiler, and imports that
    at the first operator, which takes seconds. Checked: torch 2.13.0.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def bf16_in_cpu_hardware() -> bool:
    """Whether this CPU multiplies bf16 in hardware (AVX512-BF16); elsewhere bf16 is emulated and slower than float32.

    False if this torch lacks the query (it is private to torch.cpu, used by its compiler). Checked: torch 2.13.0.
    """
    return bool(getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)())


# Imported above:
# DeviceType (torch.autograd): tells GPU kernels from CPU operators among profiler events; undocumented, although the
#   events that carry it are public. Checked: torch 2.13.0.
