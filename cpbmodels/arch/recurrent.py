"""Recurrent encoders with a member axis: x [K, B, T, in] -> [K, B, T, H], state starting at zero.

K members, B windows, T candles, H hidden values. The same layer exists several times, because each device has a
different bottleneck; tests hold them equal to torch's nn.GRU and nn.LSTM, forward and backward.

- CPU: `GruSequence` and `LstmSequence`, one autograd node per layer with backpropagation through time written by
  hand. In the backward loop only dh_t (and dc_t) wait for the step after; everything else (the slopes of the gate
  functions, products of saved values, the weights' gradients) is computed for all steps at once. Four (GRU) or five
  (LSTM) operations per step are left, a third of autograd's.
- GPU: the same over torch's fused cells (`GruFused`, `LstmFused`): what counts there is launches, and each layer takes
  5 (GRU) or 4 (LSTM) a step, forward and backward together. A product with a bias copies it into the result first, so
  biases are laid out for all steps in one launch and the products are added in place.
- CPU, wide LSTMs: oneDNN's kernel, one member after another, which beats any batched product there.
- `lstm-manual`: every gate written out, all of it left to autograd.
- GPU with kernels: `cpbmodels.kernels.recurrent.gru`. The LSTM's encoder stays on torch's cells there: on an H100, step
  kernels in the encoder under a decoder on torch's path once gave 2 members other bits than 3, and why is not known.

Which of them runs depends on device, width and architecture only, and the order of every sum is fixed: a change of
either changes the last bits of trained models.
"""

from typing import Any

import torch
from torch import Tensor

from cpbmodels.arch.decoder import State, lstm_cell_by_hand
from cpbmodels.arch.layers import Draws, PerRow, Weights, biased, dropout, on_gpu
from cpbmodels.arch.options import Preset
from cpbmodels.arch.torch_private import (
    fused_gru_cell,
    fused_gru_cell_backward,
    fused_lstm_cell,
    fused_lstm_cell_backward,
    lstm_kernel,
)

MIN_ONEDNN_WIDTH = 48  # hidden width from which oneDNN's LSTM per member beats the batched product on a CPU


def gru(
    x: Tensor, w: Weights, names: list[str], rate: PerRow, draws: Draws | None
) -> tuple[Tensor, list[Tensor]]:
    """Stacked GRU with dropout between layers: all top states [K, B, T, H], and each layer's last state [K, B, H]."""
    last = []
    x = x.transpose(1, 2)  # [K, T, B, in]
    layer = GruFused if on_gpu(x) else GruSequence
    for depth, name in enumerate(names):
        gates = input_gates(dropout(x, rate if depth else 0.0, draws), w[f"{name}.b_ih"], w[f"{name}.w_ih"])
        x = layer.apply(gates, w[f"{name}.w_hh"], w[f"{name}.b_hh"])
        last.append(x[:, -1])
    return x.transpose(1, 2), last


def no_kernels(options: Preset, heads: int) -> str:
    """Why `cpbmodels.kernels` cannot run a recurrent encoder and its decoder with these options; "" if they can."""
    H = options.hidden_dim
    if not 16 <= H <= 256 or H & (H - 1) or heads & (heads - 1):
        return "hidden_dim (16 to 256) and n_heads must be powers of 2"
    if options.context > 64:
        return "more than 64 candles of context"
    return ""


def lstm(
    x: Tensor, w: Weights, names: list[str], rate: PerRow, draws: Draws | None, *, manual: bool = False
) -> tuple[Tensor, list[State]]:
    """Stacked LSTM with dropout between layers: all top states [K, B, T, H], and each layer's last (h, c)."""
    last: list[State] = []
    wide = w[f"{names[0]}.w_hh"].shape[-1] >= MIN_ONEDNN_WIDTH
    layer = _lstm_by_hand if manual else _lstm_onednn if wide and not on_gpu(x) else _lstm_together
    x = x.transpose(1, 2)
    for depth, name in enumerate(names):
        x, cell = layer(dropout(x, rate if depth else 0.0, draws), w, name)
        last.append((x[:, -1], cell))
    return x.transpose(1, 2), last


