"""The code path of a GPU, run on a CPU with numbers: `on_gpu` says yes, and torch's fused cells are written out here.

The cells' equations are those of RNN.cu; a workspace holds what the backward kernel needs, in an order of our own.
"""

from contextlib import contextmanager
from unittest.mock import patch

import torch

from cpbmodels.arch import decoder, heads, layers, recurrent
from cpbmodels.fleet import fleet

MODULES = (decoder, fleet, heads, layers, recurrent)


def gru_cell(inputs, hidden, h, input_bias=None, hidden_bias=None):
    i_r, i_z, i_n = inputs.chunk(3, -1)
    g_r, g_z, g_n = hidden.chunk(3, -1)
    r, z = torch.sigmoid(i_r + g_r), torch.sigmoid(i_z + g_z)
    n = torch.tanh(i_n + r * g_n)
    return n + z * (h - n), torch.cat([r, z, n, h, g_n], -1)


def gru_cell_backward(grad, workspace, has_bias):
    r, z, n, h, g_n = workspace.chunk(5, -1)
    d_n = grad * (1 - z) * (1 - n * n)
    d_z = grad * (h - n) * z * (1 - z)
    d_r = d_n * g_n * r * (1 - r)
    return torch.cat([d_r, d_z, d_n], -1), torch.cat([d_r, d_z, d_n * r], -1), grad * z, None, None


def lstm_cell(inputs, hidden, c, input_bias=None, hidden_bias=None):
    i, f, g, o = (inputs + hidden).chunk(4, -1)
    i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
    new = f * c + i * g
    return o * torch.tanh(new), new, torch.cat([i, f, g, o], -1)


def lstm_cell_backward(grad_h, grad_c, c, new, workspace, has_bias):
    i, f, g, o = workspace.chunk(4, -1)
    tanh = torch.tanh(new)
    d_c = 0 if grad_c is None else grad_c
    if grad_h is not None:
        d_c = d_c + grad_h * o * (1 - tanh * tanh)
    d_o = torch.zeros_like(o) if grad_h is None else grad_h * tanh * o * (1 - o)
    gates = [d_c * g * i * (1 - i), d_c * c * f * (1 - f), d_c * i * (1 - g * g), d_o]
    return torch.cat(gates, -1), d_c * f, None


KERNELS = {
    "_thnn_fused_gru_cell": gru_cell,
    "_thnn_fused_gru_cell_backward": gru_cell_backward,
    "_thnn_fused_lstm_cell": lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": lstm_cell_backward,
}


@contextmanager
def gpu_path():
    """Within it everything of cpbmodels takes the way of a GPU, on CPU tensors."""
    library = torch.library.Library("aten", "IMPL")
    for name, kernel in KERNELS.items():
        library.m.impl(name, "CPU", kernel, False)
    patches = [
        patch.object(module, "on_gpu", lambda x: True) for module in MODULES if hasattr(module, "on_gpu")
    ]
    for replacement in patches:
        replacement.start()
    try:
        yield
    finally:
        for replacement in patches:
            replacement.stop()
        library._destroy()
