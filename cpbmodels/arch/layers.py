"""Weights of a fleet, and layers with a member axis.

The weights are one [K, P] matrix. A layer's weight is a view [K, ...]; row k *is* model k. x is [K, N, in]: K models,
each with its own weights, N rows of its own data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

Weights = dict[str, Tensor]
"""Name -> [K, *shape], views of the fleet's matrix."""


@dataclass(frozen=True)
class Param:
    """One weight of one model: initial values are uniform in offset +- bound."""

    name: str
    shape: tuple[int, ...]
    bound: float = 0.0
    offset: float = 0.0

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


def linear_params(name: str, inputs: int, outputs: int, bound: float | None = None) -> list[Param]:
    """Weight [in, out] and bias [1, out] of a linear map, initialised like torch's nn.Linear."""
    bound = 1 / math.sqrt(inputs) if bound is None else bound
    return [Param(f"{name}.weight", (inputs, outputs), bound), Param(f"{name}.bias", (1, outputs), bound)]


ALIGN = 32
"""Every weight, and every row, starts at a multiple of this many values, so of 64 bytes also in bf16: at other
addresses a GPU's matrix products cannot use their fastest kernels. The gaps are zeros and stay zeros."""


@dataclass(frozen=True)
class Layout:
    """Where each weight of an architecture lies in a row."""

    params: tuple[Param, ...]

    @property
    def size(self) -> int:
        """P, the length of a row, with its gaps."""
        return sum(-(-param.size // ALIGN) * ALIGN for param in self.params)

    def initial(self, seed: int) -> np.ndarray:
        """float64 [P]: the initial weights that belong to this seed, drawn in the order of `params`."""
        draw = np.random.Generator(np.random.Philox(key=seed))
        row = np.zeros(self.size)
        for param, start in zip(self.params, self._starts(), strict=True):
            row[start : start + param.size] = draw.uniform(-1, 1, param.size) * param.bound + param.offset
        return row

    def views(self, flat: Tensor) -> Weights:
        """Views [K, *shape] of a [K, P] matrix (or of its first rows)."""
        return {
            param.name: flat[:, start : start + param.size].view(flat.shape[0], *param.shape)
            for param, start in zip(self.params, self._starts(), strict=True)
        }

    def gaps(self) -> list[int]:
        """Number of unused values behind each weight."""
        return [-param.size % ALIGN for param in self.params]

    def _starts(self) -> Iterator[int]:
        start = 0
        for param in self.params:
            yield start
            start += -(-param.size // ALIGN) * ALIGN


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