def input_gates(x: Tensor, bias: Tensor, weight: Tensor) -> Tensor:
    """x [K, T, B, in] -> [K, T, B, gates x H]: the part of the gates that needs no state, for all steps at once."""
    K, T, B, _ = x.shape
    return biased(bias, x.reshape(K, T * B, -1), weight.transpose(1, 2)).view(K, T, B, -1)


class GruSequence(torch.autograd.Function):
    """All steps of one GRU layer from its input gates [K, T, B, 3H]. Equations: `decoder._GruCell`."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, w_hh: Tensor, b_hh: Tensor) -> Tensor:
        """States [K, T, B, H]; w_hh [K, 3H, H], b_hh [K, 1, 3H]."""
        K, T, B, H = *gates.shape[:3], w_hh.shape[-1]
        weight, (i_rz, i_n) = w_hh.transpose(1, 2), gates.split([2 * H, H], -1)
        i_rz, i_n = i_rz.unbind(1), i_n.unbind(1)
        h = gates.new_zeros(K, B, H)
        states, rz, g_n, n = [h], [], [], []
        for t in range(T):
            g_rz, g_new = torch.baddbmm(b_hh, h, weight).split([2 * H, H], -1)
            rz.append((i_rz[t] + g_rz).sigmoid_())
            g_n.append(g_new)
            r, z = rz[t].chunk(2, -1)
            n.append(torch.addcmul(i_n[t], r, g_n[t]).tanh_())
            h = torch.lerp(n[t], h, z)
            states.append(h)
        out = torch.stack(states, 1)  # [K, T + 1, B, H], the zero state first
        ctx.save_for_backward(out, *(torch.stack(part, 1) for part in (rz, g_n, n)), w_hh)
        return out[:, 1:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of gates, w_hh and b_hh from those of the states, grad [K, T, B, H].

        With dh_t the whole gradient of state t and (w_r, w_z, w_n) the blocks of w_hh, one step is

            da_n = dh_t * (1 - z)(1 - n^2)             da_z = dh_t * (h_{t-1} - n) z (1 - z)
            da_r = da_n * g_n r (1 - r)                dg_n = da_n * r
            dh_{t-1} = grad_{t-1} + dh_t * z + da_z w_z + da_r w_r + dg_n w_n

        The factors behind dh_t and da_n depend on saved values only, so they are computed for all t before the loop:
        `by_state` [2] and `by_new` [2]. Each pair of results is written side by side into `work` [K, T, B, 4, H] in
        the order da_n, da_z, da_r, dg_n: its last three blocks are then one row [K, B, 3H] for the product with the
        weights, reordered to (w_z, w_r, w_n), without a copy.
        """
        states, rz, g_n, n, w_hh = ctx.saved_tensors
        K, T, B, H = n.shape
        r, z = rz.chunk(2, -1)
        slope_n = torch.addcmul(1 - z, 1 - z, n * n, value=-1)  # (1 - z)(1 - n^2)
        slope_z = (states[:, :-1] - n) * torch.addcmul(z, z, z, value=-1)
        slope_r = g_n * torch.addcmul(r, r, r, value=-1)
        by_state = torch.stack([slope_n, slope_z], 3).unbind(1)  # per step [K, B, 2, H]: times dh_t
        by_new = torch.stack([slope_r, r], 3).unbind(1)  # per step [K, B, 2, H]: times da_n
        work = n.new_empty(K, T, B, 4, H)
        d_n_z = work[:, :, :, :2].unbind(1)
        d_r_gn = work[:, :, :, 2:].unbind(1)
        d_n = work[:, :, :, :1].unbind(1)
        d_hidden = work.view(K, T, B, 4 * H)[..., H:].unbind(1)  # da_z, da_r, dg_n
        w_r, w_z, w_n = w_hh.chunk(3, 1)
        weight = torch.cat([w_z, w_r, w_n], 1)
        grads, z_steps = grad.unbind(1), z.unbind(1)
        dh = grads[-1]
        for t in range(T - 1, -1, -1):
            torch.mul(dh.unsqueeze(2), by_state[t], out=d_n_z[t])
            torch.mul(d_n[t], by_new[t], out=d_r_gn[t])
            if t:
                dh = torch.baddbmm(torch.addcmul(grads[t - 1], dh, z_steps[t]), d_hidden[t], weight)
        da_n, da_z, da_r, dg_n = work.unbind(3)
        flat = torch.cat([da_r, da_z, dg_n], -1).view(K, T * B, 3 * H)  # gradient of the hidden gates
        before = states[:, :-1].reshape(K, T * B, H)
        d_weight = torch.bmm(flat.transpose(1, 2), before)
        return torch.cat([da_r, da_z, da_n], -1), d_weight, flat.sum(1, keepdim=True)


