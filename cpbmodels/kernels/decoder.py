"""The decoders of `gru` and `lstm` on an NVIDIA GPU: a step is a launch per layer (`cells`) and one for the rest.

The rest is attention over the encoder, the output map and what is fed back. Weight gradients are formed once, over all
steps. Keys carry no bias: softmax does not see what is added to all scores of a query.

Shapes: K members, B windows (forward any number, backward a multiple of 16), T encoder states, at most 64, S steps, H
hidden values (a power of 2 from 16 to 256), 4 outputs (the head `point`), heads a power of 2. An attention program
serves one window of one member. Scores, shares, outputs and their gradients are float32, as are all sums; states,
queries and attended values are stored in the compute dtype.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from cpbmodels.arch.base import Batch
from cpbmodels.arch.gru import Gru
from cpbmodels.arch.layers import Draws, Weights
from cpbmodels.arch.lstm import Lstm
from cpbmodels.arch.recurrent import lstm
from cpbmodels.kernels.attention import _memory_back, _step_attend, _step_attend_back
from cpbmodels.kernels.cells import gru_step, gru_step_back, lstm_step, lstm_step_back, parts, query, row_sums
from cpbmodels.kernels.recurrent import gru
from cpbmodels.kernels.support import launch, product

OUTPUTS = 4
ATTENTION_WARPS, MEMORY_WARPS = 1, 4
"""Measured on an H100 at the gru's sizes, and at no other.

Attention takes 187 us with 1 warp and 276 with 4, the memory's gradient 165 and 134; with 2, which is 128 sums a thread
instead of 64, 1,970."""
VALUES = 4096
"""States x hidden values for so many warps: 32 x 128, the gru's. More take more: with 1, the backward attention of 64 x
256 spilled 1,216 bytes a thread (sm_90), with 4 none; the memory's gradient spills 784 with the 16 it may have."""


_Memory = tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]
"""Keys, values, b_v, w_out, b_out of a `_Decoder`."""


