"""`linear`: each input column has its own linear map from the window to the horizon; a last map mixes columns."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from typing_extensions import override

from cpbmodels.arch.base import Architecture, ArchitectureSpec, Batch
from cpbmodels.arch.draws import Draws
from cpbmodels.arch.layers import Param, Weights, linear


class Linear(Architecture):
    """No non-linearity anywhere: what a sequence model must at least beat."""

    spec = ArchitectureSpec(defaults={"weight_decay": 1e-2})

    @override
    def params(self) -> list[Param]:
        context, steps = self.options.context, self.head.steps
        return [
            Param("channel.weight", (self.inputs, context, steps), 1 / math.sqrt(context)),
            Param("channel.bias", (1, self.inputs * steps), 0.0),
            Param("mix.weight", (self.inputs, self.head.size), 0.1 / math.sqrt(self.inputs)),
            Param("mix.bias", (1, self.head.size), 0.0),
        ]

    @override
    def forward(self, batch: Batch, w: Weights, draws: Draws | None) -> Tensor:
        K, B, C, F = batch.inputs.shape
        steps = self.head.steps
        # Columns join the member axis: [K x F, B, C] times [K x F, C, steps] is one batched product.
        columns = batch.inputs.permute(0, 3, 1, 2).reshape(K * F, B, C)
        mapped = torch.bmm(columns, w["channel.weight"].reshape(K * F, C, steps)).view(K, F, B, steps)
        per_step = mapped.permute(0, 2, 3, 1).reshape(K, B * steps, F)
        bias = w["channel.bias"].view(K, 1, steps, F)
        per_step = (per_step.view(K, B, steps, F) + bias).view(K, B * steps, F)
        return linear(per_step, w, "mix").view(K, B, steps, self.head.size)