class GruFused(torch.autograd.Function):
    """The same layer over torch's fused cell. Per step: one product and one cell, backwards one more addition."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, w_hh: Tensor, b_hh: Tensor) -> Tensor:
        """States [K, T, B, H]; gates [K, T, B, 3H], w_hh [K, 3H, H], b_hh [K, 1, 3H]."""
        K, T, B, H = *gates.shape[:3], w_hh.shape[-1]
        weight, now = w_hh.transpose(1, 2), _by_time(gates)
        hidden = b_hh.expand(T, K, B, 3 * H).contiguous().unbind(0)
        h = gates.new_zeros(K, B, H)
        states, saved = [h], []
        for t in range(T):
            if t:  # the first state is zero, so its gates are the bias
                hidden[t].baddbmm_(h, weight)
            flat, workspace = fused_gru_cell(now[t].flatten(0, 1), hidden[t].flatten(0, 1), h.flatten(0, 1))
            h = flat.view(K, B, H)
            states.append(h)
            saved.append(workspace)
        out = torch.stack(states, 1)  # [K, T + 1, B, H], the zero state first
        ctx.save_for_backward(out, w_hh, *saved)
        return out[:, 1:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of gates, w_hh and b_hh from those of the states, grad [K, T, B, H].

        The cell's backward kernel gives those of both kinds of gates and the part of dL/dh_{t-1} that bypasses the
        gates; the rest is grad_{t-1} and (gradient of the hidden gates) w_hh.
        """
        states, w_hh, *saved = ctx.saved_tensors
        K, T, B, H = grad.shape
        grads = _by_time_copy(grad)
        d_inputs: list[Tensor] = [grad] * T
        d_hidden: list[Tensor] = [grad] * T
        dh = grads[-1]
        for t in range(T - 1, -1, -1):
            d_inputs[t], d_hidden[t], d_h, _, _ = fused_gru_cell_backward(dh.flatten(0, 1), saved[t], False)
            if t:
                dh = grads[t - 1].add_(d_h.view(K, B, H)).baddbmm_(d_hidden[t].view(K, B, 3 * H), w_hh)
        d_gates, flat = (
            torch.stack([part.view(K, B, 3 * H) for part in parts], 1) for parts in (d_inputs, d_hidden)
        )
        flat = flat.view(K, T * B, 3 * H)
        before = states[:, :-1].reshape(K, T * B, H)
        return d_gates, torch.bmm(flat.transpose(1, 2), before), flat.sum(1, keepdim=True)


