"""What lies between a transformer's products: bias, residual, LayerNorm, GELU.

No product adds a bias of its own: broadcast into `baddbmm` it costs 1.7 to 4 times the product on an H100, so the
kernel that reads the product adds it. Shapes: K members, N rows (windows x steps), d columns, at most 256 where a
program holds whole rows; bias [K, 1, d]. Everything is contiguous but biases and weights, whose members may lie apart.
Values are loaded from, and stored in, the dtype of the products; all arithmetic and all partial sums are float32.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from cpbmodels.kernels.support import launch, partial_sums, summed

EPSILON = 1e-5  # torch's layer_norm
ROWS = 32  # rows of a program; 16 and 64 were slower by 3 and 0.5 % of a step on an H100
COLUMNS = 128  # of a program of `bias_gelu`


# --- residual + bias + LayerNorm --------------------------------------------------------------------------------------
@triton.jit(do_not_specialize=["N"])
def _tile(N, R: tl.constexpr, D: tl.constexpr, BD: tl.constexpr):
    """Places [R, BD] of this program's rows in [K, N, D], and which of them exist; program axes: member, rows."""
    k = tl.program_id(0).to(tl.int64)
    rows = tl.program_id(1) * R + tl.arange(0, R)
    cols = tl.arange(0, BD)
    return (k * N + rows)[:, None] * D + cols[None, :], (rows < N)[:, None] & (cols < D)[None, :], cols


@triton.jit
def _centred(v, mask, D: tl.constexpr, EPS: tl.constexpr):
    """Rows less their mean, and 1 / standard deviation [R]; torch's biased variance."""
    c = tl.where(mask, v - (tl.sum(v, 1) / D)[:, None], 0.0)
    return c, 1 / tl.sqrt(tl.sum(c * c, 1) / D + EPS)


