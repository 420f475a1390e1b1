"""Recurrent layers with a member axis: x [K, B, T, in] -> [K, B, T, H].

Each cell exists as a readable step (`gru_step`, `lstm_step`), and as a sequence with hand-written backpropagation
through time: the same numbers with 40 % fewer launches. Gate order and weight layout are torch's, so weights can
be exchanged with nn.GRU and nn.LSTM. Large LSTMs on a CPU go to oneDNN's, one member after another.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from cpbmodels.draws import Draws, dropout
from cpbmodels.weights import Param, Weights

GATES = {"gru": 3, "lstm": 4}
ONEDNN_FROM = 48  # hidden width from which oneDNN's LSTM per member beats the batched product on a CPU


def cell_params(name: str, kind: str, inputs: int, hidden: int) -> list[Param]:
    """Input and recurrent weights of one layer, [gates x H, in] and [gates x H, H], uniform as in torch."""
    rows, bound = GATES[kind] * hidden, 1 / math.sqrt(hidden)
    return [
        Param(f"{name}.w_ih", (rows, inputs), bound),
        Param(f"{name}.w_hh", (rows, hidden), bound),
        Param(f"{name}.b_ih", (1, rows), bound),
        Param(f"{name}.b_hh", (1, rows), bound),
    ]


def input_gates(x: Tensor, w: Weights, name: str) -> Tensor:
    """[K, N, in] -> [K, N, gates x H]: the part of the gates that does not wait for the previous step."""
    return torch.baddbmm(w[f"{name}.b_ih"], x, w[f"{name}.w_ih"].transpose(1, 2))


def gru_step(gates: Tensor, h: Tensor, w: Weights, name: str) -> Tensor:
    """One GRU step: input gates [K, B, 3H], state [K, B, H] -> next state."""
    hidden = torch.baddbmm(w[f"{name}.b_hh"], h, w[f"{name}.w_hh"].transpose(1, 2))
    i_r, i_z, i_n = gates.chunk(3, -1)
    h_r, h_z, h_n = hidden.chunk(3, -1)
    reset = torch.sigmoid(i_r + h_r)
    update = torch.sigmoid(i_z + h_z)
    fresh = torch.tanh(i_n + reset * h_n)
    return fresh + update * (h - fresh)


def lstm_step(gates: Tensor, state: tuple[Tensor, Tensor], w: Weights, name: str) -> tuple[Tensor, Tensor]:
    """One LSTM step, every gate written out: input gates [K, B, 4H], (h, c) -> next (h, c)."""
    h, c = state
    total = gates + torch.baddbmm(w[f"{name}.b_hh"], h, w[f"{name}.w_hh"].transpose(1, 2))
    i, f, g, o = total.chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


class GruSequence(torch.autograd.Function):
    """All steps of one GRU layer from input gates [K, T, B, 3H]; state starts at zero."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, w_hh: Tensor, b_hh: Tensor) -> Tensor:
        """States [K, T, B, H]."""
        K, T, B, G = gates.shape
        H = G // 3
        wt = w_hh.transpose(1, 2)
        states = gates.new_zeros(K, T + 1, B, H)
        sums = gates.new_empty(K, T, B, 2 * H)  # reset and update gates
        fresh, inner = gates.new_empty(K, T, B, H), gates.new_empty(K, T, B, H)
        for t in range(T):
            h = states.select(1, t)
            hidden = torch.baddbmm(b_hh, h, wt)
            now = gates.select(1, t)
            both = torch.sigmoid(now[..., : 2 * H] + hidden[..., : 2 * H], out=sums.select(1, t))
            h_n = inner.select(1, t).copy_(hidden[..., 2 * H :])
            n = torch.tanh(torch.addcmul(now[..., 2 * H :], both[..., :H], h_n), out=fresh.select(1, t))
            torch.addcmul(n, both[..., H:], h - n, out=states.select(1, t + 1))
        ctx.save_for_backward(states, sums, fresh, inner, w_hh)
        return states[:, 1:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        """Gradients of gates, w_hh and b_hh."""
        states, sums, fresh, inner, w_hh = ctx.saved_tensors
        K, T, B, H = fresh.shape
        d_gates, d_hidden = fresh.new_empty(K, T, B, 3 * H), fresh.new_empty(K, T, B, 3 * H)
        reset, update = sums[..., :H], sums[..., H:]
        # what does not depend on the incoming gradient, for all steps at once
        slope_n = (1 - update) * (1 - fresh * fresh)
        slope_z = (states[:, :-1] - fresh) * (update * (1 - update))
        slope_r = inner * (reset * (1 - reset))
        dh = torch.zeros_like(fresh[:, 0])
        for t in range(T - 1, -1, -1):
            dh = dh + grad.select(1, t)
            d = d_gates.select(1, t)
            dn = torch.mul(dh, slope_n.select(1, t), out=d[..., 2 * H :])
            torch.mul(dn, slope_r.select(1, t), out=d[..., :H])
            torch.mul(dh, slope_z.select(1, t), out=d[..., H : 2 * H])
            e = d_hidden.select(1, t)
            e[..., : 2 * H] = d[..., : 2 * H]
            torch.mul(dn, reset.select(1, t), out=e[..., 2 * H :])
            dh = torch.baddbmm(dh * update.select(1, t), e, w_hh)
        flat = d_hidden.view(K, T * B, 3 * H)
        before = states[:, :-1].reshape(K, T * B, H)
        return d_gates, torch.bmm(flat.transpose(1, 2), before), flat.sum(1, keepdim=True)


class LstmSequence(torch.autograd.Function):
    """All steps of one LSTM layer from input gates [K, T, B, 4H]; state starts at zero."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, w_hh: Tensor, b_hh: Tensor) -> tuple[Tensor, Tensor]:
        """States [K, T, B, H] and the last cell [K, B, H]."""
        K, T, B, G = gates.shape
        H = G // 4
        wt = w_hh.transpose(1, 2)
        states, cells = gates.new_zeros(K, T + 1, B, H), gates.new_zeros(K, T + 1, B, H)
        acts, squash = torch.empty_like(gates), gates.new_empty(K, T, B, H)
        for t in range(T):
            total = torch.baddbmm(b_hh, states.select(1, t), wt).add_(gates.select(1, t))
            a = torch.sigmoid(total, out=acts.select(1, t))
            torch.tanh(total[..., 2 * H : 3 * H], out=a[..., 2 * H : 3 * H])
            i, f, g, o = a.chunk(4, -1)
            c = torch.addcmul(i * g, f, cells.select(1, t), out=cells.select(1, t + 1))
            torch.mul(o, torch.tanh(c, out=squash.select(1, t)), out=states.select(1, t + 1))
        ctx.save_for_backward(states, cells, acts, squash, w_hh)
        return states[:, 1:], cells[:, -1].clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        """Gradients of gates, w_hh and b_hh."""
        states, cells, acts, squash, w_hh = ctx.saved_tensors
        K, T, B, H = squash.shape
        i, f, g, o = acts.chunk(4, -1)
        slope_c = o * (1 - squash * squash)
        slope_o = squash * (o * (1 - o))
        # one factor per gate, so that a step is a single product: d(i, f, g) = dc x factor
        factor = torch.stack([g * (i * (1 - i)), cells[:, :-1] * (f * (1 - f)), i * (1 - g * g)], 3)
        d_gates = torch.empty_like(acts)
        dh, dc = torch.zeros_like(squash[:, 0]), grad_cell
        for t in range(T - 1, -1, -1):
            dh = dh + grad.select(1, t)
            dc = torch.addcmul(dc, dh, slope_c.select(1, t))
            d = d_gates.select(1, t)
            torch.mul(dc.unsqueeze(2), factor.select(1, t), out=d[..., : 3 * H].view(K, B, 3, H))
            torch.mul(dh, slope_o.select(1, t), out=d[..., 3 * H :])
            dh = torch.bmm(d, w_hh)
            dc = dc * f.select(1, t)
        flat = d_gates.view(K, T * B, 4 * H)
        before = states[:, :-1].reshape(K, T * B, H)
        return d_gates, torch.bmm(flat.transpose(1, 2), before), flat.sum(1, keepdim=True)


def gru(
    x: Tensor, w: Weights, names: list[str], rate: float, draws: Draws | None
) -> tuple[Tensor, list[Tensor]]:
    """Stacked GRU with dropout between layers: all top states [K, B, T, H], and each layer's last state."""
    K, B, T, _ = x.shape
    last = []
    x = x.transpose(1, 2)  # [K, T, B, in]: a step is then one contiguous slice per member
    for depth, name in enumerate(names):
        x = dropout(x, rate if depth else 0.0, draws)
        gates = input_gates(x.reshape(K, T * B, -1), w, name).view(K, T, B, -1)
        x = GruSequence.apply(gates, w[f"{name}.w_hh"], w[f"{name}.b_hh"])
        last.append(x[:, -1])
    return x.transpose(1, 2), last


def lstm(
    x: Tensor, w: Weights, names: list[str], rate: float, draws: Draws | None, manual: bool = False
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Stacked LSTM with dropout between layers: all top states [K, B, T, H], and each layer's last (h, c)."""
    K, B, T, _ = x.shape
    last = []
    layer = _manual_layer if manual else _onednn_layer if _use_onednn(x, w, names) else _fleet_layer
    x = x.transpose(1, 2)
    for depth, name in enumerate(names):
        x = dropout(x, rate if depth else 0.0, draws)
        x, cell = layer(x, w, name)
        last.append((x[:, -1], cell))
    return x.transpose(1, 2), last


def _use_onednn(x: Tensor, w: Weights, names: list[str]) -> bool:
    return x.device.type == "cpu" and w[f"{names[0]}.w_hh"].shape[-1] >= ONEDNN_FROM


def _manual_layer(x: Tensor, w: Weights, name: str) -> tuple[Tensor, Tensor]:
    """The readable reference: explicit gates, autograd through every step."""
    K, T, B, _ = x.shape
    gates = input_gates(x.reshape(K, T * B, -1), w, name).view(K, T, B, -1)
    h = c = x.new_zeros(K, B, w[f"{name}.w_hh"].shape[-1])
    states = []
    for now in gates.unbind(1):
        h, c = lstm_step(now, (h, c), w, name)
        states.append(h)
    return torch.stack(states, 1), c


def _fleet_layer(x: Tensor, w: Weights, name: str) -> tuple[Tensor, Tensor]:
    """All members in one product per step, hand-written backward."""
    K, T, B, _ = x.shape
    gates = input_gates(x.reshape(K, T * B, -1), w, name).view(K, T, B, -1)
    return LstmSequence.apply(gates, w[f"{name}.w_hh"], w[f"{name}.b_hh"])


def _onednn_layer(x: Tensor, w: Weights, name: str) -> tuple[Tensor, Tensor]:
    """torch's own LSTM kernel, member by member."""
    parts = [w[f"{name}.{part}"].unbind(0) for part in ("w_ih", "w_hh", "b_ih", "b_hh")]
    outs, cells = [], []
    for own, w_ih, w_hh, b_ih, b_hh in zip(x.unbind(0), *parts, strict=True):
        zero = own.new_zeros(1, own.shape[1], w_hh.shape[-1])
        flat = [w_ih, w_hh, b_ih[0], b_hh[0]]
        out, _, cell = torch._VF.lstm(
            own, (zero, zero), flat, True, 1, 0.0, torch.is_grad_enabled(), False, False
        )
        outs.append(out)
        cells.append(cell[0])
    return torch.stack(outs), torch.stack(cells)
