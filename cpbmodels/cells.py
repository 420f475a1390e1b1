"""What a decoder loop is made of: maps and memories used at every step, and the GRU and LSTM cells.

`Tied` and `TiedAttention` note the gradients of all steps and form those of the weights (or of the attended
memory) in one product at the end. The cells do a step's pointwise work in one autograd node; on a GPU that is
one of torch's fused kernels, so a step of all members is two launches forward and two backward. Gate order and
weight layout are torch's: weights can be exchanged with nn.GRU and nn.LSTM.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cpbmodels.layers import on_gpu
from cpbmodels.weights import Param, Weights

GATES = {"gru": 3, "lstm": 4}
State = tuple[Tensor, Tensor]
LstmStep = Callable[[Tensor, Tensor, Tensor], State]


def cell_params(name: str, kind: str, inputs: int, hidden: int) -> list[Param]:
    """Input and recurrent weights of one layer, [gates x H, in] and [gates x H, H], uniform as in torch."""
    rows, bound = GATES[kind] * hidden, 1 / math.sqrt(hidden)
    return [
        Param(f"{name}.w_ih", (rows, inputs), bound),
        Param(f"{name}.w_hh", (rows, hidden), bound),
        Param(f"{name}.b_ih", (1, rows), bound),
        Param(f"{name}.b_hh", (1, rows), bound),
    ]


def step_params(name: str, inputs: int, outputs: int) -> list[Param]:
    """Weight [out, in] and bias of a map that `Tied` uses at every step."""
    bound = 1 / math.sqrt(inputs)
    return [Param(f"{name}.weight", (outputs, inputs), bound), Param(f"{name}.bias", (1, outputs), bound)]


class Tied:
    """A linear map used at many steps, x [K, N, in] -> [K, N, out]; its weight gradient is formed once.

    weight is [K, out, in], bias [K, 1, out]. Backward of a step only notes (x, gradient); the node of the weight
    runs after the last of them (autograd waits for all users of `token`) and needs a single product. It lets go of
    `token`, whose node holds this object: a circle would keep the step's tensors until Python looks for circles.
    """

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.inputs: list[Tensor] = []
        self.grads: list[Tensor] = []
        self.weight, self.bias = weight.detach(), bias.detach()
        self.transposed = self.weight.transpose(1, 2)
        self.token = _TiedWeight.apply(weight, bias, self) if torch.is_grad_enabled() else None

    def __call__(self, x: Tensor) -> Tensor:
        """One use of the map."""
        if self.token is None:
            return torch.baddbmm(self.bias, x, self.transposed)
        return _TiedUse.apply(x, self.token, self)


class _TiedWeight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor, tied: Tied) -> Tensor:
        ctx.tied = tied
        return weight.new_empty(0)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        tied = ctx.tied
        x, grad = torch.cat(tied.inputs, 1), torch.cat(tied.grads, 1)
        tied.inputs, tied.grads, tied.token = [], [], None
        return torch.bmm(grad.transpose(1, 2), x), grad.sum(1, keepdim=True), None


class _TiedUse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor, tied: Tied) -> Tensor:
        ctx.tied = tied
        ctx.save_for_backward(x, token)
        return torch.baddbmm(tied.bias, x, tied.transposed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, None]:  # type: ignore[override]
        x, token = ctx.saved_tensors
        ctx.tied.inputs.append(x)
        ctx.tied.grads.append(grad)
        needed = torch.bmm(grad, ctx.tied.weight) if ctx.needs_input_grad[0] else None
        return needed, token, None


class TiedAttention:
    """Attention of one query per step and head over a fixed memory: keys and values [N, T, d]."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.notes: list[tuple[Tensor, ...]] = []
        self.scale = 1 / math.sqrt(keys.shape[-1])
        self.keys, self.values = keys.detach() * self.scale, values.detach()
        self.token = _TiedMemory.apply(keys, values, self) if torch.is_grad_enabled() else None

    def __call__(self, query: Tensor) -> Tensor:
        """[N, 1, d] -> [N, 1, d]."""
        return self.attend(query)[1] if self.token is None else _TiedLook.apply(query, self.token, self)

    def attend(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Shares [N, 1, T] and what they find [N, 1, d]."""
        shares = torch.softmax(torch.bmm(query, self.keys.transpose(1, 2)), -1)
        return shares, torch.bmm(shares, self.values)


class _TiedMemory(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, keys: Tensor, values: Tensor, tied: TiedAttention) -> Tensor:
        ctx.tied = tied
        return keys.new_empty(0)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        tied = ctx.tied
        query, d_scores, shares, grad = (torch.cat(part, 1) for part in zip(*tied.notes, strict=True))
        tied.notes, tied.token = [], None
        d_keys = torch.bmm(d_scores.transpose(1, 2), query).mul_(tied.scale)
        return d_keys, torch.bmm(shares.transpose(1, 2), grad), None


class _TiedLook(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, token: Tensor, tied: TiedAttention) -> Tensor:
        ctx.tied = tied
        shares, found = tied.attend(query)
        ctx.save_for_backward(query, shares, token)
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        query, shares, token = ctx.saved_tensors
        tied = ctx.tied
        d_shares = torch.bmm(grad, tied.values.transpose(1, 2))
        d_scores = torch._softmax_backward_data(d_shares, shares, -1, shares.dtype)
        tied.notes.append((query, d_scores, shares, grad))
        return torch.bmm(d_scores, tied.keys), token, None


def gru_cell(inputs: Tensor, hidden: Tensor, h: Tensor) -> Tensor:
    """Next state [K, B, H] from input gates and hidden gates [K, B, 3H] (reset, update, new) and the state."""
    if on_gpu(h):
        return torch.ops.aten._thnn_fused_gru_cell(
            inputs.flatten(0, 1), hidden.flatten(0, 1), h.flatten(0, 1)
        )[0].view_as(h)
    return _GruCell.apply(inputs, hidden, h)


class _GruCell(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, hidden: Tensor, h: Tensor) -> Tensor:
        H = h.shape[-1]
        (i_both, i_n), (h_both, h_n) = inputs.split([2 * H, H], -1), hidden.split([2 * H, H], -1)
        both = (i_both + h_both).sigmoid_()
        reset, update = both.chunk(2, -1)
        fresh = torch.addcmul(i_n, reset, h_n).tanh_()
        ctx.save_for_backward(both, fresh, h_n, h)
        return torch.lerp(fresh, h, update)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        both, fresh, h_n, h = ctx.saved_tensors
        reset, update = both.chunk(2, -1)
        kept = grad * update
        d_fresh = torch.ops.aten.tanh_backward(grad - kept, fresh)
        d_both = torch.cat([d_fresh * h_n, grad * (h - fresh)], -1)
        d_both = torch.ops.aten.sigmoid_backward(d_both, both)
        return torch.cat([d_both, d_fresh], -1), torch.cat([d_both, d_fresh * reset], -1), kept


def lstm_cell(inputs: Tensor, hidden: Tensor, c: Tensor) -> State:
    """Next (h, c) from input gates and hidden gates [K, B, 4H] (input, forget, cell, output) and the cell."""
    if on_gpu(c):
        h, new, _ = torch.ops.aten._thnn_fused_lstm_cell(
            inputs.flatten(0, 1), hidden.flatten(0, 1), c.flatten(0, 1)
        )
        return h.view_as(c), new.view_as(c)
    return _LstmCell.apply(inputs, hidden, c)


class _LstmCell(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, hidden: Tensor, c: Tensor) -> State:
        h, new, *kept = lstm_gates(inputs + hidden, c)
        ctx.save_for_backward(c, *kept)
        return h, new

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_c: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        d, d_c = lstm_gates_backward(grad, grad_c, *ctx.saved_tensors)
        return d, d, d_c


def lstm_gates(total: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Next h and c from the sum of all gates [K, B, 4H] (overwritten), and what the backward pass needs."""
    i, f, g, o = total.chunk(4, -1)
    fresh = torch.tanh(g)
    total.sigmoid_()  # and with it i, f, o
    new = torch.addcmul(i * fresh, f, c)
    squashed = torch.tanh(new)
    return o * squashed, new, total, fresh, squashed


def lstm_gates_backward(
    grad: Tensor, grad_c: Tensor, c: Tensor, total: Tensor, fresh: Tensor, squashed: Tensor
) -> State:
    """Gradients of the sum of all gates [K, B, 4H] and of the cell before."""
    i, f, _, o = total.chunk(4, -1)
    d_c = torch.ops.aten.tanh_backward(grad * o, squashed).add_(grad_c)
    d = torch.cat([d_c * fresh, d_c * c, d_c, grad * squashed], -1)
    d = torch.ops.aten.sigmoid_backward(d, total)
    torch.ops.aten.tanh_backward.grad_input(
        d_c * i, fresh, grad_input=d.narrow(-1, 2 * c.shape[-1], c.shape[-1])
    )
    return d, d_c * f


class TiedLstm:
    """An LSTM cell used at many steps: x [K, B, in], h and c [K, B, H] -> next (h, c), one autograd node a step.

    Both products of a step are one, of [x, h] with the weights side by side; like `Tied`, the weights' gradients
    are formed at the end, in a single product.
    """

    def __init__(self, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor) -> None:
        self.notes: list[State] = []
        self.inputs = w_ih.shape[-1]
        self.weight = torch.cat([w_ih.detach(), w_hh.detach()], -1)
        self.transposed, self.bias = self.weight.transpose(1, 2), (b_ih + b_hh).detach()
        learns = torch.is_grad_enabled()
        self.token = _TiedLstmWeight.apply(w_ih, w_hh, b_ih, b_hh, self) if learns else None

    def __call__(self, x: Tensor, h: Tensor, c: Tensor) -> State:
        """One step."""
        if self.token is None:
            return lstm_gates(self.total(torch.cat([x, h], -1)), c)[:2]
        return _TiedLstmUse.apply(x, h, c, self.token, self)

    def total(self, both: Tensor) -> Tensor:
        """Gates [K, B, 4H] before their functions from [x, h]."""
        return torch.baddbmm(self.bias, both, self.transposed)


class _TiedLstmWeight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor, tied: TiedLstm) -> Tensor:
        ctx.tied = tied
        return w_ih.new_empty(0)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        tied = ctx.tied
        both, grad = (torch.cat(part, 1) for part in zip(*tied.notes, strict=True))
        tied.notes, tied.token = [], None
        weight, bias = torch.bmm(grad.transpose(1, 2), both), grad.sum(1, keepdim=True)
        return weight[..., : tied.inputs], weight[..., tied.inputs :], bias, bias, None


