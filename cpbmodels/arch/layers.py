"""Layers with a member axis. x is [K, N, in]: K models, each with its own weights, N rows of its own data."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cpbmodels.arch.weights import Weights


def on_gpu(x: Tensor) -> bool:
    """Whether to take a GPU's code path: on anything but a CPU, so that tests can run it on torch's meta device."""
    return x.device.type != "cpu"


def biased(bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """x [K, N, in] times weight [K, in, out] plus bias [K, 1, out] -> [K, N, out].

    On a GPU the bias is added afterwards: `baddbmm` lays it out first, 1.7 to 4 times the product's time on an H100.
    On a CPU it stays within the product, whose bits decide trained models.
    """
    return torch.bmm(x, weight).add_(bias) if on_gpu(x) else torch.baddbmm(bias, x, weight)


def linear(x: Tensor, w: Weights, name: str) -> Tensor:
    """x [K, ..., in], weight [K, in, out] -> [K, ..., out]: one batched product for all members."""
    weight, bias = w[f"{name}.weight"], w[f"{name}.bias"]
    flat = x if x.dim() == 3 else x.reshape(x.shape[0], -1, x.shape[-1])
    out = biased(bias, flat, weight)
    return out if x.dim() == 3 else out.view(*x.shape[:-1], weight.shape[-1])


def normalise(x: Tensor) -> Tensor:
    """LayerNorm over the last axis, without scale and shift: the linear map behind it absorbs both."""
    return F.layer_norm(x, x.shape[-1:])


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention over [N, T, d] with members and heads folded into N. `mask` [Tq, Tk] is added to the scores.

    softmax(q k^T / sqrt(d) + mask) v in plain products on purpose: at 30 steps they beat
    scaled_dot_product_attention on a CPU, whose bf16 backward pass took two thirds of a training step, and on an H100
    (15.5 against 22.3 ms a step).
    """
    scale = 1 / math.sqrt(query.shape[-1])
    within = mask is not None and not on_gpu(query)  # on a GPU it is added afterwards, as in `biased`
    added = mask if mask is not None and within else query.new_empty(1, 1)  # ignored if beta is 0
    scores = torch.baddbmm(added, query, key.transpose(1, 2), beta=int(within), alpha=scale)
    if mask is not None and not within:
        scores.add_(mask)
    return torch.bmm(softmax(scores), value)


def softmax(scores: Tensor) -> Tensor:
    """Softmax over the last axis [..., T]."""
    if scores.dtype == torch.bfloat16 and not on_gpu(scores):
        return _SoftmaxBf16.apply(scores)
    return torch.softmax(scores, -1)


class _SoftmaxBf16(torch.autograd.Function):
    """Computed in float32: torch's bf16 kernels on a CPU took a quarter of a transformer's step (rows whose length T
    is not a multiple of 32 end in scalar code); this takes half their time, forward and backward together.

    Backward: with a = softmax(s) and g = dL/da, dL/ds = a * g - a * sum(a * g), here in bf16 throughout.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        shares = torch.softmax(scores.float(), -1).bfloat16()
        ctx.save_for_backward(shares)
        return shares

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (shares,) = ctx.saved_tensors
        weighted = grad * shares
        return torch.addcmul(weighted, shares, weighted.sum(-1, keepdim=True), value=-1)


def embed(codes: Tensor, table: Tensor) -> Tensor:
    """codes [K, N] -> rows of table [K, n, e] as [K, N, e].

    As a product with one-hot rows: the gradient of an index would be added up in an order that varies on a GPU.
    """
    hot = codes.unsqueeze(-1) == torch.arange(table.shape[1], device=codes.device, dtype=codes.dtype)
    return torch.bmm(hot.to(table.dtype), table)
