"""The decoders of `gru` and `lstm` on an NVIDIA GPU: a step is a launch per layer (`recurrent`) and one for the rest.

The rest is attention over the encoder, the output map and what is fed back. Weight gradients are formed once, over all
steps. Keys carry no bias: softmax does not see what is added to all scores of a query.

Shapes: K members, B windows (forward any number, backward a multiple of 16), T encoder states, at most 64, S steps, H
hidden values (a power of 2 from 16 to 256), 4 outputs (the head `point`), heads a power of 2. An attention program
serves one window of one member. Scores, shares, outputs and their gradients are float32, as are all sums; states,
queries and attended values are stored in the compute dtype.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from cpbmodels.arch.base import Batch
from cpbmodels.arch.decoder import State
from cpbmodels.arch.layers import Draws, Weights
from cpbmodels.kernels.recurrent import (
    gru,
    gru_step,
    gru_step_back,
    lstm_step,
    lstm_step_back,
    parts,
    row_sums,
    step_tiles,
)
from cpbmodels.kernels.support import launch, product

if TYPE_CHECKING:
    from cpbmodels.arch.gru import Gru
    from cpbmodels.arch.lstm import Lstm

OUTPUTS = 4
ATTENTION_WARPS, MEMORY_WARPS = 1, 4
"""Measured on an H100 with a prototype at the gru's sizes, and at no other.

Attention takes 187 us with 1 warp and 276 with 4, the memory's gradient 165 and 134; with 2, which is 128 sums a thread
instead of 64, 1,970."""
VALUES = 4096
"""States x hidden values for so many warps: 32 x 128, the gru's. More take more: with 1, the backward attention of 64 x
256 spilled 1,216 bytes a thread (sm_90), with 4 none; the memory's gradient spills 784 with the 16 it may have."""


@triton.jit(do_not_specialize=["s_bo", "s_tk", "s_tb", "s_fk", "s_fb", "s_n", "step", "B", "S"])
def _attend(h, s_h, q, s_q, keys, s_kk, values, s_vk, b_v, s_bv, w_out, s_wo, b_out, s_bo, truth, s_tk, s_tb, forced,
            s_fk, s_fb, raw, shares, kept, s_at, after, s_n, row, scale, step, B, S, HEADS: tl.constexpr,
            H: tl.constexpr, T: tl.constexpr, BT: tl.constexpr, OUT: tl.constexpr):  # fmt: skip
    """raw [K, B, S, OUT] at `step` = [h, attended] w_out^T + b_out, attended = softmax(q k^T scale) v + b_v.

    h, q [B, H], w_out [OUT, 2H]; keys and values of state t and window b are rows t B + b, `row` values apart. Kept:
    shares [K, B, S, BT, HEADS] and attended values [B, H]. after [B, OUT]: what the next step reads, the truth
    [B, S, OUT] where forced [B, S], else `Head.feedback` of raw."""
    window = tl.program_id(0).to(tl.int64)
    k, b = window // B, window % B
    D: tl.constexpr = H // HEADS
    c, t, o, head = tl.arange(0, H), tl.arange(0, BT), tl.arange(0, OUT), tl.arange(0, HEADS)
    at = (t[:, None] * B + b) * row + c[None, :]  # [BT, H]: this window's states, B rows apart
    seen = (t < T)[:, None] & (c >= 0)[None, :]
    query = tl.load(q + k * s_q + b * H + c).to(tl.float32)
    key = tl.load(keys + k * s_kk + at, seen, other=0.0).to(tl.float32)
    # One query a window: sums of products [BT, HEADS, D] over D, where a tile of tl.dot would be 15/16 empty.
    scores = tl.sum(tl.reshape(key * query[None, :], [BT, HEADS, D]), 2) * scale
    scores = tl.where((t < T)[:, None], scores, float("-inf"))
    share = tl.exp(scores - tl.max(scores, 0)[None, :])
    share /= tl.sum(share, 0)[None, :]
    tl.store(shares + ((window * S + step) * BT + t)[:, None] * HEADS + head[None, :], share)
    value = tl.load(values + k * s_vk + at, seen, other=0.0).to(tl.float32)
    # [BT, HEADS, D] over BT, the heads side by side again: [H]. The shares add up to 1, so b_v is added once.
    attended = tl.reshape(tl.sum(tl.reshape(value, [BT, HEADS, D]) * share[:, :, None], 0), [H])
    if b_v is not None:
        attended += tl.load(b_v + k * s_bv + c).to(tl.float32)
    tl.store(kept + k * s_at + b * H + c, attended.to(kept.dtype.element_ty))
    state = tl.load(h + k * s_h + b * H + c).to(tl.float32)
    # [OUT, H] each: the half of w_out for h and, H further, the half for attended.
    wp = w_out + k * s_wo + o[:, None] * (2 * H) + c[None, :]
    out = tl.sum(tl.load(wp).to(tl.float32) * state[None, :], 1)
    out += tl.sum(tl.load(wp + H).to(tl.float32) * attended[None, :], 1)
    out += tl.load(b_out + k * s_bo + o).to(tl.float32)
    tl.store(raw + (window * S + step) * OUT + o, out)
    # `Head.feedback` of the head point, [OUT]: softplus(raw - 1) of the wicks 2 and 3, linear above 20 as torch's.
    wick = out - 1
    fed = tl.where(wick > 20, wick, tl.log(1 + tl.exp(tl.minimum(wick, 20.0))))
    fed = tl.where(o >= 2, fed, out)
    if forced is not None:
        true = tl.load(truth + k * s_tk + b * s_tb + step * OUT + o).to(tl.float32)
        fed = tl.where(tl.load(forced + k * s_fk + b * s_fb + step) != 0, true, fed)
    tl.store(after + k * s_n + b * OUT + o, fed.to(after.dtype.element_ty))


