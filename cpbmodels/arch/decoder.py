"""What a recurrent decoder's step is made of: GRU and LSTM cells, linear maps and attention.

Cells: the pointwise work of one step, from gates that are already multiplied out. Forward equations are those of
torch.nn.GRU and nn.LSTM, and so are gate order and weight layout: weights can be exchanged with torch's modules. K
members, B windows, H hidden values; * is elementwise. On a CPU a cell is one autograd node with its derivative written
out below: autograd would make a node of every operation and keep the tensors of all. On a GPU it is torch's fused
kernel, one launch forward and one backward for all members.

Maps that are used at every step form their weight gradients once. A map y_t = W x_t + b that is used at steps
t = 1 .. S has dL/dW = sum over t of dy_t^T x_t. Autograd computes each product as soon as dy_t is known and adds it up:
S small products and S additions of a weight-sized tensor per map. Here a step's backward pass only stores (x_t, dy_t)
and returns dx_t; when the last of them is done, one product over the S x N rows, concatenated, gives the whole
gradient.

How "the last of them" is known: the weights go through one autograd node, whose output is an empty tensor (`token`)
that every step takes as an input. Autograd runs a node's backward pass after those of all users of its output, so the
weight node runs last. The gradient that reaches it along the token is empty and ignored.

Concatenation is in the order in which the backward pass ran, last step first. The order of a sum decides its last
bits, so it must not change.

No reference cycle, even if a step ends because memory ran out: a cycle would keep all tensors of the step until
Python's cycle collector runs, and those of a CUDA graph for good. So autograd's nodes hold what the steps store
(`_LinearSteps` ..), and only the object that is called holds the token, whose node they are; and what is stored is
detached, because x_t is the output of earlier nodes.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cpbmodels.arch.layers import Param, Weights, on_gpu
from cpbmodels.arch.torch_private import (
    fused_gru_cell,
    fused_lstm_cell,
    sigmoid_backward,
    softmax_backward,
    tanh_backward,
    tanh_backward_into,
)

GRU_GATES, LSTM_GATES = 3, 4
"""Blocks of H rows in a cell's weights: GRU reset, update, new; LSTM input, forget, cell, output."""
State = tuple[Tensor, Tensor]
"""h and c of an LSTM, [K, B, H] each."""
LstmStep = Callable[[Tensor, Tensor, Tensor], State]
"""(x [K, B, in], h, c [K, B, H]) -> next (h, c)."""


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
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
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

    On a GPU alone: on a CPU, `DeferredLstm` multiplies both kinds of gates as one.
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


def step_params(name: str, inputs: int, outputs: int) -> list[Param]:
    """Weight [out, in] and bias of a `DeferredLinear`; the transpose of `weights.linear_params`, as torch stores it."""
    bound = 1 / math.sqrt(inputs)
    return [Param(f"{name}.weight", (outputs, inputs), bound), Param(f"{name}.bias", (1, outputs), bound)]


class DeferredLinear:
    """A linear map used at `uses` steps, x [K, N, in] -> [K, N, out]; weight [K, out, in], bias [K, 1, out] or None."""

    def __init__(self, weight: Tensor, bias: Tensor | None, uses: int = 1) -> None:
        self.steps = _LinearSteps(weight.detach(), bias.detach() if bias is not None else None, uses)
        self.token = _LinearWeight.apply(weight, bias, self.steps) if torch.is_grad_enabled() else None

    def __call__(self, x: Tensor) -> Tensor:
        """One use of the map."""
        return self.steps(x) if self.token is None else _LinearUse.apply(x, self.token, self.steps)


class _LinearSteps:
    """The map itself, and what its uses store for the weights' gradient: x and dL/dy."""

    def __init__(self, weight: Tensor, bias: Tensor | None, uses: int) -> None:
        self.inputs: list[Tensor] = []
        self.grads: list[Tensor] = []
        self.weight, self.bias, self.transposed = weight, bias, weight.transpose(1, 2)
        self.uses = uses
        self.filled: list[Tensor] = []

    def __call__(self, x: Tensor) -> Tensor:
        """y = x W^T + b. On a GPU the bias is laid out for all uses in one launch, and the product added in place."""
        if self.bias is None:
            return torch.bmm(x, self.transposed)
        if not on_gpu(x):
            return torch.baddbmm(self.bias, x, self.transposed)
        if not self.filled:
            laid_out = self.bias.expand(self.uses, x.shape[0], x.shape[1], -1).contiguous()
            # `.data`: the parts share memory, but not the counter by which autograd sees changes in place.
            self.filled = [part.data for part in laid_out.unbind(0)]
        return self.filled.pop().baddbmm_(x, self.transposed)


