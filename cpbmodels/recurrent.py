"""Recurrent encoders with a member axis: x [K, B, T, in] -> [K, B, T, H], state starting at zero.

On a CPU a layer is one autograd node with backpropagation through time written by hand: whatever does not wait for
the next step's gradient is computed for all steps at once, which leaves four (GRU) or five (LSTM) operations per
step and backward, a third of autograd's. On a GPU torch's fused cells need as few. Wide LSTMs on a CPU go to
oneDNN's kernel, one member after another, which beats any batched product there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cpbmodels.cells import State, Tied, gru_cell, lstm_cell, lstm_cell_by_hand
from cpbmodels.draws import Draws, dropout
from cpbmodels.layers import on_gpu
from cpbmodels.weights import Weights

ONEDNN_FROM = 48  # hidden width from which oneDNN's LSTM per member beats the batched product on a CPU


def gru(
    x: Tensor, w: Weights, names: list[str], rate: float, draws: Draws | None
) -> tuple[Tensor, list[Tensor]]:
    """Stacked GRU with dropout between layers: all top states [K, B, T, H], and each layer's last state."""
    last = []
    x = x.transpose(1, 2)  # [K, T, B, in]
    for depth, name in enumerate(names):
        gates = input_gates(dropout(x, rate if depth else 0.0, draws), w[f"{name}.b_ih"], w[f"{name}.w_ih"])
        recurrent = (gates, w[f"{name}.w_hh"], w[f"{name}.b_hh"])
        x = gru_fused(*recurrent) if on_gpu(x) else GruSequence.apply(*recurrent)
        last.append(x[:, -1])
    return x.transpose(1, 2), last


def lstm(
    x: Tensor, w: Weights, names: list[str], rate: float, draws: Draws | None, manual: bool = False
) -> tuple[Tensor, list[State]]:
    """Stacked LSTM with dropout between layers: all top states [K, B, T, H], and each layer's last (h, c)."""
    last: list[State] = []
    wide = w[f"{names[0]}.w_hh"].shape[-1] >= ONEDNN_FROM
    layer = _by_hand if manual else lstm_fused if on_gpu(x) else _onednn if wide else lstm_sequence
    x = x.transpose(1, 2)
    for depth, name in enumerate(names):
        x, cell = layer(dropout(x, rate if depth else 0.0, draws), w, name)
        last.append((x[:, -1], cell))
    return x.transpose(1, 2), last


def input_gates(x: Tensor, bias: Tensor, weight: Tensor) -> Tensor:
    """[K, T, B, in] -> [K, T, B, gates x H]: the part of the gates that waits for no state, for all steps at once."""
    K, T, B, _ = x.shape
    return torch.baddbmm(bias, x.reshape(K, T * B, -1), weight.transpose(1, 2)).view(K, T, B, -1)


