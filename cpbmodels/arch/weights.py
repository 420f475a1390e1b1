"""Weights of a fleet: one [K, P] matrix. A layer's weight is a view [K, ...]; row k *is* model k."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
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
        """Number of padding values after each weight."""
        return [-param.size % ALIGN for param in self.params]

    def _starts(self) -> Iterator[int]:
        start = 0
        for param in self.params:
            yield start
            start += -(-param.size // ALIGN) * ALIGN