@triton.jit(do_not_specialize=["N"])
def _add_norm(
    x, y, bias, total, normed, N, s_bias,
    ADDS: tl.constexpr, EPS: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """x, y, total, normed [K, N, D], bias [K, D] s_bias apart. total = x + y + bias; normed = its LayerNorm."""
    at, mask, cols = _tile(N, R, D, BD)
    # [R, BD]: whole rows, so the mean needs no second pass
    v = tl.load(x + at, mask, other=0.0).to(tl.float32)
    if ADDS:
        v += tl.load(y + at, mask, other=0.0).to(tl.float32)
        b = tl.load(bias + tl.program_id(0).to(tl.int64) * s_bias + cols, cols < D, other=0.0)
        kept = tl.where(mask, v + b.to(tl.float32)[None, :], 0.0).to(total.dtype.element_ty)
        tl.store(total + at, kept, mask)
        v = kept.to(tl.float32)  # as the backward pass will read it
    c, inverse = _centred(v, mask, D, EPS)
    tl.store(normed + at, (c * inverse[:, None]).to(normed.dtype.element_ty), mask)


@triton.jit(do_not_specialize=["N"])
def _add_norm_backward(
    total, d_normed, d_total, d_x, part, N,
    RESIDUAL: tl.constexpr, ADDS: tl.constexpr, EPS: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Gradient of x, of y and, as part [K, programs, D] by program, of the bias: all three are added up.

    With n = normed, g = dL/dn and means over D: dL/dx = (g - mean(g) - n mean(g n)) / std + dL/dtotal.
    """
    at, mask, cols = _tile(N, R, D, BD)
    c, inverse = _centred(tl.load(total + at, mask, other=0.0).to(tl.float32), mask, D, EPS)
    n = c * inverse[:, None]
    g = tl.load(d_normed + at, mask, other=0.0).to(tl.float32)
    out = (g - (tl.sum(g, 1) / D)[:, None] - n * (tl.sum(g * n, 1) / D)[:, None]) * inverse[:, None]
    if RESIDUAL:
        out += tl.load(d_total + at, mask, other=0.0).to(tl.float32)
    tl.store(d_x + at, out.to(d_x.dtype.element_ty), mask)
    if ADDS:
        # [R, BD] over this program's rows; the places of partial sums are [K, programs of a member, D].
        place = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
        tl.store(part + place * D + cols, tl.sum(tl.where(mask, out, 0.0), 0), cols < D)


def add_norm(x: Tensor, y: Tensor | None = None, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """x, y [K, N, d], bias [K, 1, d] -> (x + y + bias, its LayerNorm without scale and shift); d <= 256."""
    total, normed = _AddNorm.apply(x, y, bias)
    return total, normed


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        K, N, D = x.shape
        x = x.contiguous()
        ctx.adds = y is not None and bias is not None
        total = torch.empty_like(x) if ctx.adds else x
        normed = torch.empty_like(x)
        more = (y.contiguous(), bias) if y is not None and bias is not None else (x, x)
        launch(
            _add_norm, (K, triton.cdiv(N, ROWS)), x, *more, total, normed, N, more[1].stride(0),
            ADDS=ctx.adds, EPS=EPSILON, D=D, BD=triton.next_power_of_2(D), R=ROWS, num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(total)
        ctx.set_materialize_grads(False)
        return total if ctx.adds else x.view_as(x), normed

    @staticmethod
    def backward(ctx: Any, d_total: Tensor | None, d_normed: Tensor) -> tuple[Tensor | None, ...]:
        (total,) = ctx.saved_tensors
        K, N, D = total.shape
        d_x, d_normed = torch.empty_like(total), d_normed.contiguous()
        grid = (K, triton.cdiv(N, ROWS))
        part = partial_sums(total, grid[1]) if ctx.adds else total
        residual = d_normed if d_total is None else d_total.contiguous()
        launch(
            _add_norm_backward, grid, total, d_normed, residual, d_x, part, N,
            RESIDUAL=d_total is not None, ADDS=ctx.adds, EPS=EPSILON, D=D, BD=triton.next_power_of_2(D), R=ROWS,
            num_warps=4,
        )  # fmt: skip
        return (d_x, d_x, summed(part, total)) if ctx.adds else (d_x, None, None)


# --- bias + GELU ------------------------------------------------------------------------------------------------------
@triton.jit(do_not_specialize=["N"])
def _gelu_tile(x, bias, N, s_bias, D: tl.constexpr, BD: tl.constexpr, R: tl.constexpr):
    """x + bias [R, BD] of this program (member, rows, columns), its places, which exist, and its columns."""
    k = tl.program_id(0).to(tl.int64)
    rows = tl.program_id(1) * R + tl.arange(0, R)
    cols = tl.program_id(2) * BD + tl.arange(0, BD)
    mask = (rows < N)[:, None] & (cols < D)[None, :]
    at = (k * N + rows)[:, None] * D + cols[None, :]
    b = tl.load(bias + k * s_bias + cols, cols < D, other=0.0).to(tl.float32)
    return tl.load(x + at, mask, other=0.0).to(tl.float32) + b[None, :], at, mask, cols


@triton.jit(do_not_specialize=["N"])
def _bias_gelu(x, bias, out, N, s_bias, D: tl.constexpr, BD: tl.constexpr, R: tl.constexpr):
    """x, out [K, N, D], bias [K, D] s_bias apart: out = v / 2 (1 + erf(v / sqrt 2)) with v = x + bias."""
    v, at, mask, _cols = _gelu_tile(x, bias, N, s_bias, D, BD, R)
    tl.store(out + at, (0.5 * v * (1 + tl.erf(v * 0.7071067811865476))).to(out.dtype.element_ty), mask)


@triton.jit(do_not_specialize=["N"])
def _bias_gelu_backward(
    x, bias, d_out, d_x, part, N, s_bias, D: tl.constexpr, BD: tl.constexpr, R: tl.constexpr
):
    """d_x = d_out (Phi(v) + v phi(v)), Phi and phi the normal distribution and density; part [K, programs, D]."""
    v, at, mask, cols = _gelu_tile(x, bias, N, s_bias, D, BD, R)
    # d/dv v Phi(v) = Phi(v) + v phi(v); the constants are 1 / sqrt 2 and 1 / sqrt(2 pi).
    slope = 0.5 * (1 + tl.erf(v * 0.7071067811865476)) + v * 0.3989422804014327 * tl.exp(-0.5 * v * v)
    out = tl.load(d_out + at, mask, other=0.0).to(tl.float32) * slope
    tl.store(d_x + at, out.to(d_x.dtype.element_ty), mask)
    place = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    tl.store(part + place * D + cols, tl.sum(out, 0), cols < D)


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """x [K, N, d], bias [K, 1, d] -> gelu(x + bias), by the error function; any d."""
    out: Tensor = _BiasGelu.apply(x, bias)
    return out


class _BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        K, N, D = x.shape
        ctx.save_for_backward(x, bias)
        out = torch.empty_like(x)
        grid = (K, triton.cdiv(N, ROWS), triton.cdiv(D, COLUMNS))
        launch(_bias_gelu, grid, x, bias, out, N, bias.stride(0), D=D, BD=COLUMNS, R=ROWS, num_warps=4)
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, Tensor]:
        x, bias = ctx.saved_tensors
        K, N, D = x.shape
        d_x = torch.empty_like(x)
        grid = (K, triton.cdiv(N, ROWS), triton.cdiv(D, COLUMNS))
        part = partial_sums(x, grid[1])
        launch(
            _bias_gelu_backward, grid, x, bias, d_out.contiguous(), d_x, part, N, bias.stride(0),
            D=D, BD=COLUMNS, R=ROWS, num_warps=4,
        )  # fmt: skip
        return d_x, summed(part, x)
