"""Attention over short sequences: one program for a member's window and head, everything between loads and stores kept
on the chip.

Shapes: K members, B windows, S queries and T keys, heads of width W, d = heads x W. S, T and W are at most 64: so many
float32 scores are 32 registers of a thread.
Queries, keys and values come without their biases, which are added here and rounded to the products' dtype. Products
add up in float32; scores and shares are float32, shares rounded before the product with the values, as torch does it.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from cpbmodels.kernels.support import launch, partial_sums, summed


@triton.jit
def _head(x, bias, row, s_row, n, W: tl.constexpr, BT: tl.constexpr, BW: tl.constexpr):
    """Rows row .. row + n of a head plus its bias, [BT, BW] in the dtype of the products; zero beyond."""
    t, c = tl.arange(0, BT), tl.arange(0, BW)
    mask = (t < n)[:, None] & (c < W)[None, :]  # [BT, BW]
    v = tl.load(x + (row + t)[:, None] * s_row + c[None, :], mask, other=0.0).to(tl.float32)
    v += tl.load(bias + c, c < W, other=0.0).to(tl.float32)[None, :]
    return tl.where(mask, v, 0.0).to(x.dtype.element_ty)


@triton.jit
def _heads(
    q, k, v, bias_q, bias_k, bias_v, B, s_q, s_k, s_bias_q, s_bias_k, HEADS: tl.constexpr, S: tl.constexpr,
    T: tl.constexpr, W: tl.constexpr, BS: tl.constexpr, BT: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """This program's query [BS, BW], key and value [BT, BW], its window of K x B, and its head's first column."""
    pid = tl.program_id(0).to(tl.int64)  # a program serves a window and head: K x B x HEADS of them
    window, column = pid // HEADS, (pid % HEADS) * W
    m = window // B  # member
    qq = _head(q + column, bias_q + m * s_bias_q + column, window * S, s_q, S, W, BS, BW)
    kk = _head(k + column, bias_k + m * s_bias_k + column, window * T, s_k, T, W, BT, BW)
    vv = _head(v + column, bias_v + m * s_bias_k + column, window * T, s_k, T, W, BT, BW)
    return qq, kk, vv, window, column


@triton.jit
def _shares(q, k, scale, T: tl.constexpr, BS: tl.constexpr, BT: tl.constexpr, CAUSAL: tl.constexpr):
    """softmax(q k^T scale) [BS, BT] float32 over the T keys; causal: query i sees keys 0 .. i."""
    scores = tl.dot(q, tl.trans(k)) * scale  # [BS, BW] [BW, BT]
    i, j = tl.arange(0, BS), tl.arange(0, BT)
    # Rows beyond S see the T keys, too: a row of -inf alone would be NaN, and reach the gradients of keys and values.
    seen = (j < T)[None, :] & (i >= 0)[:, None]
    if CAUSAL:
        seen = seen & (j[None, :] <= i[:, None])
    scores = tl.where(seen, scores, float("-inf"))
    e = tl.exp(scores - tl.max(scores, 1)[:, None])  # less the row's maximum: exp stays at most 1
    return e / tl.sum(e, 1)[:, None]


@triton.jit(do_not_specialize=["B"])
def _attention(
    q, k, v, bias_q, bias_k, bias_v, out, B, s_q, s_k, s_bias_q, s_bias_k, scale,
    HEADS: tl.constexpr, S: tl.constexpr, T: tl.constexpr, W: tl.constexpr,
    BS: tl.constexpr, BT: tl.constexpr, BW: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """q [K x B x S, ..], rows s_q apart; k, v [K x B x T, ..], s_k apart; biases by member; out [K x B x S, d]."""
    qq, kk, vv, window, column = _heads(
        q, k, v, bias_q, bias_k, bias_v, B, s_q, s_k, s_bias_q, s_bias_k, HEADS, S, T, W, BS, BT, BW
    )
    y = tl.dot(_shares(qq, kk, scale, T, BS, BT, CAUSAL).to(vv.dtype), vv)  # [BS, BT] [BT, BW]
    s, c = tl.arange(0, BS), tl.arange(0, BW)
    # [BS, BW] in out: heads lie side by side
    at = (window * S + s)[:, None] * (HEADS * W) + column + c[None, :]
    tl.store(out + at, y.to(out.dtype.element_ty), (s < S)[:, None] & (c < W)[None, :])


@triton.jit
def _put(d_x, part, row, s_row, n, value, W: tl.constexpr, BT: tl.constexpr, BW: tl.constexpr):
    """Store a head's gradient [BT, BW] and, for the bias, its sum over the window's rows."""
    t, c = tl.arange(0, BT), tl.arange(0, BW)
    mask = (t < n)[:, None] & (c < W)[None, :]
    value = tl.where(mask, value, 0.0)
    tl.store(d_x + (row + t)[:, None] * s_row + c[None, :], value.to(d_x.dtype.element_ty), mask)
    tl.store(part + c, tl.sum(value, 0), c < W)


@triton.jit(do_not_specialize=["B"])
def _attention_backward(
    q, k, v, bias_q, bias_k, bias_v, d_out, d_q, d_k, d_v, part_q, part_k, part_v,
    B, s_q, s_k, s_bias_q, s_bias_k, s_dq, s_dk, scale,
    HEADS: tl.constexpr, S: tl.constexpr, T: tl.constexpr, W: tl.constexpr,
    BS: tl.constexpr, BT: tl.constexpr, BW: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """With p the shares and g = d_out: dv = p^T g, ds = p (g v^T - sum(p g v^T)) scale, dq = ds k, dk = ds^T q.

    Rows of d_q lie s_dq apart, those of d_k and d_v s_dk; the biases' partial sums, one row by window, as far.
    """
    qq, kk, vv, window, column = _heads(
        q, k, v, bias_q, bias_k, bias_v, B, s_q, s_k, s_bias_q, s_bias_k, HEADS, S, T, W, BS, BT, BW
    )
    s, c = tl.arange(0, BS), tl.arange(0, BW)
    at = (window * S + s)[:, None] * (HEADS * W) + column + c[None, :]
    g = tl.load(d_out + at, (s < S)[:, None] & (c < W)[None, :], other=0.0)  # [BS, BW], zero beyond S
    p = _shares(qq, kk, scale, T, BS, BT, CAUSAL)  # [BS, BT] float32, computed again: cheaper than stored
    d_value = tl.dot(tl.trans(p.to(vv.dtype)), g)  # [BT, BS] [BS, BW]
    _put(d_v + column, part_v + window * s_dk + column, window * T, s_dk, T, d_value, W, BT, BW)
    d_p = tl.dot(g, tl.trans(vv))  # [BS, BW] [BW, BT]
    # The derivative of softmax along a row [BT]: dp less the mean of dp by the shares, times the shares.
    d_s = (p * (d_p - tl.sum(p * d_p, 1)[:, None]) * scale).to(vv.dtype)
    d_query, d_key = tl.dot(d_s, kk), tl.dot(tl.trans(d_s), qq)  # [BS, BT] [BT, BW]; [BT, BS] [BS, BW]
    _put(d_q + column, part_q + window * s_dq + column, window * S, s_dq, S, d_query, W, BS, BW)
    _put(d_k + column, part_k + window * s_dk + column, window * T, s_dk, T, d_key, W, BT, BW)


def _constants(S: int, T: int, d: int, heads: int, causal: bool) -> dict[str, Any]:
    """A tile of a product has at least 16 rows and columns. One warp was fastest for tiles of 32 on an H100."""
    tiles = {
        name: max(triton.next_power_of_2(n), 16) for name, n in (("BS", S), ("BT", T), ("BW", d // heads))
    }
    warps = 1 if max(tiles["BS"], tiles["BT"]) <= 32 else 4
    return {"HEADS": heads, "S": S, "T": T, "W": d // heads, **tiles, "CAUSAL": causal, "num_warps": warps}


_Three = tuple[Tensor, ...]
"""Of queries, keys and values. Their rows [K, B x S or T, d] may lie apart, those of keys and values equally."""


def _attend(given: _Three, biases: _Three, steps: int, heads: int, causal: bool) -> Tensor:
    """[K, B x S, d] from q, k, v and their biases [K, 1, d]; S = steps."""
    (K, N, d), q, k = given[0].shape, given[0], given[1]
    B = N // steps
    out = torch.empty(K, N, d, device=q.device, dtype=q.dtype)
    launch(
        _attention, (K * B * heads,), *given, *biases, out, B, q.stride(1), k.stride(1),
        biases[0].stride(0), biases[1].stride(0), (d // heads) ** -0.5,
        **_constants(steps, k.shape[1] // B, d, heads, causal),
    )  # fmt: skip
    return out


def _attend_back(
    given: _Three, biases: _Three, d_out: Tensor, grads: _Three, parts: _Three, steps: int, heads: int, causal: bool
) -> None:  # fmt: skip
    """Fill grads, as far apart as `parts` [K, B, d]: the biases' sums by window, in float32."""
    (K, N, d), q, k = given[0].shape, given[0], given[1]
    B = N // steps
    launch(
        _attention_backward, (K * B * heads,), *given, *biases, d_out.contiguous(), *grads, *parts, B,
        q.stride(1), k.stride(1), biases[0].stride(0), biases[1].stride(0), grads[0].stride(1), grads[1].stride(1),
        (d // heads) ** -0.5, **_constants(steps, k.shape[1] // B, d, heads, causal),
    )  # fmt: skip


def self_attention(qkv: Tensor, bias: Tensor, steps: int, heads: int, causal: bool) -> Tensor:
    """qkv [K, B x T, 3d] without its bias, bias [K, 1, 3d] -> [K, B x T, d]."""
    out: Tensor = _SelfAttention.apply(qkv.contiguous(), bias, steps, heads, causal)
    return out


class _SelfAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, bias: Tensor, T: int, heads: int, causal: bool) -> Tensor:
        ctx.sizes = T, heads, causal
        ctx.save_for_backward(qkv, bias)
        return _attend(qkv.chunk(3, -1), bias.chunk(3, -1), T, heads, causal)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        qkv, bias = ctx.saved_tensors
        d_qkv, part = torch.empty_like(qkv), partial_sums(qkv, qkv.shape[1] // ctx.sizes[0])
        given, grads, parts = (tensor.chunk(3, -1) for tensor in (qkv, d_qkv, part))
        _attend_back(given, bias.chunk(3, -1), d_out, grads, parts, *ctx.sizes)
        return d_qkv, summed(part, bias), None, None, None


def cross_attention(q: Tensor, bias_q: Tensor, kv: Tensor, bias_kv: Tensor, steps: int, heads: int) -> Tensor:
    """q [K, B x S, d], kv [K, B x T, 2d] whose rows may lie apart, biases [K, 1, d] and [K, 1, 2d] -> [K, B x S, d]."""
    out: Tensor = _CrossAttention.apply(q, bias_q, kv, bias_kv, steps, heads)
    return out


class _CrossAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, bias_q: Tensor, kv: Tensor, bias_kv: Tensor, S: int, heads: int
    ) -> Tensor:
        ctx.sizes = S, heads, False  # causal: the encoder's candles all lie before the first step
        ctx.save_for_backward(q, bias_q, kv, bias_kv)
        return _attend((q, *kv.chunk(2, -1)), (bias_q, *bias_kv.chunk(2, -1)), *ctx.sizes)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        q, bias_q, kv, bias_kv = ctx.saved_tensors
        # d_kv is dense, whatever lies between the rows of kv: `_Memories` multiplies it layer by layer.
        d_q, d_kv = torch.empty_like(q), torch.empty(kv.shape, device=q.device, dtype=q.dtype)
        part_q, part_kv = (partial_sums(tensor, q.shape[1] // ctx.sizes[0]) for tensor in (d_q, d_kv))
        given, biases = (q, *kv.chunk(2, -1)), (bias_q, *bias_kv.chunk(2, -1))
        grads, parts = (d_q, *d_kv.chunk(2, -1)), (part_q, *part_kv.chunk(2, -1))
        _attend_back(given, biases, d_out, grads, parts, *ctx.sizes)
        return d_q, summed(part_q, bias_q), d_kv, summed(part_kv, bias_kv), None, None


@triton.jit(do_not_specialize=["n", "B", "s_window"])
def _one_query(
    q, k, v, bias_q, bias_k, bias_v, out, n, B, s_q, r_q, s_member, s_window, s_step, s_bias_q, s_bias_k, scale,
    HEADS: tl.constexpr, D: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """A window's one query over its first n <= BT keys, all heads in one program: sums of products in float32."""
    window = tl.program_id(0).to(tl.int64)
    m, b = window // B, window % B
    c, t = tl.arange(0, D), tl.arange(0, BT)
    query = tl.load(q + m * s_q + b * r_q + c).to(tl.float32)  # [D]: the heads side by side
    query += tl.load(bias_q + m * s_bias_q + c).to(tl.float32)
    at = m * s_member + b * s_window + t[:, None] * s_step + c[None, :]
    seen = (t < n)[:, None] & (c >= 0)[None, :]  # [BT, D]
    key = tl.load(k + at, seen, other=0.0).to(tl.float32)
    key += tl.load(bias_k + m * s_bias_k + c).to(tl.float32)[None, :]
    scores = tl.sum(tl.reshape(key * query[None, :], [BT, HEADS, D // HEADS]), 2) * scale  # [BT, HEADS]
    scores = tl.where((t < n)[:, None], scores, float("-inf"))
    e = tl.exp(scores - tl.max(scores, 0)[None, :])
    shares = e / tl.sum(e, 0)[None, :]  # over keys, by head
    value = tl.load(v + at, seen, other=0.0).to(tl.float32)
    value += tl.load(bias_v + m * s_bias_k + c).to(tl.float32)[None, :]
    # A product with one row would leave 15 of a tile's 16 rows empty, so these are sums: [BT, HEADS, W] over BT.
    y = tl.sum(tl.reshape(value, [BT, HEADS, D // HEADS]) * shares[:, :, None], 0)
    tl.store(out + window * D + c, tl.reshape(y, [D]).to(out.dtype.element_ty))


def one_query(q: Tensor, kv: Tensor, bias_q: Tensor, bias_kv: Tensor, seen: int, heads: int) -> Tensor:
    """q [K, B, d], kv [K, B, T, 2d], biases [K, 1, d] and [K, 1, 2d] -> [K, B, d], over the first `seen` of T keys.

    All but the last axis of q and kv may lie apart; d and heads are powers of 2. Without gradient, for validation.
    """
    K, B, d = q.shape
    out = torch.empty(K, B, d, device=q.device, dtype=q.dtype)
    launch(
        _one_query, (K * B,), q, *kv.split(d, -1), bias_q, *bias_kv.split(d, -1), out, seen, B, *q.stride()[:2],
        *kv.stride()[:3], bias_q.stride(0), bias_kv.stride(0), (d // heads) ** -0.5,
        HEADS=heads, D=d, BT=triton.next_power_of_2(kv.shape[2]), num_warps=4,
    )  # fmt: skip
    return out