class _LinearWeight(torch.autograd.Function):
    """Runs before the first and, backwards, after the last use: collects the gradients of weight and bias."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor | None, shared: _LinearSteps) -> Tensor:
        ctx.shared = shared
        # Its value is never read: passed to every use, it makes autograd run this backward after all of theirs.
        return weight.new_empty(0)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, Tensor | None, None]:
        shared = ctx.shared
        x, grad = torch.cat(shared.inputs, 1), torch.cat(shared.grads, 1)  # [K, S x N, in], [K, S x N, out]
        # Let go at once: the node lives on until the whole backward pass is over.
        shared.inputs, shared.grads = [], []
        d_bias = grad.sum(1, keepdim=True) if shared.bias is not None else None
        return torch.bmm(grad.transpose(1, 2), x), d_bias, None


class _LinearUse(torch.autograd.Function):
    """One use: y = x W^T + b; backwards dx = dy W at once, the weight's part is left to `_LinearWeight`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor, shared: _LinearSteps) -> Tensor:
        ctx.shared = shared
        ctx.save_for_backward(x, token)
        return shared(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, None]:
        x, token = ctx.saved_tensors
        ctx.shared.inputs.append(x.detach())
        ctx.shared.grads.append(grad)
        d_x = torch.bmm(grad, ctx.shared.weight) if ctx.needs_input_grad[0] else None
        return d_x, token, None  # an empty tensor is a valid gradient of the empty token


