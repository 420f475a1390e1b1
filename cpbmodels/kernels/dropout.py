"""Dropout in one launch, forward or backward: the hash of `cpbmodels.arch.layers` in registers, with the same bits.

Shapes: x [K, ...] with n values for each of K members, n any number below 2^31. A program hashes `BLOCK` counters of a
member; each gives two values. Integer arithmetic is int32 and wraps, as there; a factor is rounded to x's dtype before
the product, as `Draws.factors` does, and the product is rounded once.
"""

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from typing_extensions import override

from cpbmodels.arch.layers import Draws, PerRow
from cpbmodels.kernels.support import launch

BLOCK = 1024


@triton.jit(do_not_specialize=["n", "s_key"])
def _dropout(x, keys, limits, factors, out, n, s_key, MASKS: tl.constexpr, BLOCK: tl.constexpr):
    """out [K, n] = x times 0 or its member's factor [K]; with MASKS the factors alone. keys int32 [K], s_key apart.

    Half a hash, as int16, below the member's limit int32 [K]: kept. Numbers are the int32 of those in `Draws.bits`.
    """
    k = tl.program_id(0).to(tl.int64)
    pair = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    key = tl.load(keys + k * s_key)
    # [BLOCK] int32, the steps of `Draws.bits`; numbers above 2^31 are written as the negative int32 with their bits.
    v = (pair * -1640531535) ^ key  # 0x9E3779B1
    v = (v ^ (v >> 16)) * 0x7FEB352D + key
    v = (v ^ (v >> 15)) * -0x7B935975
    v = v ^ ((v >> 16) & 0xFFFF)
    low, high = (v << 16) >> 16, v >> 16  # both halves as int16: the shift copies the sign
    j = tl.arange(0, 2)
    # [BLOCK, 2]: values 2 pair and 2 pair + 1 of the member, so that a thread stores neighbours.
    half = tl.where(j[None, :] == 0, low[:, None], high[:, None])
    at = 2 * pair[:, None] + j[None, :]
    value = tl.where(half < tl.load(limits + k), tl.load(factors + k), 0.0)
    if not MASKS:
        value *= tl.load(x + k * n + at, at < n, other=0.0).to(tl.float32)
    tl.store(out + k * n + at, value.to(out.dtype.element_ty), at < n)


class KernelDraws(Draws):
    """`Draws` bit for bit, masks and dropout in one launch each."""

    @override
    def factors(self, rate: PerRow, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        key = self.next_key()
        out = torch.empty(shape, device=key.device, dtype=dtype)
        _run(None, rate, key, out)
        return out

    @override
    def dropped(self, x: Tensor, rate: PerRow) -> Tensor:
        out: Tensor = _Dropout.apply(x, rate, self.next_key())
        return out


def _run(x: Tensor | None, rate: PerRow, key: Tensor, out: Tensor) -> None:
    K, n = out.shape[0], out[0].numel()
    if isinstance(rate, Tensor):
        limits = (((1 - rate) * 2**16).round() - 2**15).clamp(max=2**15 - 1).to(torch.int32)
        scales = (1 / (1 - rate)).to(out.dtype).float()
    else:
        limits, scales = _constants(rate, K, out.dtype, out.device)
    grid = (K, triton.cdiv(triton.cdiv(n, 2), BLOCK))
    launch(
        _dropout,
        grid,
        out if x is None else x,
        key,
        limits,
        scales,
        out,
        n,
        key.stride(0),
        MASKS=x is None,
        BLOCK=BLOCK,
        num_warps=4,
    )


@cache
def _constants(rate: float, K: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Made once: a tensor made inside a step would be a copy to the device, which a CUDA graph cannot capture."""
    limit = min(round((1 - rate) * 2**16) - 2**15, 2**15 - 1)
    scale = float(torch.tensor(1 / (1 - rate)).to(dtype))
    return torch.full((K,), limit, dtype=torch.int32, device=device), torch.full((K,), scale, device=device)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: PerRow, key: Tensor) -> Tensor:
        ctx.save_for_backward(key)
        ctx.rate = rate
        x = x.contiguous()
        _run(x, rate, key, out := torch.empty_like(x))
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, None, None]:
        (key,) = ctx.saved_tensors
        d_out = d_out.contiguous()
        _run(d_out, ctx.rate, key, d_x := torch.empty_like(d_out))
        return d_x, None, None
