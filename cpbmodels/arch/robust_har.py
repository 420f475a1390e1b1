"""`robust-har`: one linear map to the log of the coming range, fitted in closed form. The one to beat."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from cpbmodels.arch.base import Architecture, Batch
from cpbmodels.draws import Draws
from cpbmodels.layers import linear
from cpbmodels.weights import Param, Weights


class RobustHar(Architecture):
    """Serves what `cpbmodels.ranges` fits; the hour of the week is added to its log-scale by the net."""

    @override
    def params(self) -> list[Param]:
        steps = self.head.steps
        return [
            Param("out.weight", (self.inputs, steps)),
            Param("out.bias", (1, steps)),
            Param("candle", (3, steps)),  # open, high, low over the scale
        ]

    @override
    def forward(self, batch: Batch, w: Weights, draws: Draws | None) -> Tensor:
        log_scale = linear(batch.inputs.flatten(2), w, "out")
        open_, high, low = (row.unsqueeze(1).expand_as(log_scale) for row in w["candle"].unbind(1))
        return torch.stack([open_, log_scale, high, low], -1)