class LstmSequence(torch.autograd.Function):
    """All steps of one LSTM layer from its gates [K, T, B, 4H] (all biases added). Equations: `decoder.lstm_gates`."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, w_hh: Tensor) -> State:
        """States [K, T, B, H] and the last cell state [K, B, H]; w_hh [K, 4H, H].

        Everything is written with `out=` into tensors that hold all steps, time first: the backward pass needs them
        stacked, and stacking afterwards would copy them.
        """
        K, T, B, H = *gates.shape[:3], w_hh.shape[-1]
        weight, now = w_hh.transpose(1, 2), gates.unbind(1)
        states, cells = gates.new_zeros(2, T + 1, K, B, H)  # h_0 = c_0 = 0
        new, tanh_cells = gates.new_empty(2, T, K, B, H)  # g = tanh(a_g), and tanh(c_t)
        acts = gates.new_empty(T, K, B, 4 * H)  # i, f, -, o after the sigmoid; block g is not used
        parts = (acts, *acts.chunk(4, -1), states, cells, new, tanh_cells)
        total, i, f, a_g, o, h, c, g, tanh_c = (part.unbind(0) for part in parts)
        for t in range(T):
            torch.baddbmm(now[t], h[t], weight, out=total[t])
            torch.tanh(a_g[t], out=g[t])  # before the sigmoid overwrites a_g
            total[t].sigmoid_()  # i, f and o are views of it
            torch.addcmul(i[t] * g[t], f[t], c[t], out=c[t + 1])
            torch.tanh(c[t + 1], out=tanh_c[t])
            torch.mul(o[t], tanh_c[t], out=h[t + 1])
        # [K, T, B, ..] again
        saved = [part.transpose(0, 1) for part in (states, cells, acts, new, tanh_cells)]
        ctx.save_for_backward(*saved, w_hh)
        return saved[0][:, 1:], c[T]

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_c: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of gates and w_hh from those of the states, grad [K, T, B, H], and of the last cell state.

        With dh_t and dc_t the whole gradients of state and cell state t, one step is

            dc_t    += dh_t * o (1 - tanh(c_t)^2)
            da_i = dc_t * g i (1 - i)       da_f = dc_t * c_{t-1} f (1 - f)
            da_g = dc_t * i (1 - g^2)       da_o = dh_t * tanh(c_t) o (1 - o)
            dc_{t-1} = dc_t * f             dh_{t-1} = grad_{t-1} + (da_i, da_f, da_g, da_o) w_hh

        The factors behind dh_t and dc_t depend on saved values only and are computed for all t before the loop:
        `slope_c`, `by_cell` (i, f, g stacked) and `by_state` (o).
        """
        states, cells, acts, g, tanh_c, w_hh = ctx.saved_tensors
        K, T, B, H = tanh_c.shape
        i, f, _, o = acts.chunk(4, -1)
        slope = torch.addcmul(acts, acts, acts, value=-1)  # y (1 - y) of every sigmoid
        slope_i, slope_f, _, slope_o = slope.chunk(4, -1)
        slope_c = torch.addcmul(o, o, tanh_c * tanh_c, value=-1).unbind(1)  # o (1 - tanh(c)^2)
        slope_g = torch.addcmul(i, i, g * g, value=-1)  # i (1 - g^2)
        by_cell = torch.stack([g * slope_i, cells[:, :-1] * slope_f, slope_g], 3).unbind(1)
        by_state, f_steps, grads = (tanh_c * slope_o).unbind(1), f.unbind(1), grad.unbind(1)
        work = g.new_empty(K, T, B, 4, H)  # da_i, da_f, da_g, da_o
        d_ifg, d_o = work[:, :, :, :3].unbind(1), work[:, :, :, 3].unbind(1)
        d_gates = work.view(K, T, B, 4 * H)
        rows = d_gates.unbind(1)
        dh, dc = grads[-1], grad_c
        for t in range(T - 1, -1, -1):
            dc = torch.addcmul(dc, dh, slope_c[t])
            torch.mul(dc.unsqueeze(2), by_cell[t], out=d_ifg[t])
            torch.mul(dh, by_state[t], out=d_o[t])
            if t:
                dc = dc * f_steps[t]
                dh = torch.baddbmm(grads[t - 1], rows[t], w_hh)
        flat = d_gates.view(K, T * B, 4 * H)
        before = states[:, :-1].reshape(K, T * B, H)
        return d_gates, torch.bmm(flat.transpose(1, 2), before)