@triton.jit(do_not_specialize=["s_fk", "s_fb", "step", "B", "S"])
def _attend_back(grad, d_raw, raw, d_gates, s_dg, w_ih, s_ih, forced, s_fk, s_fb, keys, s_kk, values, s_vk, w_out,
                 s_wo, shares, d_scores, d_h, s_dh, d_q, s_dq, row, scale, step, B, S, HEADS: tl.constexpr,
                 H: tl.constexpr, T: tl.constexpr, BT: tl.constexpr, OUT: tl.constexpr,
                 G: tl.constexpr):  # fmt: skip
    """d_h, d_q [B, H] and d_scores (as shares, times scale) at `step`, and d_raw [K, B, S, OUT] there: `grad` and
    what reached raw by way of the next step.

    d_gates [B, G H]: gradient of the next step's first gates, which read through w_ih [G H, OUT] what was fed back.
    Without d_q, q is h itself and d_h the sum of both. It writes where it reads nothing: all warps hold the few values
    of d_raw, so that in place one of them could read what another has already written."""
    window = tl.program_id(0).to(tl.int64)
    k, b = window // B, window % B
    D: tl.constexpr = H // HEADS
    c, t, o, head = tl.arange(0, H), tl.arange(0, BT), tl.arange(0, OUT), tl.arange(0, HEADS)
    # dL/d(fed back) [OUT] = d_gates [G H] w_ih [G H, OUT], gate by gate; zero at the last step.
    fed = tl.zeros([OUT], tl.float32)
    for g in tl.static_range(G):
        of_gate = tl.load(d_gates + k * s_dg + b * (G * H) + g * H + c).to(tl.float32)
        weight = tl.load(w_ih + k * s_ih + (g * H + c)[None, :] * OUT + o[:, None]).to(tl.float32)
        fed += tl.sum(of_gate[None, :] * weight, 1)
    out = (window * S + step) * OUT + o
    # Through `Head.feedback`: softplus' = sigmoid; and nothing comes back where the truth was read instead.
    fed = tl.where(o >= 2, tl.sigmoid(tl.load(raw + out) - 1) * fed, fed)
    if forced is not None:
        fed = tl.where(tl.load(forced + k * s_fk + b * s_fb + step) != 0, 0.0, fed)
    d_out = tl.load(grad + out) + fed
    tl.store(d_raw + out, d_out)
    wp = w_out + k * s_wo + o[:, None] * (2 * H) + c[None, :]
    # [OUT, H] over OUT: both halves of d_out w_out.
    of_state = tl.sum(tl.load(wp).to(tl.float32) * d_out[:, None], 0)
    of_attended = tl.sum(tl.load(wp + H).to(tl.float32) * d_out[:, None], 0)
    at = (t[:, None] * B + b) * row + c[None, :]
    seen = (t < T)[:, None] & (c >= 0)[None, :]
    value = tl.load(values + k * s_vk + at, seen, other=0.0).to(tl.float32)
    of_share = tl.sum(tl.reshape(value * of_attended[None, :], [BT, HEADS, D]), 2)
    place = ((window * S + step) * BT + t)[:, None] * HEADS + head[None, :]
    share = tl.load(shares + place)
    # Derivative of softmax over the states [BT], by head: ds = a (da - sum(a da)).
    of_score = share * (of_share - tl.sum(share * of_share, 0)[None, :]) * scale
    tl.store(d_scores + place, of_score)
    key = tl.load(keys + k * s_kk + at, seen, other=0.0).to(tl.float32)
    of_query = tl.reshape(tl.sum(tl.reshape(key, [BT, HEADS, D]) * of_score[:, :, None], 0), [H])
    if d_q is None:
        of_state += of_query
    else:
        tl.store(d_q + k * s_dq + b * H + c, of_query.to(d_q.dtype.element_ty))
    tl.store(d_h + k * s_dh + b * H + c, of_state.to(d_h.dtype.element_ty))