class DeferredAttention:
    """Attention of one query per step and head over fixed keys and values [N, T, d], N = members x windows x heads.

    a = softmax(q k^T / sqrt(d)), out = a v. The scale is multiplied into the keys once.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.steps = _AttentionSteps(keys.detach(), values.detach())
        self.token = _AttentionMemory.apply(keys, values, self.steps) if torch.is_grad_enabled() else None

    def __call__(self, query: Tensor) -> Tensor:
        """[N, 1, d] -> [N, 1, d]."""
        if self.token is None:
            return self.steps.attend(query)[1]
        return _AttentionUse.apply(query, self.token, self.steps)


class _AttentionSteps:
    """Scaled keys and values, and per step: query, gradient of the scores, shares, gradient of out."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.stored: list[tuple[Tensor, ...]] = []
        self.scale = 1 / math.sqrt(keys.shape[-1])
        # Once a window, instead of on the scores at every step.
        self.keys, self.values = keys * self.scale, values

    def attend(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Shares a [N, 1, T] and output [N, 1, d]."""
        shares = torch.softmax(torch.bmm(query, self.keys.transpose(1, 2)), -1)
        return shares, torch.bmm(shares, self.values)


class _AttentionMemory(torch.autograd.Function):
    """Gradients of keys and values over all steps: dk = sum of ds_t^T q_t / sqrt(d), dv = sum of a_t^T dout_t."""

    @staticmethod
    def forward(ctx: Any, keys: Tensor, values: Tensor, shared: _AttentionSteps) -> Tensor:
        ctx.shared = shared
        return keys.new_empty(0)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, Tensor, None]:
        shared = ctx.shared
        query, d_scores, shares, grad = (torch.cat(part, 1) for part in zip(*shared.stored, strict=True))
        shared.stored = []
        d_keys = torch.bmm(d_scores.transpose(1, 2), query).mul_(shared.scale)
        return d_keys, torch.bmm(shares.transpose(1, 2), grad), None


class _AttentionUse(torch.autograd.Function):
    """One use; backwards ds = softmax'(a, dout v^T) and dq = ds k (scaled keys) at once."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, token: Tensor, shared: _AttentionSteps) -> Tensor:
        ctx.shared = shared
        shares, out = shared.attend(query)
        ctx.save_for_backward(query, shares, token)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        query, shares, token = ctx.saved_tensors
        shared = ctx.shared
        d_shares = torch.bmm(grad, shared.values.transpose(1, 2))
        d_scores = softmax_backward(d_shares, shares, -1, shares.dtype)
        shared.stored.append((query.detach(), d_scores, shares, grad))
        return torch.bmm(d_scores, shared.keys), token, None


class DeferredLstm:
    """An LSTM cell used at many steps: x [K, B, in], h and c [K, B, H] -> next (h, c), one autograd node a step.

    The products of a step with W_ih and W_hh are one: [x, h] times the weights side by side, [K, 4H, in + H].
    """

    def __init__(self, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor) -> None:
        self.steps = _LstmSteps(w_ih.detach(), w_hh.detach(), (b_ih + b_hh).detach())
        learns = torch.is_grad_enabled()
        self.token = _LstmWeight.apply(w_ih, w_hh, b_ih, b_hh, self.steps) if learns else None

    def __call__(self, x: Tensor, h: Tensor, c: Tensor) -> State:
        """One step."""
        if self.token is None:
            return lstm_gates(self.steps.total(torch.cat([x, h], -1)), c)[:2]
        return _LstmUse.apply(x, h, c, self.token, self.steps)


class _LstmSteps:
    """Both weights side by side with the sum of both biases, and per step: [x, h] and the gradient of the gates."""

    def __init__(self, w_ih: Tensor, w_hh: Tensor, bias: Tensor) -> None:
        self.stored: list[State] = []
        self.inputs, self.bias = w_ih.shape[-1], bias
        self.weight = torch.cat([w_ih, w_hh], -1)
        self.transposed = self.weight.transpose(1, 2)

    def total(self, both: Tensor) -> Tensor:
        """Gates [K, B, 4H] before their functions from [x, h]. Only on a CPU, see `lstm_step`."""
        return torch.baddbmm(self.bias, both, self.transposed)


class _LstmWeight(torch.autograd.Function):
    """Gradients of both weights and (equal, because they are added) of both biases over all steps."""

    @staticmethod
    def forward(
        ctx: Any, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor, shared: _LstmSteps
    ) -> Tensor:
        ctx.shared = shared
        return w_ih.new_empty(0)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        shared = ctx.shared
        both, grad = (torch.cat(part, 1) for part in zip(*shared.stored, strict=True))
        shared.stored = []
        weight, bias = torch.bmm(grad.transpose(1, 2), both), grad.sum(1, keepdim=True)
        # The biases enter as their sum, so each has the whole gradient.
        return weight[..., : shared.inputs], weight[..., shared.inputs :], bias, bias, None


class _LstmUse(torch.autograd.Function):
    """One step: `lstm_gates` on [x, h] W^T + b, its derivative, and [dx, dh] = d_gates W."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, h: Tensor, c: Tensor, token: Tensor, shared: _LstmSteps) -> State:
        ctx.shared = shared
        both = torch.cat([x, h], -1)
        next_h, next_c, *saved = lstm_gates(shared.total(both), c)
        ctx.save_for_backward(both, token, c, *saved)
        return next_h, next_c

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_c: Tensor) -> tuple[Tensor | None, ...]:
        both, token, *saved = ctx.saved_tensors
        d_gates, d_c = lstm_gates_backward(grad, grad_c, *saved)
        ctx.shared.stored.append((both, d_gates))
        d_both = torch.bmm(d_gates, ctx.shared.weight)
        return d_both[..., : ctx.shared.inputs], d_both[..., ctx.shared.inputs :], d_c, token, None


def lstm_step(w: Weights, name: str, uses: int, *, manual: bool = False) -> LstmStep:
    """A decoder layer's step (x, h, c) -> (h, c), for a loop: the fastest of the device, or every gate by hand."""
    w_ih, w_hh, b_ih, b_hh = (w[f"{name}.{part}"] for part in ("w_ih", "w_hh", "b_ih", "b_hh"))
    if not manual and not on_gpu(w_ih):
        return DeferredLstm(w_ih, w_hh, b_ih, b_hh)
    if manual:
        by_hand = DeferredLinear(w_ih, b_ih, uses), DeferredLinear(w_hh, b_hh, uses)
        return lambda x, h, c: lstm_cell_by_hand(by_hand[0](x), by_hand[1](h), c)
    # Both biases in one map: the gates only ever see their sum.
    inputs, hidden = DeferredLinear(w_ih, b_ih + b_hh, uses), DeferredLinear(w_hh, None)
    return lambda x, h, c: lstm_cell(inputs(x), hidden(h), c)