class _TiedLstmUse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, h: Tensor, c: Tensor, token: Tensor, tied: TiedLstm) -> State:
        ctx.tied = tied
        both = torch.cat([x, h], -1)
        out, new, *kept = lstm_gates(tied.total(both), c)
        ctx.save_for_backward(both, token, c, *kept)
        return out, new

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_c: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        both, token, *kept = ctx.saved_tensors
        d, d_c = lstm_gates_backward(grad, grad_c, *kept)
        ctx.tied.notes.append((both, d))
        d_both = torch.bmm(d, ctx.tied.weight)
        return d_both[..., : ctx.tied.inputs], d_both[..., ctx.tied.inputs :], d_c, token, None


def lstm_cell_by_hand(inputs: Tensor, hidden: Tensor, c: Tensor) -> State:
    """The same cell, every gate written out and left to autograd: the readable reference."""
    i, f, g, o = (inputs + hidden).chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def lstm_step(w: Weights, name: str, manual: bool = False) -> LstmStep:
    """A decoder layer's step (x, h, c) -> (h, c), for a loop: the fastest of the device, or every gate by hand."""
    w_ih, w_hh, b_ih, b_hh = (w[f"{name}.{part}"] for part in ("w_ih", "w_hh", "b_ih", "b_hh"))
    if not manual and not on_gpu(w_ih):
        return TiedLstm(w_ih, w_hh, b_ih, b_hh)
    inputs, hidden, cell = Tied(w_ih, b_ih), Tied(w_hh, b_hh), lstm_cell_by_hand if manual else lstm_cell
    return lambda x, h, c: cell(inputs(x), hidden(h), c)