class _DecoderDraws:
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
        self, batch: Batch, draw: _DecoderDraws, steps: int, heads: int, memory: _Memory, layers: int
    ) -> None:
        self.keys, self.values, self.b_v, self.w_out, self.b_out = memory
        self.truth, self.draw, self.S, self.heads = batch.truth, draw, steps, heads
        (self.K, self.B), self.H = batch.start.shape[:2], self.keys.shape[-1]
        self.T = self.keys.shape[1] // self.B
        K, S, B, H, new = self.K, steps, self.B, self.H, batch.start.new_empty
        self.xs = new(K, S + 1, B + B % 2, OUTPUTS)[:, :, :B]  # every step at a multiple of 16 bytes
        # xs[:, s + 1] is written by the attention of step s: what is fed back, or the truth.
        self.xs[:, 0] = batch.start
        self.hs = [new(K, S + 1, B, H) for _ in range(layers)]
        self.acts = [new(K, S, B, 4 * H) for _ in range(layers)]
        # Without dropout a layer reads the states below as they are: no copy.
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
            _step_attend,
            (self.K * self.B,),
            *parts(self.hs[-1][:, step + 1], query, self.keys, self.values, self.b_v, self.w_out, self.b_out),
            truth,
            *strides,
            forced,
            *((0, 0) if forced is None else forced.stride()[:2]),
            self.raw,
            self.shares,
            *parts(self.kept[:, step], self.xs[:, step + 1]),
            self.keys.stride(1),
            (self.H // self.heads) ** -0.5,
            step,
            self.B,
            self.S,
            **self.sizes(ATTENTION_WARPS),
        )

    def attend_back(self, grads: tuple[Tensor, ...], w_ih: Tensor, d_q: Tensor | None, step: int) -> None:
        """grads: that of raw, d_raw, d_scores, d_h [K, B, H], d_gates of the next step, as in `_step_attend_back`."""
        grad, d_raw, d_scores, d_h, d_gates = grads
        forced = self.draw.forced
        launch(
            _step_attend_back,
            (self.K * self.B,),
            grad,
            d_raw,
            self.raw,
            *parts(d_gates, w_ih),
            forced,
            *((0, 0) if forced is None else forced.stride()[:2]),
            *parts(self.keys, self.values, self.w_out),
            self.shares,
            d_scores,
            *parts(d_h, d_q),
            self.keys.stride(1),
            (self.H // self.heads) ** -0.5,
            step,
            self.B,
            self.S,
            G=w_ih.shape[1] // self.H,
            **self.sizes(ATTENTION_WARPS),
        )

    def memory_back(
        self, d_raw: Tensor, d_scores: Tensor, q: Tensor, d_keys: Tensor, d_values: Tensor
    ) -> Tensor:
        """Fill d_keys and d_values from all queries q [K, S, B, H]; returns b_v's gradient [K, 1, H]."""
        of_bias = self.raw.new_empty(self.K, self.B, self.H)
        launch(
            _memory_back,
            (self.K * self.B,),
            d_raw,
            q,
            *q.stride()[:2],
            *parts(self.w_out),
            self.shares,
            d_scores,
            *parts(d_keys, d_values),
            of_bias,
            d_keys.stride(1),
            self.B,
            S=self.S,
            **self.sizes(MEMORY_WARPS),
        )
        return of_bias.sum(1, keepdim=True).to(q.dtype)

    def out_back(self, d_raw: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of w_out and b_out over all steps."""
        top = self.hs[-1][:, 1:]
        grad = d_raw.transpose(1, 2).to(top.dtype)  # [K, S, B, 4]
        # [h, attended] w_out^T as two products: the two halves lie in different buffers.
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
        ctx: Any,
        batch: Batch,
        draw: _DecoderDraws,
        steps: int,
        keys: Tensor,
        values: Tensor,
        b_key: Tensor,
        w_out: Tensor,
        b_out: Tensor,
        *rest: Tensor,
    ) -> Tensor:
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
        # After the last step there is no later gate: its gradients are zeros, so that one kernel serves all steps.
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
        ctx: Any,
        batch: Batch,
        draw: _DecoderDraws,
        steps: int,
        heads: int,
        memory: Tensor,
        b_v: Tensor,
        w_out: Tensor,
        b_out: Tensor,
        w_q: Tensor,
        b_q: Tensor,
        *rest: Tensor,
    ) -> Tensor:
        L, H = len(rest) // 5, w_q.shape[-1]
        layers = [tuple(rest[2 * L + 3 * i : 2 * L + 3 * i + 3]) for i in range(L)]
        decoder = _Decoder(
            batch, draw, steps, heads, (memory[..., :H], memory[..., H:], b_v, w_out, b_out), L
        )
        K, B = decoder.K, decoder.B
        cells = [decoder.raw.new_empty(K, steps + 1, B, H) for _ in layers]
        for i in range(L):
            decoder.hs[i][:, 0], cells[i][:, 0] = rest[2 * i], rest[2 * i + 1]
        queries = torch.empty_like(decoder.kept)
        for s in range(steps):
            for i, (h, c, acts) in enumerate(zip(decoder.hs, cells, decoder.acts, strict=True)):
                to = h[:, s + 1], c[:, s + 1], acts[:, s], *decoder.dropped(i, s)
                lstm_step(decoder.read(i, s), h[:, s], c[:, s], layers[i], *to)  # type: ignore[arg-type]
            query(decoder.hs[-1][:, s + 1], w_q, b_q, queries[:, s])
            decoder.attend(queries[:, s], s)
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
    drawn = _DecoderDraws(model, batch, last[-1], draws)
    return _GruSteps.apply(batch, drawn, model.head.steps, *memory, *last, *weights)


def lstm_forward(model: Lstm, batch: Batch, w: Weights, draws: Draws | None) -> Tensor:
    """`Lstm.forward` over the kernels, after an encoder of torch's cells (why: `cpbmodels.arch.recurrent`)."""
    states, last = lstm(batch.inputs, w, model.layers("encoder"), model.options.dropout, draws, manual=False)
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
    drawn = _DecoderDraws(model, batch, last[-1][0], draws)
    steps, heads = model.head.steps, model.options.n_heads
    return _LstmSteps.apply(batch, drawn, steps, heads, *attention, *first, *weights)