@triton.jit(do_not_specialize=["B"])
def _memory_back(d_raw, q, s_qk, s_qs, w_out, s_wo, shares, d_scores, d_keys, s_kk, d_values, s_vk, of_bias, row, B,
                 HEADS: tl.constexpr, H: tl.constexpr, T: tl.constexpr, BT: tl.constexpr, OUT: tl.constexpr,
                 S: tl.constexpr):  # fmt: skip
    """Gradients of keys and values over all steps, laid out as these; of_bias [K, B, H]: of the attended values."""
    window = tl.program_id(0).to(tl.int64)
    k, b = window // B, window % B
    D: tl.constexpr = H // HEADS
    c, t, o, head = tl.arange(0, H), tl.arange(0, BT), tl.arange(0, OUT), tl.arange(0, HEADS)
    # [OUT, H], for attended
    weight = tl.load(w_out + k * s_wo + o[:, None] * (2 * H) + H + c[None, :]).to(tl.float32)
    # Sums over steps s of ds_s q_s and a_s d_attended_s, outer products by head; on the chip until the last step.
    of_key = tl.zeros([BT, HEADS, D], tl.float32)
    of_value = tl.zeros([BT, HEADS, D], tl.float32)
    total = tl.zeros([H], tl.float32)
    for s in range(S):
        query = tl.load(q + k * s_qk + s * s_qs + b * H + c).to(tl.float32)  # [H]
        of_attended = tl.sum(weight * tl.load(d_raw + (window * S + s) * OUT + o)[:, None], 0)
        place = ((window * S + s) * BT + t)[:, None] * HEADS + head[None, :]
        of_key += tl.load(d_scores + place)[:, :, None] * tl.reshape(query, [1, HEADS, D])
        of_value += tl.load(shares + place)[:, :, None] * tl.reshape(of_attended, [1, HEADS, D])
        total += of_attended
    at = (t[:, None] * B + b) * row + c[None, :]
    seen = (t < T)[:, None] & (c >= 0)[None, :]
    tl.store(d_keys + k * s_kk + at, tl.reshape(of_key, [BT, H]).to(d_keys.dtype.element_ty), seen)
    tl.store(d_values + k * s_vk + at, tl.reshape(of_value, [BT, H]).to(d_values.dtype.element_ty), seen)
    tl.store(of_bias + window * H + c, total)


@triton.jit(do_not_specialize=["B"])
def _query(x, s_x, w, s_w, bias, s_b, out, s_o, B, H: tl.constexpr, BM: tl.constexpr, BU: tl.constexpr,
           BK: tl.constexpr):  # fmt: skip
    """out [B, H] = x [B, H] w^T + bias, w [H, H]."""
    k = tl.program_id(0).to(tl.int64)
    u = tl.program_id(1) * BU + tl.arange(0, BU)
    rows = tl.minimum(tl.program_id(2) * BM + tl.arange(0, BM), B - 1)
    sums = tl.zeros([BM, BU], tl.float32)
    for start in range(0, H, BK):
        columns = start + tl.arange(0, BK)
        part = tl.load(x + k * s_x + rows[:, None] * H + columns[None, :])  # [BM, BK] times [BK, BU]
        sums += tl.dot(part, tl.load(w + k * s_w + u[None, :] * H + columns[:, None])).to(tl.float32)
    sums += tl.load(bias + k * s_b + u).to(tl.float32)[None, :]
    tl.store(out + k * s_o + rows[:, None] * H + u[None, :], sums.to(out.dtype.element_ty))


