"""Clip, Adam or AdamW, and the copy in the dtype of the products: two launches for all rows of a fleet.

Shapes: K members, P weights each (a multiple of 32); a program holds `BLOCK` of a member's. Gradients may be in any
dtype; weights, moments and all arithmetic are float32, the powers of both betas float64. A member's norm is the sum of
its programs' sums in a fixed order, so a row depends on no other.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from cpbmodels.kernels.support import launch

BLOCK = 4096


@triton.jit
def _squares(grad, part, steps, held, P, HELD: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """part [K, PARTS] = sums of grad [K, P] squared; counts the step in steps [K] for the launch that follows."""
    k, j = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = j * BLOCK + tl.arange(0, BLOCK)
    g = tl.load(grad + k * P + at, at < P, other=0.0).to(tl.float32)
    tl.store(part + k * PARTS + j, tl.sum(g * g, 0))  # [BLOCK] -> one of the member's PARTS sums
    if j == 0:
        taken = 1.0
        if HELD:
            taken -= tl.load(held + k)
        tl.store(steps + k, tl.load(steps + k) + taken)


@triton.jit(do_not_specialize=["s_rate"])
def _adam(
    weights,
    copy,
    grad,
    first,
    second,
    part,
    steps,
    rates,
    clips,
    decays,
    held,
    P,
    s_rate,
    B1: tl.constexpr,
    B2: tl.constexpr,
    EPS: tl.constexpr,
    LOG_B1: tl.constexpr,
    LOG_B2: tl.constexpr,
    ADAMW: tl.constexpr,
    HELD: tl.constexpr,
    COPY: tl.constexpr,
    PARTS: tl.constexpr,
    BP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """weights, copy, grad, first, second [K, P]; steps, clips, decays, held [K]; rates [K], or a scalar (s_rate 0).

    With t = steps: weight -= rate / (1 - B1^t) first / (sqrt(second / (1 - B2^t)) + EPS). held 1: row keeps all bits.
    """
    k, j = tl.program_id(0).to(tl.int64), tl.program_id(1)
    moves = True
    if HELD:
        moves = tl.load(held + k) == 0
    if moves:
        # Every program adds up its member's sums [BP] again, 78 to 452 of a seed preset, instead of a third launch.
        p = tl.arange(0, BP)
        norm = tl.sqrt(tl.sum(tl.load(part + k * PARTS + p, p < PARTS, other=0.0), 0))
        # A gradient with a NaN makes the whole row NaN, as torch's clamp does: its member then ends as diverged.
        scale = tl.minimum(tl.load(clips + k) / (norm + 1e-6), 1.0, propagate_nan=tl.PropagateNan.ALL)
        t = tl.load(steps + k).to(tl.float64)
        rate, decay = tl.load(rates + k * s_rate), tl.load(decays + k)
        # 1 - B^t with B^t = 2^(t log2 B) in float64: in float32 the first steps would lose digits at B2 = .999.
        c1 = (1 - tl.exp2(t * LOG_B1)).to(tl.float32)
        c2 = tl.sqrt(1 - tl.exp2(t * LOG_B2)).to(tl.float32)
        at = j * BLOCK + tl.arange(0, BLOCK)
        mask = at < P
        i = k * P + at
        g = tl.load(grad + i, mask, other=0.0).to(tl.float32) * scale
        x = tl.load(weights + i, mask, other=0.0)
        if ADAMW:
            x -= rate * decay * x
        else:
            g += decay * x
        m = tl.load(first + i, mask, other=0.0)
        m += (g - m) * (1 - B1)
        v = tl.load(second + i, mask, other=0.0) * B2 + (1 - B2) * g * g
        x -= rate / c1 * m / (tl.sqrt(v) / c2 + EPS)
        tl.store(first + i, m, mask)
        tl.store(second + i, v, mask)
        tl.store(weights + i, x, mask)
        if COPY:
            tl.store(copy + i, x.to(copy.dtype.element_ty), mask)


def update(
    flat: Tensor,
    copy: Tensor | None,
    grad: Tensor,
    moments: tuple[Tensor, Tensor],
    steps: Tensor,
    lr: Tensor,
    limits: tuple[Tensor, Tensor],
    held: Tensor | None,
    adamw: bool,
    betas: tuple[float, float],
    epsilon: float,
) -> None:
    """One step of all rows of flat [K, P], from an unclipped gradient [K, P]; `copy` [K, P] in the products' dtype.

    steps: float32 [K], counted up here. lr: float32 [] or [K]. limits: clip and weight decay, float32 [K].
    held: float32 [K], 1 for rows that take no step.
    """
    K, P = flat.shape
    parts = triton.cdiv(P, BLOCK)
    part = torch.empty(K, parts, device=flat.device, dtype=torch.float32)
    off = steps if held is None else held  # read by no program if held is None
    some = {"HELD": held is not None, "PARTS": parts, "BLOCK": BLOCK, "num_warps": 8}
    launch(_squares, (K, parts), grad, part, steps, off, P, **some)
    launch(
        _adam,
        (K, parts),
        flat,
        flat if copy is None else copy,
        grad,
        *moments,
        part,
        steps,
        lr,
        *limits,
        off,
        P,
        lr.stride(0) if lr.dim() else 0,
        B1=betas[0],
        B2=betas[1],
        EPS=epsilon,
        LOG_B1=math.log2(betas[0]),
        LOG_B2=math.log2(betas[1]),
        ADAMW=adamw,
        COPY=copy is not None,
        BP=triton.next_power_of_2(parts),
        **some,
    )
