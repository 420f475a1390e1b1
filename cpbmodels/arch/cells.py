"""GRU and LSTM cells: the pointwise work of one step, from gates that are already multiplied out.

Forward equations are those of torch.nn.GRU and nn.LSTM, and so are gate order and weight layout: weights can be
exchanged with torch's modules. K members, B windows, H hidden values; * is elementwise.

On a CPU a cell is one autograd node with its derivative written out below: autograd would make a node of every
operation and keep the tensors of all. On a GPU it is torch's fused kernel, one launch forward and one
backward for all members.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cpbmodels.arch.layers import Param, on_gpu
from cpbmodels.arch.torch_private import (
    fused_gru_cell,
    fused_lstm_cell,
    sigmoid_backward,
    tanh_backward,
    tanh_backward_into,
)

GRU_GATES, LSTM_GATES = 3, 4
"""Blocks of H rows in a cell's weights: GRU reset, update, new; LSTM input, forget, cell, output."""
State = tuple[Tensor, Tensor]
"""h and c of an LSTM, [K, B, H] each."""


def cell_params(name: str, gates: int, inputs: int, hidden: int) -> list[Param]:
    """Input and recurrent weights of one layer, [gates x H, in] and [gates x H, H], uniform as in torch."""
    rows, bound = gates * hidden, 1 / math.sqrt(hidden)
    return [
        Param(f"{name}.w_ih", (rows, inputs), bound),
        Param(f"{name}.w_hh", (rows, hidden), bound),
        Param(f"{name}.b_ih", (1, rows), bound),
        Param(f"{name}.b_hh", (1, rows), bound),
    ]


def stacked_params(names: Sequence[str], gates: int, inputs: int, hidden: int) -> list[Param]:
    """`cell_params` of layers one above the other: the first reads `inputs` columns, the others a state."""
    each = (cell_params(name, gates, hidden if depth else inputs, hidden) for depth, name in enumerate(names))
    return [param for params in each for param in params]


def gru_cell(inputs: Tensor, hidden: Tensor, h: Tensor) -> Tensor:
    """Next state [K, B, H] from input gates and hidden gates [K, B, 3H] (reset, update, new) and the state."""
    if on_gpu(h):
        next_h, _ = fused_gru_cell(inputs.flatten(0, 1), hidden.flatten(0, 1), h.flatten(0, 1))
        return next_h.view_as(h)
    return _GruCell.apply(inputs, hidden, h)


class _GruCell(torch.autograd.Function):
    """With input gates i and hidden gates g, both W x + b:

        r = sigmoid(i_r + g_r)      z = sigmoid(i_z + g_z)
        n = tanh(i_n + r * g_n)     h' = (1 - z) * n + z * h

    Reset and update are one block of 2H throughout: one kernel for both.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, hidden: Tensor, h: Tensor) -> Tensor:
        H = h.shape[-1]
        # [K, B, 3H] -> [K, B, 2H] and [K, B, H]
        (i_rz, i_n), (g_rz, g_n) = inputs.split([2 * H, H], -1), hidden.split([2 * H, H], -1)
        rz = (i_rz + g_rz).sigmoid_()
        r, z = rz.chunk(2, -1)
        n = torch.addcmul(i_n, r, g_n).tanh_()
        ctx.save_for_backward(rz, n, g_n, h)
        return torch.lerp(n, h, z)  # n + z * (h - n): one kernel for (1 - z) * n + z * h

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        """From d = dL/dh' [K, B, H], with pre-activations a_r, a_z, a_n (the arguments of the functions above):

            da_n = d * (1 - z) * (1 - n^2)         da_r = da_n * g_n * r * (1 - r)
            da_z = d * (h - n) * z * (1 - z)       dh   = d * z   (the part that bypasses the gates)

        The input gates get (da_r, da_z, da_n), the hidden gates (da_r, da_z, da_n * r).
        """
        rz, n, g_n, h = ctx.saved_tensors
        r, z = rz.chunk(2, -1)
        dh = grad * z
        da_n = tanh_backward(grad - dh, n)  # grad - dh is d * (1 - z)
        da_rz = torch.cat([da_n * g_n, grad * (h - n)], -1)  # [K, B, 2H], before the sigmoids' derivative
        da_rz = sigmoid_backward(da_rz, rz)
        return torch.cat([da_rz, da_n], -1), torch.cat([da_rz, da_n * r], -1), dh


def lstm_cell(inputs: Tensor, hidden: Tensor, c: Tensor) -> State:
    """Next (h, c) from input gates and hidden gates [K, B, 4H] (input, forget, cell, output) and the cell state.

    On a GPU alone: on a CPU, `deferred.DeferredLstm` multiplies both kinds of gates as one.
    """
    next_h, next_c, _ = fused_lstm_cell(inputs.flatten(0, 1), hidden.flatten(0, 1), c.flatten(0, 1))
    return next_h.view_as(c), next_c.view_as(c)


def lstm_gates(total: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Next h and c from the sum of all gates [K, B, 4H], and what the backward pass needs.

        i, f, o = sigmoid(a_i), sigmoid(a_f), sigmoid(a_o)     g = tanh(a_g)
        c' = f * c + i * g                                     h' = o * tanh(c')

    `total` is overwritten: one sigmoid over the whole block is cheaper than three over slices. Its block g then holds
    sigmoid(a_g), which is not used; tanh(a_g) is computed before. Returned after h' and c': total, g, tanh(c').
    """
    i, f, a_g, o = total.chunk(4, -1)  # four views [K, B, H] of one block
    g = torch.tanh(a_g)
    total.sigmoid_()  # i, f and o are views of it
    next_c = torch.addcmul(i * g, f, c)
    tanh_c = torch.tanh(next_c)
    return o * tanh_c, next_c, total, g, tanh_c


def lstm_gates_backward(
    grad: Tensor, grad_c: Tensor, c: Tensor, total: Tensor, g: Tensor, tanh_c: Tensor
) -> State:
    """Gradients of the sum of all gates [K, B, 4H] and of the cell state before, from dL/dh' and dL/dc':

        dc'  = dL/dh' * o * (1 - tanh(c')^2) + dL/dc'
        da_i = dc' * g * i * (1 - i)     da_f = dc' * c * f * (1 - f)
        da_g = dc' * i * (1 - g^2)       da_o = dL/dh' * tanh(c') * o * (1 - o)
        dc   = dc' * f

    As in the forward pass one kernel treats the whole block as sigmoids; block g is then overwritten.
    """
    i, f, _, o = total.chunk(4, -1)
    d_next_c = tanh_backward(grad * o, tanh_c).add_(grad_c)
    d_gates = torch.cat([d_next_c * g, d_next_c * c, d_next_c, grad * tanh_c], -1)
    d_gates = sigmoid_backward(d_gates, total)  # right for i, f and o; block g is overwritten next
    H = c.shape[-1]
    tanh_backward_into(d_next_c * i, g, grad_input=d_gates.narrow(-1, 2 * H, H))
    return d_gates, d_next_c * f


def lstm_cell_by_hand(inputs: Tensor, hidden: Tensor, c: Tensor) -> State:
    """The same cell, every gate written out and left to autograd: the readable reference."""
    i, f, g, o = (inputs + hidden).chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c