class LstmFused(torch.autograd.Function):
    """The same layer over torch's fused cell. Per step: one product and one cell, forward and backward alike."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, w_hh: Tensor) -> State:
        """States [K, T, B, H] and the last cell state [K, B, H]; gates [K, T, B, 4H] with all biases added."""
        K, T, B, H = *gates.shape[:3], w_hh.shape[-1]
        weight, now = w_hh.transpose(1, 2), _by_time(gates)
        h = c = gates.new_zeros(K, B, H)
        states, cells, saved = [h], [c.flatten(0, 1)], []
        for t in range(T):
            hidden = torch.bmm(h, weight).flatten(0, 1)
            flat, next_c, workspace = fused_lstm_cell(now[t].flatten(0, 1), hidden, cells[t])
            h = flat.view(K, B, H)
            states.append(h)
            cells.append(next_c)
            saved.append(workspace)
        out = torch.stack(states, 1)  # [K, T + 1, B, H], the zero state first
        ctx.save_for_backward(out, w_hh, *cells, *saved)
        return out[:, 1:], cells[-1].view(K, B, H)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_c: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of gates and w_hh from those of the states, grad [K, T, B, H], and of the last cell state.

        dL/dh_{t-1} is grad_{t-1} and (gradient of the gates) w_hh, added in place.
        """
        states, w_hh, *rest = ctx.saved_tensors
        K, T, B, H = grad.shape
        cells, saved = rest[: T + 1], rest[T + 1 :]
        grads = _by_time_copy(grad)
        d_gates: list[Tensor] = [grad] * T
        d_c = grad_c.reshape(K * B, H)
        dh = grads[-1]
        for t in range(T - 1, -1, -1):
            d_gates[t], d_c, _ = fused_lstm_cell_backward(
                dh.flatten(0, 1), d_c, cells[t], cells[t + 1], saved[t], False
            )
            if t:
                dh = grads[t - 1].baddbmm_(d_gates[t].view(K, B, 4 * H), w_hh)
        stacked = torch.stack([part.view(K, B, 4 * H) for part in d_gates], 1)
        before = states[:, :-1].reshape(K, T * B, H)
        d_weight = torch.bmm(stacked.view(K, T * B, 4 * H).transpose(1, 2), before)
        return stacked, d_weight


def _by_time(gates: Tensor) -> tuple[Tensor, ...]:
    """[K, T, B, ..] as T whole blocks [K, B, ..]: one copy here, or a launch in every step."""
    return gates.transpose(0, 1).contiguous().unbind(0)


def _by_time_copy(grad: Tensor) -> tuple[Tensor, ...]:
    """The same for newly allocated memory, to be added to in place."""
    return grad.transpose(0, 1).clone(memory_format=torch.contiguous_format).unbind(0)


def _lstm_together(x: Tensor, w: Weights, name: str) -> State:
    """All members in one product per step, all biases in the input gates."""
    gates = input_gates(x, w[f"{name}.b_ih"] + w[f"{name}.b_hh"], w[f"{name}.w_ih"])
    return (LstmFused if on_gpu(x) else LstmSequence).apply(gates, w[f"{name}.w_hh"])


def _lstm_by_hand(x: Tensor, w: Weights, name: str) -> State:
    """Explicit gates, autograd through every step: the readable reference."""
    gates = input_gates(x, w[f"{name}.b_ih"], w[f"{name}.w_ih"])
    h = c = gates.new_zeros(gates.shape[0], gates.shape[2], w[f"{name}.w_hh"].shape[-1])
    states = []
    for now in gates.unbind(1):
        hidden = biased(w[f"{name}.b_hh"], h, w[f"{name}.w_hh"].transpose(1, 2))
        h, c = lstm_cell_by_hand(now, hidden, c)
        states.append(h)
    return torch.stack(states, 1), c


def _lstm_onednn(x: Tensor, w: Weights, name: str) -> State:
    """torch's own LSTM kernel, member by member."""
    parts = [w[f"{name}.{part}"].unbind(0) for part in ("w_ih", "w_hh", "b_ih", "b_hh")]
    outs, cells = [], []
    for windows, w_ih, w_hh, b_ih, b_hh in zip(x.unbind(0), *parts, strict=True):
        zero = windows.new_zeros(1, windows.shape[1], w_hh.shape[-1])
        flat = [w_ih, w_hh, b_ih[0], b_hh[0]]
        # has_biases, num_layers, dropout, train, bidirectional, batch_first: x is [T, B, in]
        out, _, cell = lstm_kernel(
            windows, (zero, zero), flat, True, 1, 0.0, torch.is_grad_enabled(), False, False
        )
        outs.append(out)
        cells.append(cell[0])
    return torch.stack(outs), torch.stack(cells)