class GruSequence(torch.autograd.Function):
    """All steps of one GRU layer from its input gates [K, T, B, 3H]."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, w_hh: Tensor, b_hh: Tensor) -> Tensor:
        """States [K, T, B, H]."""
        K, T, B, H = *gates.shape[:3], w_hh.shape[-1]
        weight, (i_both, i_n) = w_hh.transpose(1, 2), gates.split([2 * H, H], -1)
        i_both, i_n = i_both.unbind(1), i_n.unbind(1)
        h = gates.new_zeros(K, B, H)
        states, both, inner, fresh = [h], [], [], []
        for t in range(T):
            h_both, h_n = torch.baddbmm(b_hh, h, weight).split([2 * H, H], -1)
            both.append((i_both[t] + h_both).sigmoid_())
            inner.append(h_n)
            reset, update = both[t].chunk(2, -1)
            fresh.append(torch.addcmul(i_n[t], reset, inner[t]).tanh_())
            h = torch.lerp(fresh[t], h, update)
            states.append(h)
        out = torch.stack(states, 1)
        ctx.save_for_backward(out, *(torch.stack(part, 1) for part in (both, inner, fresh)), w_hh)
        return out[:, 1:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        """Gradients of gates, w_hh and b_hh. Work order of the gates: new, update, reset, new's hidden part."""
        states, both, inner, fresh, w_hh = ctx.saved_tensors
        K, T, B, H = fresh.shape
        reset, update = both.chunk(2, -1)
        slope_n = torch.addcmul(1 - update, 1 - update, fresh * fresh, value=-1)
        slope_z = (states[:, :-1] - fresh) * torch.addcmul(update, update, update, value=-1)
        slope_r = inner * torch.addcmul(reset, reset, reset, value=-1)
        by_state = torch.stack([slope_n, slope_z], 3).unbind(1)  # times the state's gradient
        by_fresh = torch.stack([slope_r, reset], 3).unbind(1)  # times the new gate's gradient
        work = fresh.new_empty(K, T, B, 4, H)
        d_nz, d_rh, d_n = (
            work[:, :, :, :2].unbind(1),
            work[:, :, :, 2:].unbind(1),
            work[:, :, :, :1].unbind(1),
        )
        d_hidden = work.view(K, T, B, 4 * H)[..., H:].unbind(1)  # update, reset, new
        w_r, w_z, w_n = w_hh.chunk(3, 1)
        weight = torch.cat([w_z, w_r, w_n], 1)
        grads, kept = grad.unbind(1), update.unbind(1)
        dh = grads[-1]
        for t in range(T - 1, -1, -1):
            torch.mul(dh.unsqueeze(2), by_state[t], out=d_nz[t])
            torch.mul(d_n[t], by_fresh[t], out=d_rh[t])
            if t:
                dh = torch.baddbmm(torch.addcmul(grads[t - 1], dh, kept[t]), d_hidden[t], weight)
        d_n, d_z, d_r, d_h = work.unbind(3)
        flat = torch.cat([d_r, d_z, d_h], -1).view(K, T * B, 3 * H)
        before = states[:, :-1].reshape(K, T * B, H)
        d_weight = torch.bmm(flat.transpose(1, 2), before)
        return torch.cat([d_r, d_z, d_n], -1), d_weight, flat.sum(1, keepdim=True)


def gru_fused(gates: Tensor, w_hh: Tensor, b_hh: Tensor) -> Tensor:
    """The same layer as a loop over torch's fused cell: two launches a step."""
    tied = Tied(w_hh, b_hh)
    h = gates.new_zeros(gates.shape[0], gates.shape[2], w_hh.shape[-1])
    states = []
    for now in _by_time(gates):
        h = gru_cell(now, tied(h), h)
        states.append(h)
    return torch.stack(states, 1)


