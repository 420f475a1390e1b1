"""Weights of a fleet: one [K, P] matrix. A layer's weight is a view [K, ...]; row k *is* model k."""

from __future__ import annotations

import math
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


@dataclass(frozen=True)
class Layout:
    """Where each weight of an architecture lies in a row."""

    params: tuple[Param, ...]

    @property
    def size(self) -> int:
        """P, the number of values of one model."""
        return sum(param.size for param in self.params)

    def initial(self, seed: int) -> np.ndarray:
        """float64 [P]: the starting point that belongs to this seed, whatever the fleet around it."""
        draw = np.random.Generator(np.random.Philox(key=seed))
        parts = [draw.uniform(-1, 1, param.size) * param.bound + param.offset for param in self.params]
        return np.concatenate(parts)

    def views(self, flat: Tensor) -> Weights:
        """Views [K, *shape] of a [K, P] matrix (or of its first rows)."""
        out, start = {}, 0
        for param in self.params:
            out[param.name] = flat[:, start : start + param.size].view(flat.shape[0], *param.shape)
            start += param.size
        return out
