"""Random draws that belong to (member seed, member step, layer): the same alone, in any fleet, on any device.

Counter-based: a draw is a hash of its address (seed, step, layer, element), not the next number of a stream. So a
member's dropout masks do not depend on its neighbours, a resumed run needs no generator state, and a CUDA graph can
replay them.

Two hashes of the same form (xor with a shift of itself, multiply by an odd number, twice): `_mix64` makes a key per
layer from seed and step, `Draws.bits` hashes each element with that key; its shifts and factors are those of lowbias32
(C. Wellons, hash-prospector). Integer arithmetic wraps in the same way on every device. Uniformity and correlations
are tested (tests/models/test_models_exactness.py).
"""

from __future__ import annotations

import torch
from torch import Tensor

from cpbmodels.arch.per_member import PerRow, by_row, is_exactly

KEYS_PER_STEP = 64  # calls per step with a key of their own; further calls start again at the first key
_INDEX: dict[tuple[int, torch.device], Tensor] = {}


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

    kernels: dropout and its masks by `cpbmodels.kernels`, with the same bits.
    """

    def __init__(self, seeds: Tensor, steps: Tensor, micro: int = 0, kernels: bool = False) -> None:
        self.kernels = kernels
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
            limits = ((probability * 2**16).round() - 2**15).clamp(max=2**15 - 1).to(torch.int16)
            return (halves < limits[:, None]).view(shape)
        return (halves < min(round(probability * 2**16) - 2**15, 2**15 - 1)).view(shape)

    def factors(self, rate: PerRow, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """`shape` [K, ...]: 0 where dropout at `rate` drops, else 1 / (1 - rate)."""
        if self.kernels:
            from cpbmodels.kernels.dropout import factors  # imports triton

            return factors(rate, self.next_key(), shape, dtype)
        kept = self.below(1 - rate, shape).to(dtype)
        return kept.mul_(by_row(1 / (1 - rate), kept))


def dropout(x: Tensor, rate: PerRow, draws: Draws | None) -> Tensor:
    """x [K, ...] with values dropped at `rate` and the rest scaled up; x itself where `draws` is None."""
    if draws is None or is_exactly(rate, 0):
        return x
    if draws.kernels:
        from cpbmodels.kernels.dropout import dropout as by_kernel  # imports triton

        return by_kernel(x, rate, draws.next_key())
    return x * draws.factors(rate, x.shape, x.dtype)
