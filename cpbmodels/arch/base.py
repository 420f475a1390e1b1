"""What an architecture is: the weights it needs, and a map from windows to the head's raw outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from cpbmodels.draws import Draws
from cpbmodels.heads import Head
from cpbmodels.options import Preset
from cpbmodels.weights import Param, Weights

Masks = list[list[Tensor | None]]


@dataclass(frozen=True)
class Batch:
    """Windows of K members: inputs [K, B, C, F], and as decoders read them (`heads.to_feedback`) the origin's candle
    [K, B, 4] and, when teaching, the true candles [K, B, H, 4]."""

    inputs: Tensor
    start: Tensor
    truth: Tensor | None = None


class Architecture(ABC):
    """Stateless: weights come in as views of the fleet's matrix. `inputs` is the number of input columns."""

    def __init__(self, options: Preset, head: Head, inputs: int) -> None:
        self.options, self.head, self.inputs = options, head, inputs

    @abstractmethod
    def params(self) -> list[Param]:
        """Every weight of one model."""

    @abstractmethod
    def forward(self, batch: Batch, w: Weights, draws: Draws | None) -> Tensor:
        """Raw outputs [K, B, H, head.size]. `draws` is None outside training; `batch.truth` is for teaching only."""

    def unroll(self, outputs: Tensor) -> Tensor:
        """[K, B, H x size] -> [K, B, H, size]."""
        return outputs.view(*outputs.shape[:2], self.head.steps, self.head.size)

    def taught(self, batch: Batch, draws: Draws | None) -> list[Tensor] | None:
        """Per step, Bool [K, B, 1]: is the decoder told the true previous candle? None: never."""
        if draws is None or batch.truth is None or self.options.teacher_forcing == 0:
            return None
        K, B = batch.start.shape[:2]
        shape = torch.Size([K, B, self.head.steps])
        if self.options.teacher_forcing == 1:
            return list(batch.start.new_ones(shape, dtype=torch.bool).unsqueeze(-1).unbind(2))
        return list(draws.below(self.options.teacher_forcing, shape).unsqueeze(-1).unbind(2))

    def next_input(self, raw: Tensor, step: int, batch: Batch, taught: list[Tensor] | None) -> Tensor:
        """The candle [K, B, 4] the decoder reads after `step`: its own median, or the truth where it is taught."""
        own = self.head.feedback(raw)
        if taught is None or batch.truth is None:
            return own
        return torch.where(taught[step], batch.truth[:, :, step], own)

    def decoder_masks(self, like: Tensor, draws: Draws | None) -> Masks:
        """Per step and layer after the first, dropout factors [K, B, H] for a decoder whose state is `like`."""
        steps, rate, layers = self.head.steps, self.options.dropout, self.options.n_layers
        if draws is None or rate == 0 or layers == 1:
            return [[None] * layers] * steps
        K, B, H = like.shape
        factors = draws.factors(rate, torch.Size([K, steps, layers - 1, B, H]), like.dtype)
        return [[None, *step.unbind(1)] for step in factors.unbind(1)]
