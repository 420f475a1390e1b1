"""A GRU layer on an NVIDIA GPU: all steps in one launch where its weights fit on the chip, else a launch a step.

Shapes: K members, B windows, T steps, H hidden values, a power of 2 from 16 to 256. A program serves all steps of one
member's rows. Precision, gate order and equations: `cpbmodels.kernels.cells`.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from cpbmodels.arch.layers import Draws, PerRow, Weights, dropout
from cpbmodels.kernels.cells import (
    _get4,
    _gru_cell,
    _gru_cell_back,
    _put3,
    gru_step,
    gru_step_back,
    parts,
    row_sums,
)
from cpbmodels.kernels.support import launch, product, shared_bytes

WHOLE_LAYER_WIDTH = 128
"""Hidden width up to which a layer's recurrent weights fit on the chip."""
WHOLE_LAYER_BYTES = 180_224
"""Shared memory that the layer's backward pass needs at H = 128 (176,128 on sm_90); below it, a launch per step."""
FORWARD, BACKWARD = (16, 4, 1), (32, 8, 2)
"""Rows of a program, warps and pipeline stages of the layer in one launch: the fastest of those tried on an H100."""


@triton.jit(do_not_specialize=["B"])
def _gru_layer(
    gates,
    b_ih,
    s_bi,
    w_hh,
    s_hh,
    b_hh,
    s_bh,
    states,
    acts,
    B,
    T: tl.constexpr,
    H: tl.constexpr,
    BM: tl.constexpr,
):
    """states [K, T, B, H] and acts [K, T, B, 4H] (r, z, n, g_n) of all steps, from gates [K, T, B, 3H] without bias."""
    k = tl.program_id(0).to(tl.int64)
    rows = tl.minimum(tl.program_id(1) * BM + tl.arange(0, BM), B - 1)
    u = tl.arange(0, H)
    kind = states.dtype.element_ty
    # [H, H] each, transposed by the order of the places: h [BM, H] w^T. They stay on the chip for all T steps.
    wp = w_hh + k * s_hh + u[None, :] * H + u[:, None]
    w_r, w_z, w_n = tl.load(wp), tl.load(wp + H * H), tl.load(wp + 2 * H * H)
    bi, bh = b_ih + k * s_bi + u, b_hh + k * s_bh + u
    b_r = tl.load(bi).to(tl.float32) + tl.load(bh).to(tl.float32)
    b_z = tl.load(bi + H).to(tl.float32) + tl.load(bh + H).to(tl.float32)
    b_n, b_g = tl.load(bi + 2 * H).to(tl.float32), tl.load(bh + 2 * H).to(tl.float32)
    h = tl.zeros([BM, H], tl.float32)  # carried in float32: what is stored is rounded, what is carried is not
    at = (k * T * B + rows)[:, None]  # rows of step 0 in [K, T, B]; the next step's lie B further
    for _ in range(T):
        gp = gates + at * (3 * H) + u[None, :]
        i_r, i_z, i_n = tl.load(gp), tl.load(gp + H), tl.load(gp + 2 * H)
        rounded = h.to(kind)
        a_r = tl.dot(rounded, w_r).to(tl.float32) + b_r[None, :] + i_r.to(tl.float32)
        a_z = tl.dot(rounded, w_z).to(tl.float32) + b_z[None, :] + i_z.to(tl.float32)
        g_n = tl.dot(rounded, w_n).to(tl.float32) + b_g[None, :]
        r, z, n, h = _gru_cell(a_r, a_z, i_n.to(tl.float32) + b_n[None, :], g_n, h)
        tl.store(states + at * H + u[None, :], h.to(kind))
        kept = acts + at * (4 * H) + u[None, :]
        _put3(kept, H, r, z, n)
        tl.store(kept + 3 * H, g_n.to(kind))
        at += B


@triton.jit(do_not_specialize=["B"])
def _gru_layer_back(
    grad, w_hh, s_hh, states, acts, d_in, d_hid, sums, B, T: tl.constexpr, H: tl.constexpr, BM: tl.constexpr
):
    """d_in, d_hid [K, T, B, 3H] from grad [K, T, B, H]; sums float32 [K, programs, 4H]: over all steps and the
    program's rows, the gradients of a_r, a_z, a_n and of g_n."""
    k = tl.program_id(0).to(tl.int64)
    rows = tl.program_id(1) * BM + tl.arange(0, BM)
    u = tl.arange(0, H)
    kind = states.dtype.element_ty
    wp = w_hh + k * s_hh + u[:, None] * H + u[None, :]  # [H, H] as stored: d_gate [BM, H] w
    w_r, w_z, w_n = tl.load(wp), tl.load(wp + H * H), tl.load(wp + 2 * H * H)
    d_h = tl.zeros([BM, H], tl.float32)
    # The biases' gradients, row by row [BM, H]: reduced once after the loop, and by the caller over programs.
    sum_r = tl.zeros([BM, H], tl.float32)
    sum_z = tl.zeros([BM, H], tl.float32)
    sum_n = tl.zeros([BM, H], tl.float32)
    sum_g = tl.zeros([BM, H], tl.float32)
    for back in range(T):
        t = T - 1 - back
        at = ((k * T + t) * B + rows)[:, None]
        d_h += tl.load(grad + at * H + u[None, :]).to(tl.float32)
        r, z, n, g_n = _get4(acts + at * (4 * H) + u[None, :], H)
        # The state before step 0 is zero: a mask, because the place (at - B) is then another member's.
        # Of tensors alone, t B + row >= B where t > 0: `& (t > 0)` makes an integer mask in Triton's interpreter.
        there = (t * B + rows >= B)[:, None] & (u >= 0)[None, :]
        before = tl.load(states + (at - B) * H + u[None, :], there, other=0.0).to(tl.float32)
        d_r, d_z, d_n, d_g = _gru_cell_back(d_h, r, z, n, g_n, before)
        sum_r += d_r
        sum_z += d_z
        sum_n += d_n
        sum_g += d_g
        _put3(d_in + at * (3 * H) + u[None, :], H, d_r, d_z, d_n)
        _put3(d_hid + at * (3 * H) + u[None, :], H, d_r, d_z, d_g)
        # dL/dh before = d_h z + d_r w_r + d_z w_z + d_g w_n, carried in registers [BM, H].
        d_h = d_h * z + tl.dot(d_r.to(kind), w_r).to(tl.float32)
        d_h += tl.dot(d_z.to(kind), w_z).to(tl.float32) + tl.dot(d_g.to(kind), w_n).to(tl.float32)
    out = sums + (k * tl.num_programs(1) + tl.program_id(1)) * (4 * H) + u
    _put3(out, H, tl.sum(sum_r, 0), tl.sum(sum_z, 0), tl.sum(sum_n, 0))
    tl.store(out + 3 * H, tl.sum(sum_g, 0))


