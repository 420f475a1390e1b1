"""Attention over short sequences: one program for a member's window and head, everything between loads and stores kept
on the chip.

Shapes: K members, B windows, S queries and T keys, heads of width W, d = heads x W. S, T and W are at most 64: so many
float32 scores are 32 registers of a thread.
Queries, keys and values come without their biases, which are added here and rounded to the products' dtype. Products
add up in float32; scores and shares are float32, shares rounded before the product with the values, as torch does it.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from cpbmodels.kernels.support import launch, partial_sums, summed

_QKV = tuple[Tensor, ...]
"""Of queries, keys and values. Their rows [K, B x S or T, d] may lie apart, those of keys and values equally."""


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
    q,
    k,
    v,
    bias_q,
    bias_k,
    bias_v,
    B,
    s_q,
    s_k,
    s_bias_q,
    s_bias_k,
    HEADS: tl.constexpr,
    S: tl.constexpr,
    T: tl.constexpr,
    W: tl.constexpr,
    BS: tl.constexpr,
    BT: tl.constexpr,
    BW: tl.constexpr,
):
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
    q,
    k,
    v,
    bias_q,
    bias_k,
    bias_v,
    out,
    B,
    s_q,
    s_k,
    s_bias_q,
    s_bias_k,
    scale,
    HEADS: tl.constexpr,
    S: tl.constexpr,
    T: tl.constexpr,
    W: tl.constexpr,
    BS: tl.constexpr,
    BT: tl.constexpr,
    BW: tl.constexpr,
    CAUSAL: tl.constexpr,
):
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
    q,
    k,
    v,
    bias_q,
    bias_k,
    bias_v,
    d_out,
    d_q,
    d_k,
    d_v,
    part_q,
    part_k,
    part_v,
    B,
    s_q,
    s_k,
    s_bias_q,
    s_bias_k,
    s_dq,
    s_dk,
    scale,
    HEADS: tl.constexpr,
    S: tl.constexpr,
    T: tl.constexpr,
    W: tl.constexpr,
    BS: tl.constexpr,
    BT: tl.constexpr,
    BW: tl.constexpr,
    CAUSAL: tl.constexpr,
):
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


def _attend(given: _QKV, biases: _QKV, steps: int, heads: int, causal: bool) -> Tensor:
    """[K, B x S, d] from q, k, v and their biases [K, 1, d]; S = steps."""
    (K, N, d), q, k = given[0].shape, given[0], given[1]
    B = N // steps
    out = torch.empty(K, N, d, device=q.device, dtype=q.dtype)
    launch(
        _attention,
        (K * B * heads,),
        *given,
        *biases,
        out,
        B,
        q.stride(1),
        k.stride(1),
        biases[0].stride(0),
        biases[1].stride(0),
        (d // heads) ** -0.5,
        **_constants(steps, k.shape[1] // B, d, heads, causal),
    )
    return out


def _attend_back(
    given: _QKV, biases: _QKV, d_out: Tensor, grads: _QKV, parts: _QKV, steps: int, heads: int, causal: bool
) -> None:
    """Fill grads, as far apart as `parts` [K, B, d]: the biases' sums by window, in float32."""
    (K, N, d), q, k = given[0].shape, given[0], given[1]
    B = N // steps
    launch(
        _attention_backward,
        (K * B * heads,),
        *given,
        *biases,
        d_out.contiguous(),
        *grads,
        *parts,
        B,
        q.stride(1),
        k.stride(1),
        biases[0].stride(0),
        biases[1].stride(0),
        grads[0].stride(1),
        grads[1].stride(1),
        (d // heads) ** -0.5,
        **_constants(steps, k.shape[1] // B, d, heads, causal),
    )


class _SelfAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, bias: Tensor, T: int, heads: int, causal: bool) -> Tensor:
        qkv, ctx.sizes = qkv.contiguous(), (T, heads, causal)
        ctx.save_for_backward(qkv, bias)
        return _attend(qkv.chunk(3, -1), bias.chunk(3, -1), T, heads, causal)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        qkv, bias = ctx.saved_tensors
        d_qkv, part = torch.empty_like(qkv), partial_sums(qkv, qkv.shape[1] // ctx.sizes[0])
        given, grads, parts = (tensor.chunk(3, -1) for tensor in (qkv, d_qkv, part))
        _attend_back(given, bias.chunk(3, -1), d_out, grads, parts, *ctx.sizes)
        return d_qkv, summed(part, bias), None, None, None


self_attention: Any = _SelfAttention.apply
"""(qkv [K, B x T, 3d] without its bias, bias [K, 1, 3d], T, heads, whether causal) -> [K, B x T, d]."""


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


cross_attention: Any = _CrossAttention.apply
"""(q [K, B x S, d], its bias [K, 1, d], kv [K, B x T, 2d] whose rows may lie apart, its bias [K, 1, 2d], S, heads)
-> [K, B x S, d]."""


@triton.jit(do_not_specialize=["n", "B", "s_window"])
def _one_query(
    q,
    k,
    v,
    bias_q,
    bias_k,
    bias_v,
    out,
    n,
    B,
    s_q,
    r_q,
    s_member,
    s_window,
    s_step,
    s_bias_q,
    s_bias_k,
    scale,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    BT: tl.constexpr,
):
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
        _one_query,
        (K * B,),
        q,
        *kv.split(d, -1),
        bias_q,
        *bias_kv.split(d, -1),
        out,
        seen,
        B,
        *q.stride()[:2],
        *kv.stride()[:3],
        bias_q.stride(0),
        bias_kv.stride(0),
        (d // heads) ** -0.5,
        HEADS=heads,
        D=d,
        BT=triton.next_power_of_2(kv.shape[2]),
        num_warps=4,
    )
    return out


# --- A step of a recurrent decoder: attention over the encoder, the output map and what is fed back. ------------------
# Launched by `decoder`, which says the shapes; with `tl.constexpr` OUT outputs of the head `point`.


@triton.jit(do_not_specialize=["s_bo", "s_tk", "s_tb", "s_fk", "s_fb", "s_n", "step", "B", "S"])
def _step_attend(
    h,
    s_h,
    q,
    s_q,
    keys,
    s_kk,
    values,
    s_vk,
    b_v,
    s_bv,
    w_out,
    s_wo,
    b_out,
    s_bo,
    truth,
    s_tk,
    s_tb,
    forced,
    s_fk,
    s_fb,
    raw,
    shares,
    kept,
    s_at,
    after,
    s_n,
    row,
    scale,
    step,
    B,
    S,
    HEADS: tl.constexpr,
    H: tl.constexpr,
    T: tl.constexpr,
    BT: tl.constexpr,
    OUT: tl.constexpr,
):
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
def _step_attend_back(
    grad,
    d_raw,
    raw,
    d_gates,
    s_dg,
    w_ih,
    s_ih,
    forced,
    s_fk,
    s_fb,
    keys,
    s_kk,
    values,
    s_vk,
    w_out,
    s_wo,
    shares,
    d_scores,
    d_h,
    s_dh,
    d_q,
    s_dq,
    row,
    scale,
    step,
    B,
    S,
    HEADS: tl.constexpr,
    H: tl.constexpr,
    T: tl.constexpr,
    BT: tl.constexpr,
    OUT: tl.constexpr,
    G: tl.constexpr,
):
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
def _memory_back(
    d_raw,
    q,
    s_qk,
    s_qs,
    w_out,
    s_wo,
    shares,
    d_scores,
    d_keys,
    s_kk,
    d_values,
    s_vk,
    of_bias,
    row,
    B,
    HEADS: tl.constexpr,
    H: tl.constexpr,
    T: tl.constexpr,
    BT: tl.constexpr,
    OUT: tl.constexpr,
    S: tl.constexpr,
):
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