_Memory = tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]
"""Keys, values, b_v, w_out, b_out of a `_Decoder`."""


class _Drawn:
    """Draws of one pass: forced int8 [K, B, S] and factors [K, S, layers - 1, B, H], or None."""

    def __init__(self, model: Gru | Lstm, batch: Batch, like: Tensor, draws: Draws | None) -> None:
        self.factors = model.decoder_factors(like, draws)
        forced = model.forced_steps(batch, draws)
        self.forced = None if forced is None else forced.view(torch.int8)


class _Decoder:
    """Buffers of one pass over all steps, and the launches of attention.

    keys, values [K, T x B, H], rows t B + b; b_v [K, 1, H] or None; w_out [K, 4, 2H]; xs [K, S + 1, B, 4]: what each
    step reads. hs [K, S + 1, B, H] and acts [K, S, B, 4H] by layer; inputs [K, S, B, H]: what layer i + 1 reads.
    """

    def __init__(
        self, batch: Batch, draw: _Drawn, steps: int, heads: int, memory: _Memory, layers: int
    ) -> None:
        self.keys, self.values, self.b_v, self.w_out, self.b_out = memory
        self.truth, self.draw, self.S, self.heads = batch.truth, draw, steps, heads
        (self.K, self.B), self.H = batch.start.shape[:2], self.keys.shape[-1]
        self.T = self.keys.shape[1] // self.B
        K, S, B, H, new = self.K, steps, self.B, self.H, batch.start.new_empty
        self.xs = new(K, S + 1, B + B % 2, OUTPUTS)[:, :, :B]  # every step at a multiple of 16 bytes
        self.xs[:, 0] = batch.start
        self.hs = [new(K, S + 1, B, H) for _ in range(layers)]
        self.acts = [new(K, S, B, 4 * H) for _ in range(layers)]
        apart = draw.factors is not None
        self.inputs = [new(K, S, B, H) if apart else states[:, 1:] for states in self.hs[:-1]]
        self.kept = new(K, S, B, H)
        self.raw = torch.empty(K, B, S, OUTPUTS, device=self.xs.device, dtype=torch.float32)
        self.width = triton.next_power_of_2(self.T)
        self.shares = self.raw.new_empty(K, B, S, self.width, heads)

    def sizes(self, warps: int) -> dict[str, int]:
        """Constants that the attention's kernels share; `warps` for `VALUES`."""
        sizes = {"HEADS": self.heads, "H": self.H, "T": self.T, "BT": self.width, "OUT": OUTPUTS}
        return {**sizes, "num_warps": warps * max(1, self.width * self.H // VALUES)}

    def read(self, layer: int, step: int) -> Tensor:
        """What a layer reads at a step."""
        return self.inputs[layer - 1][:, step] if layer else self.xs[:, step]

    def dropped(self, layer: int, step: int) -> tuple[Tensor | None, Tensor | None]:
        """Dropout factors [K, B, H] between a layer and the next, and the place of the product."""
        if self.draw.factors is None or layer == len(self.inputs):
            return None, None
        return self.draw.factors[:, step, layer], self.inputs[layer][:, step]

    def attend(self, query: Tensor, step: int) -> None:
        """Raw output of a step from the top state, and what the next step reads."""
        truth = self.truth if self.draw.forced is not None else None
        strides = (0, 0) if truth is None else truth.stride()[:2]
        forced = self.draw.forced
        launch(
            _attend, (self.K * self.B,),
            *parts(self.hs[-1][:, step + 1], query, self.keys, self.values, self.b_v, self.w_out, self.b_out),
            truth, *strides, forced, *((0, 0) if forced is None else forced.stride()[:2]),
            self.raw, self.shares, *parts(self.kept[:, step], self.xs[:, step + 1]),
            self.keys.stride(1), (self.H // self.heads) ** -0.5, step, self.B, self.S, **self.sizes(ATTENTION_WARPS),
        )  # fmt: skip

    def attend_back(self, grads: tuple[Tensor, ...], w_ih: Tensor, d_q: Tensor | None, step: int) -> None:
        """grads: that of raw, d_raw, d_scores, d_h [K, B, H], d_gates of the next step, as in `_attend_back`."""
        grad, d_raw, d_scores, d_h, d_gates = grads
        forced = self.draw.forced
        launch(
            _attend_back, (self.K * self.B,), grad, d_raw, self.raw, *parts(d_gates, w_ih),
            forced, *((0, 0) if forced is None else forced.stride()[:2]),
            *parts(self.keys, self.values, self.w_out), self.shares, d_scores, *parts(d_h, d_q),
            self.keys.stride(1), (self.H // self.heads) ** -0.5, step, self.B, self.S,
            G=w_ih.shape[1] // self.H, **self.sizes(ATTENTION_WARPS),
        )  # fmt: skip

    def memory_back(
        self, d_raw: Tensor, d_scores: Tensor, q: Tensor, d_keys: Tensor, d_values: Tensor
    ) -> Tensor:
        """Fill d_keys and d_values from all queries q [K, S, B, H]; returns b_v's gradient [K, 1, H]."""
        of_bias = self.raw.new_empty(self.K, self.B, self.H)
        launch(
            _memory_back, (self.K * self.B,), d_raw, q, *q.stride()[:2], *parts(self.w_out), self.shares, d_scores,
            *parts(d_keys, d_values), of_bias, d_keys.stride(1), self.B, S=self.S, **self.sizes(MEMORY_WARPS),
        )  # fmt: skip
        return of_bias.sum(1, keepdim=True).to(q.dtype)

    def out_back(self, d_raw: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of w_out and b_out over all steps."""
        top = self.hs[-1][:, 1:]
        grad = d_raw.transpose(1, 2).to(top.dtype)  # [K, S, B, 4]
        weights = [_over_steps(part, grad) for part in (top, self.kept)]  # [K, H, 4] each
        return torch.cat(weights, 1).transpose(1, 2), row_sums(d_raw).to(top.dtype)


def _over_steps(grad: Tensor, x: Tensor) -> Tensor:
    """grad^T x [K, n, m] over all rows of [K, S, B, n] and [K, S, B, m]."""
    return product(grad.flatten(1, 2).transpose(1, 2), x.flatten(1, 2))


class _GruSteps(torch.autograd.Function):
    """Raw [K, B, S, 4] of a GRU decoder whose keys and values are given; `rest`: the first state of each layer, then
    w_ih, w_hh, b_ih, b_hh of each. The key's bias is passed for its gradient, which is 0."""

    @staticmethod
    def forward(
        ctx: Any, batch: Batch, draw: _Drawn, steps: int, keys: Tensor, values: Tensor, b_key: Tensor,
        w_out: Tensor, b_out: Tensor, *rest: Tensor,
    ) -> Tensor:  # fmt: skip
        L = len(rest) // 5
        layers = [tuple(rest[L + 4 * i : L + 4 * i + 4]) for i in range(L)]
        decoder = _Decoder(batch, draw, steps, 1, (keys, values, None, w_out, b_out), L)
        for h, first in zip(decoder.hs, rest, strict=False):
            h[:, 0] = first
        for s in range(steps):
            for i, (h, acts) in enumerate(zip(decoder.hs, decoder.acts, strict=True)):
                x, to = decoder.read(i, s), (h[:, s + 1], acts[:, s])
                gru_step(None, x, h[:, s], layers[i], *to, *decoder.dropped(i, s))  # type: ignore[arg-type]
            decoder.attend(decoder.hs[-1][:, s + 1], s)
        ctx.decoder, ctx.weights = decoder, [layer[:2] for layer in layers]
        return decoder.raw.detach()  # else the node would hold its own output, a cycle

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        decoder, weights = ctx.decoder, ctx.weights
        K, B, S, H = decoder.K, decoder.B, decoder.S, decoder.H
        grad, d_scores = grad.contiguous(), torch.empty_like(decoder.shares)
        d_raw = torch.empty_like(grad)
        d_in, d_hid = ([decoder.xs.new_empty(K, S, B, 3 * H) for _ in decoder.hs] for _ in range(2))
        carry = [decoder.raw.new_zeros(K, B, H) for _ in decoder.hs]
        zero, d_h = decoder.xs.new_zeros(K, B, 3 * H), decoder.xs.new_empty(K, B, H)
        for s in range(S - 1, -1, -1):
            last = s + 1 == S
            after = zero if last else d_in[0][:, s + 1]
            decoder.attend_back((grad, d_raw, d_scores, d_h, after), weights[0][0], None, s)
            add, out = d_h, None
            for i in range(len(decoder.hs) - 1, -1, -1):
                after = zero if last else d_hid[i][:, s + 1]
                before, to = decoder.hs[i][:, s], (carry[i], d_in[i][:, s], d_hid[i][:, s])
                gru_step_back(
                    add,
                    out,
                    decoder.dropped(i, s)[0],
                    after,
                    weights[i][1],
                    decoder.acts[i][:, s],
                    before,
                    *to,
                )
                add, out = None, (d_in[i][:, s], weights[i][0])
        top = decoder.hs[-1][:, 1:]
        d_keys, d_values = torch.empty_like(decoder.keys), torch.empty_like(decoder.keys)
        decoder.memory_back(d_raw, d_scores, top, d_keys, d_values)
        d_first, d_layers = [], []
        for i, (w, hidden, gates) in enumerate(zip(weights, d_hid, d_in, strict=True)):
            d_first.append(torch.bmm(hidden[:, 0], w[1]).add_(carry[i]))
            x, before = decoder.inputs[i - 1] if i else decoder.xs[:, :S], decoder.hs[i][:, :S]
            d_layers += [
                _over_steps(gates, x),
                _over_steps(hidden, before),
                row_sums(gates),
                row_sums(hidden),
            ]
        # What is added to all scores of a query changes no share, so the key's bias has no gradient.
        d_key_bias = decoder.xs.new_zeros(K, 1, H)
        return None, None, None, d_keys, d_values, d_key_bias, *decoder.out_back(d_raw), *d_first, *d_layers


class _LstmSteps(torch.autograd.Function):
    """Raw [K, B, S, 4] of an LSTM decoder; memory [K, T x B, 2H]: keys and values side by side; `rest`: the first h
    and c of each layer, then w_ih, w_hh and the sum of both biases of each."""

    @staticmethod
    def forward(
        ctx: Any, batch: Batch, draw: _Drawn, steps: int, heads: int, memory: Tensor, b_v: Tensor, w_out: Tensor,
        b_out: Tensor, w_q: Tensor, b_q: Tensor, *rest: Tensor,
    ) -> Tensor:  # fmt: skip
        L, H = len(rest) // 5, w_q.shape[-1]
        layers = [tuple(rest[2 * L + 3 * i : 2 * L + 3 * i + 3]) for i in range(L)]
        decoder = _Decoder(
            batch, draw, steps, heads, (memory[..., :H], memory[..., H:], b_v, w_out, b_out), L
        )
        K, B = decoder.K, decoder.B
        cells = [decoder.raw.new_empty(K, steps + 1, B, H) for _ in layers]
        for i in range(L):
            decoder.hs[i][:, 0], cells[i][:, 0] = rest[2 * i], rest[2 * i + 1]
        queries, (grid, sizes) = torch.empty_like(decoder.kept), step_tiles(K, B, H)
        for s in range(steps):
            for i, (h, c, acts) in enumerate(zip(decoder.hs, cells, decoder.acts, strict=True)):
                to = h[:, s + 1], c[:, s + 1], acts[:, s], *decoder.dropped(i, s)
                lstm_step(decoder.read(i, s), h[:, s], c[:, s], layers[i], *to)  # type: ignore[arg-type]
            top, query = decoder.hs[-1][:, s + 1], queries[:, s]
            launch(_query, grid, *parts(top, w_q, b_q, query), B, **sizes)
            decoder.attend(query, s)
        ctx.decoder, ctx.weights, ctx.cells, ctx.queries = (
            decoder,
            [layer[:2] for layer in layers],
            cells,
            queries,
        )
        ctx.w_q, ctx.memory = w_q, memory
        return decoder.raw.detach()  # else the node would hold its own output, a cycle

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        decoder, weights, cells = ctx.decoder, ctx.weights, ctx.cells
        K, B, S, H = decoder.K, decoder.B, decoder.S, decoder.H
        grad, d_scores = grad.contiguous(), torch.empty_like(decoder.shares)
        d_raw = torch.empty_like(grad)
        d_gates = [decoder.xs.new_empty(K, S, B, 4 * H) for _ in decoder.hs]
        d_c = [decoder.raw.new_zeros(K, B, H) for _ in decoder.hs]
        zero, d_h, d_q = (
            decoder.xs.new_zeros(K, B, 4 * H),
            decoder.xs.new_empty(K, B, H),
            torch.empty_like(decoder.kept),
        )
        for s in range(S - 1, -1, -1):
            last = s + 1 == S
            after = zero if last else d_gates[0][:, s + 1]
            decoder.attend_back((grad, d_raw, d_scores, d_h, after), weights[0][0], d_q[:, s], s)
            add, out = d_h, (d_q[:, s], ctx.w_q)
            for i in range(len(decoder.hs) - 1, -1, -1):
                after, c = zero if last else d_gates[i][:, s + 1], (cells[i][:, s], cells[i][:, s + 1])
                given, to = (after, weights[i][1], decoder.acts[i][:, s], c), (d_c[i], d_gates[i][:, s])
                lstm_step_back(add, out, decoder.dropped(i, s)[0], *given, *to)
                add, out = None, (d_gates[i][:, s], weights[i][0])
        d_memory = torch.empty_like(ctx.memory)
        parts_of = d_memory[..., :H], d_memory[..., H:]
        d_bv = decoder.memory_back(d_raw, d_scores, ctx.queries, *parts_of)
        d_query = _over_steps(d_q, decoder.hs[-1][:, 1:]), row_sums(d_q)
        d_first, d_layers = [], []
        for i, (w, gates) in enumerate(zip(weights, d_gates, strict=True)):
            d_first += [torch.bmm(gates[:, 0], w[1]), d_c[i].to(gates.dtype)]
            x, before = decoder.inputs[i - 1] if i else decoder.xs[:, :S], decoder.hs[i][:, :S]
            d_layers += [_over_steps(gates, x), _over_steps(gates, before), row_sums(gates)]
        return None, None, None, None, d_memory, d_bv, *decoder.out_back(d_raw), *d_query, *d_first, *d_layers


def gru_forward(model: Gru, batch: Batch, w: Weights, draws: Draws | None) -> Tensor:
    """`Gru.forward` over the kernels."""
    states, last = gru(batch.inputs, w, model.layers("encoder"), model.options.dropout, draws)
    values = states.flatten(1, 2)  # the states themselves are the values
    keys = torch.bmm(values, w["key.weight"])
    weights = [
        w[f"{name}.{part}"] for name in model.layers("decoder") for part in ("w_ih", "w_hh", "b_ih", "b_hh")
    ]
    memory = keys, values, w["key.bias"], w["out.weight"], w["out.bias"]
    drawn = _Drawn(model, batch, last[-1], draws)
    return _GruSteps.apply(batch, drawn, model.head.steps, *memory, *last, *weights)


def lstm_forward(
    model: Lstm, states: Tensor, last: list[State], batch: Batch, w: Weights, draws: Draws | None
) -> Tensor:
    """`Lstm.forward` behind its encoder, whose states [K, B, T, H] and last (h, c) are given."""
    H = states.shape[-1]
    memory = torch.bmm(states.transpose(1, 2).flatten(1, 2), w["memory.weight"])
    of_state, of_attended = w["out.weight"].split(H, -1)
    # `mix` goes straight into `out`
    w_out = torch.cat([of_state, torch.bmm(of_attended, w["mix.weight"])], -1)
    # In float32: rounded to bf16, a large bias would move all outputs of a member by the same amount.
    b_out = w["out.bias"].float() + torch.bmm(w["mix.bias"], of_attended.transpose(1, 2)).float()
    weights = []
    for name in model.layers("decoder"):
        weights += [w[f"{name}.w_ih"], w[f"{name}.w_hh"], w[f"{name}.b_ih"] + w[f"{name}.b_hh"]]
    attention = memory, w["memory.bias"][..., H:], w_out, b_out, w["query.weight"], w["query.bias"]
    first = [part for state in last for part in state]
    drawn = _Drawn(model, batch, last[-1][0], draws)
    steps, heads = model.head.steps, model.options.n_heads
    return _LstmSteps.apply(batch, drawn, steps, heads, *attention, *first, *weights)