class LstmSequence(torch.autograd.Function):
    """All steps of one LSTM layer from its gates [K, T, B, 4H] (all biases added)."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, w_hh: Tensor) -> State:
        """States [K, T, B, H] and the last cell [K, B, H]."""
        K, T, B, H = *gates.shape[:3], w_hh.shape[-1]
        weight, now = w_hh.transpose(1, 2), gates.unbind(1)
        states, cells = gates.new_zeros(2, T + 1, K, B, H)
        fresh, squashed = gates.new_empty(2, T, K, B, H)
        acts = gates.new_empty(T, K, B, 4 * H)
        parts = (acts, *acts.chunk(4, -1), states, cells, fresh, squashed)
        total, i, f, g, o, h, c, new, bent = (part.unbind(0) for part in parts)
        for t in range(T):
            torch.baddbmm(now[t], h[t], weight, out=total[t])
            torch.tanh(g[t], out=new[t])
            total[t].sigmoid_()  # and with it i, f, o
            torch.addcmul(i[t] * new[t], f[t], c[t], out=c[t + 1])
            torch.tanh(c[t + 1], out=bent[t])
            torch.mul(o[t], bent[t], out=h[t + 1])
        kept = [part.transpose(0, 1) for part in (states, cells, acts, fresh, squashed)]
        ctx.save_for_backward(*kept, w_hh)
        return kept[0][:, 1:], c[T]

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_c: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Gradients of gates and w_hh."""
        states, cells, acts, fresh, squashed, w_hh = ctx.saved_tensors
        K, T, B, H = squashed.shape
        i, f, _, o = acts.chunk(4, -1)
        slope = torch.addcmul(acts, acts, acts, value=-1)
        s_i, s_f, _, s_o = slope.chunk(4, -1)
        slope_c = torch.addcmul(o, o, squashed * squashed, value=-1).unbind(1)
        slope_g = torch.addcmul(i, i, fresh * fresh, value=-1)
        by_cell = torch.stack([fresh * s_i, cells[:, :-1] * s_f, slope_g], 3).unbind(1)
        by_state, kept, grads = (squashed * s_o).unbind(1), f.unbind(1), grad.unbind(1)
        work = fresh.new_empty(K, T, B, 4, H)
        d_ifg, d_o = work[:, :, :, :3].unbind(1), work[:, :, :, 3].unbind(1)
        d_gates = work.view(K, T, B, 4 * H)
        rows = d_gates.unbind(1)
        dh, dc = grads[-1], grad_c
        for t in range(T - 1, -1, -1):
            dc = torch.addcmul(dc, dh, slope_c[t])
            torch.mul(dc.unsqueeze(2), by_cell[t], out=d_ifg[t])
            torch.mul(dh, by_state[t], out=d_o[t])
            if t:
                dc = dc * kept[t]
                dh = torch.baddbmm(grads[t - 1], rows[t], w_hh)
        flat = d_gates.view(K, T * B, 4 * H)
        before = states[:, :-1].reshape(K, T * B, H)
        return d_gates, torch.bmm(flat.transpose(1, 2), before)


def lstm_sequence(x: Tensor, w: Weights, name: str) -> State:
    """All members in one product per step."""
    gates = input_gates(x, w[f"{name}.b_ih"] + w[f"{name}.b_hh"], w[f"{name}.w_ih"])
    return LstmSequence.apply(gates, w[f"{name}.w_hh"])


def lstm_fused(x: Tensor, w: Weights, name: str) -> State:
    """The same layer as a loop over torch's fused cell: two launches a step."""
    tied = Tied(w[f"{name}.w_hh"], w[f"{name}.b_hh"])
    gates = input_gates(x, w[f"{name}.b_ih"], w[f"{name}.w_ih"])
    h = c = gates.new_zeros(gates.shape[0], gates.shape[2], w[f"{name}.w_hh"].shape[-1])
    states = []
    for now in _by_time(gates):
        h, c = lstm_cell(now, tied(h), c)
        states.append(h)
    return torch.stack(states, 1), c


def _by_time(gates: Tensor) -> tuple[Tensor, ...]:
    """[K, T, B, gates x H] as T whole blocks [K, B, gates x H]: one copy here, or a launch in every step."""
    return gates.transpose(0, 1).contiguous().unbind(0)


def _by_hand(x: Tensor, w: Weights, name: str) -> State:
    """Explicit gates, autograd through every step: the readable reference."""
    gates = input_gates(x, w[f"{name}.b_ih"], w[f"{name}.w_ih"])
    h = c = gates.new_zeros(gates.shape[0], gates.shape[2], w[f"{name}.w_hh"].shape[-1])
    states = []
    for now in gates.unbind(1):
        hidden = torch.baddbmm(w[f"{name}.b_hh"], h, w[f"{name}.w_hh"].transpose(1, 2))
        h, c = lstm_cell_by_hand(now, hidden, c)
        states.append(h)
    return torch.stack(states, 1), c


def _onednn(x: Tensor, w: Weights, name: str) -> State:
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
