"""`har`: about 10,000 weights on the rolling columns of the last candle. Small on purpose: the one with skill."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from cpbmodels.arch.base import Architecture, Batch
from cpbmodels.draws import Draws, dropout
from cpbmodels.layers import linear
from cpbmodels.weights import Param, Weights, linear_params


class Har(Architecture):
    """A two-layer perceptron; with the Student-t head it is a heterogeneous autoregression of the volatility."""

    @override
    def params(self) -> list[Param]:
        width = self.options.hidden_dim
        return [
            *linear_params("first", self.inputs * self.options.context, width),
            *linear_params("second", width, width),
            *linear_params("out", width, self.head.steps * self.head.size, bound=0.01),
        ]

    @override
    def forward(self, batch: Batch, w: Weights, draws: Draws | None) -> Tensor:
        rate = self.options.dropout
        x = dropout(torch.nn.functional.gelu(linear(batch.inputs.flatten(2), w, "first")), rate, draws)
        x = dropout(torch.nn.functional.gelu(linear(x, w, "second")), rate, draws)
        return self.unroll(linear(x, w, "out"))
