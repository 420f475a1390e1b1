"""Weights of a fleet, layers with a member axis, and random draws that belong to a member.

The weights are one [K, P] matrix. A layer's weight is a view [K, ...]; row k *is* model k. x is [K, N, in]: K models,
each with its own weights, N rows of its own data.

Draws are counter-based: a draw is a hash of its address (member seed, member step, layer, element), not the next number
of a stream. So a member's dropout masks are the same alone, in any fleet, on any device; a resumed run needs no
generator state, and a CUDA graph can replay them. Two hashes of the same form (xor with a shift of itself, multiply by
an odd number, twice): `_mix64` makes a key per layer from seed and step, `Draws.bits` hashes each element with that
key; its shifts and factors are those of lowbias32 (C. Wellons, hash-prospector). Integer arithmetic wraps in the same
way on every device. Uniformity and correlations are tested (tests/models/test_models_exactness.py).
"""

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

ALIGN = 32
"""Every weight, and every row, starts at a multiple of this many values, so of 64 bytes also in bf16: at other
addresses a GPU's matrix products cannot use their fastest kernels. The gaps are zeros and stay zeros."""

KEYS_PER_STEP = 64  # calls per step with a key of their own; further calls start again at the first key
_INDEX: dict[tuple[int, torch.device], Tensor] = {}


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
        # By numpy on the host: the same bits whatever the device, its type and its torch.
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
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (shares,) = ctx.saved_tensors
        weighted = grad * shares
        return torch.addcmul(weighted, shares, weighted.sum(-1, keepdim=True), value=-1)


def embed(codes: Tensor, table: Tensor) -> Tensor:
    """codes [K, N] -> rows of table [K, n, e] as [K, N, e].

    As a product with one-hot rows: the gradient of an index would be added up in an order that varies on a GPU.
    """
    hot = codes.unsqueeze(-1) == torch.arange(table.shape[1], device=codes.device, dtype=codes.dtype)
    return torch.bmm(hot.to(table.dtype), table)


PerRow = float | Tensor
"""One value for all rows, or a float64 tensor [K] with a value for each."""


def by_row(value: PerRow, like: Tensor) -> PerRow:
    """The value so that it can be multiplied with `like` [K, ...]: a number, or a tensor [K, 1, ..] of its dtype."""
    if not isinstance(value, Tensor):
        return value
    return value.to(like).view(-1, *[1] * (like.dim() - 1))


def is_exactly(value: PerRow, constant: float) -> bool:
    """Whether it is this constant in all rows. What is special in a step (`options.fleet_key`) is so in all or none."""
    return not isinstance(value, Tensor) and value == constant


def _mix64(x: Tensor) -> Tensor:
    """Hash of int64. Products wrap. `>>` copies the sign bit, so x and ~x share a hash; for keys that is harmless."""
    x = (x ^ (x >> 31)) * 0x7FB5D329728EA185
    x = (x ^ (x >> 27)) * -0x7E25210B43D22BB3
    return x ^ (x >> 33)


def _index(count: int, device: torch.device) -> Tensor:
    """int32 [1, count]: element numbers times an odd constant (2^32 / golden ratio), computed once per size."""
    key = (count, device)
    if key not in _INDEX:
        _INDEX[key] = (torch.arange(count, device=device, dtype=torch.int64) * 0x9E3779B1).to(torch.int32)[
            None
        ]
    return _INDEX[key]


class Draws:
    """The draws of one training step of K members. `seeds` and `steps` are int64 [K] on the device.

    `cpbmodels.kernels.dropout.KernelDraws` draws the same bits in fewer launches.
    """

    def __init__(self, seeds: Tensor, steps: Tensor, micro: int = 0) -> None:
        # Keys of all layers at once: a few launches a step instead of a few for every draw.
        layers = torch.arange(1, KEYS_PER_STEP + 1, device=seeds.device) * 0x5851F42D4C957F2D
        mixed = _mix64(seeds * 0x2545F4914F6CDD1D + _mix64(steps + micro * 0x1000003))
        self.keys = _mix64(mixed[:, None] + layers).to(torch.int32).unsqueeze(-1).unbind(1)
        self.layer = 0

    def next_key(self) -> Tensor:
        """int32 [K, 1]: the key of the next layer; each call takes a new key."""
        self.layer += 1
        return self.keys[(self.layer - 1) % KEYS_PER_STEP]

    def bits(self, count: int) -> Tensor:
        """int32 [K, count], uniform over all values; every call takes the next layer's key."""
        key = self.next_key()
        x = _index(count, key.device) ^ key
        x.bitwise_xor_(x >> 16).mul_(0x7FEB352D)
        x.add_(key).bitwise_xor_(x >> 15).mul_(-0x7B935975)
        # The mask makes this a logical shift: the copied sign bit would cancel x's own, and no draw be negative.
        return x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF))

    def below(self, probability: PerRow, shape: torch.Size) -> Tensor:
        """Bool `shape` [K, ...]: True with the given probability, to 1 / 65536: one hash serves two elements.

        Each half of the int32 is read as an int16, uniform over -2^15 .. 2^15 - 1.
        """
        count = shape.numel() // shape[0]
        halves = self.bits(-(-count // 2)).view(torch.int16)[:, :count]
        if isinstance(probability, Tensor):
            # At most 2^15 - 1: the limit of probability 1 would overflow to the lowest int16, and nothing be drawn.
            limits = ((probability * 2**16).round() - 2**15).clamp(max=2**15 - 1).to(torch.int16)
            return (halves < limits[:, None]).view(shape)
        return (halves < min(round(probability * 2**16) - 2**15, 2**15 - 1)).view(shape)

    def factors(self, rate: PerRow, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """`shape` [K, ...]: 0 where dropout at `rate` drops, else 1 / (1 - rate)."""
        kept = self.below(1 - rate, shape).to(dtype)
        return kept.mul_(by_row(1 / (1 - rate), kept))

    def dropped(self, x: Tensor, rate: PerRow) -> Tensor:
        """x [K, ...] times `factors`."""
        return x * self.factors(rate, x.shape, x.dtype)


def dropout(x: Tensor, rate: PerRow, draws: Draws | None) -> Tensor:
    """x [K, ...] with values dropped at `rate` and the rest scaled up; x itself where `draws` is None."""
    return x if draws is None or is_exactly(rate, 0) else draws.dropped(x, rate)