class _GruLayer(torch.autograd.Function):
    """gates [K, T, B, 3H] without bias, w_hh [K, 3H, H], biases [K, 1, 3H] -> states [K, T, B, H]."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor) -> Tensor:
        K, T, B, H = *gates.shape[:3], w_hh.shape[-1]
        states, acts = gates.new_empty(K, T, B, H), gates.new_empty(K, T, B, 4 * H)
        ctx.whole = _fits_whole(gates.device, H)
        if ctx.whole:
            rows, warps, stages = FORWARD
            launch(
                _gru_layer,
                (K, triton.cdiv(B, rows)),
                gates,
                *parts(b_ih, w_hh, b_hh),
                states,
                acts,
                B,
                T=T,
                H=H,
                BM=rows,
                num_warps=warps,
                num_stages=stages,
            )
        else:
            h = gates.new_zeros(K, B, H)
            for t in range(T):
                gru_step(gates[:, t], None, h, (w_hh, w_hh, b_ih, b_hh), states[:, t], acts[:, t])
                h = states[:, t]
        ctx.save_for_backward(states, acts, w_hh)
        return states

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        states, acts, w_hh = ctx.saved_tensors
        K, T, B, H = states.shape
        grad = grad.contiguous()
        d_in, d_hid = (grad.new_empty(K, T, B, 3 * H) for _ in range(2))
        if ctx.whole:
            rows, warps, stages = BACKWARD
            rows = rows if B % rows == 0 else 16
            sums = torch.empty(K, B // rows, 4 * H, device=grad.device, dtype=torch.float32)
            launch(
                _gru_layer_back,
                (K, B // rows),
                grad,
                *parts(w_hh),
                states,
                acts,
                d_in,
                d_hid,
                sums,
                B,
                T=T,
                H=H,
                BM=rows,
                num_warps=warps,
                num_stages=stages,
            )
            total = sums.sum(1, keepdim=True).to(grad.dtype)
            d_ih, d_hh = total[..., : 3 * H], torch.cat([total[..., : 2 * H], total[..., 3 * H :]], -1)
        else:
            zero, after = grad.new_zeros(K, B, H), grad.new_zeros(K, B, 3 * H)
            carry = torch.zeros(K, B, H, device=grad.device, dtype=torch.float32)
            for t in range(T - 1, -1, -1):
                before = states[:, t - 1] if t else zero
                to = d_in[:, t], d_hid[:, t]
                gru_step_back(grad[:, t], None, None, after, w_hh, acts[:, t], before, carry, *to)
                after = d_hid[:, t]
            d_ih, d_hh = row_sums(d_in), row_sums(d_hid)
        # dw = sum over t of d_hid_t^T h_(t-1): rows B .. T B of d_hid [T B, 3H] beside rows 0 .. (T - 1) B of states.
        later = d_hid.view(K, T * B, 3 * H)[:, B:].transpose(1, 2)
        return d_in, torch.bmm(later, states.view(K, T * B, H)[:, : (T - 1) * B]), d_ih, d_hh


def _fits_whole(device: torch.device, H: int) -> bool:
    """Whether one program can hold a layer's recurrent weights."""
    return H <= WHOLE_LAYER_WIDTH and shared_bytes(device) >= WHOLE_LAYER_BYTES


def gru(
    x: Tensor, w: Weights, names: list[str], rate: PerRow, draws: Draws | None
) -> tuple[Tensor, list[Tensor]]:
    """`cpbmodels.arch.recurrent.gru` over the kernels, but with top states [K, T, B, H]; x is [K, B, T, in]."""
    last = []
    x = x.transpose(1, 2)
    for depth, name in enumerate(names):
        x = dropout(x, rate if depth else 0.0, draws)
        gates = product(x.flatten(1, 2), w[f"{name}.w_ih"].transpose(1, 2)).unflatten(1, x.shape[1:3])
        x = _GruLayer.apply(gates, w[f"{name}.w_hh"], w[f"{name}.b_ih"], w[f"{name}.b_hh"])
        last.append(x[:, -1])
    return x, last
