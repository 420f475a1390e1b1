"""`har`: about 10,000 weights on the rolling columns of the last candle. Small on purpose: the one with skill.

With the Student-t head a straight line from the inputs to the log-scale runs beside the perceptron. It starts as the
robust HAR's solution (`closed_form.start_from_line`), so that the few hundred steps before validation turns are
spent on what the line misses.
"""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from cpbmodels.arch.base import Architecture, Batch
from cpbmodels.draws import Draws, dropout
from cpbmodels.layers import linear
from cpbmodels.presets import Preset
from cpbmodels.weights import Param, Weights, linear_params


class Har(Architecture):
    """A two-layer perceptron; with the Student-t head it is a heterogeneous autoregression of the volatility."""

    @override
    def params(self) -> list[Param]:
        width, steps = self.options.hidden_dim, self.head.steps
        out = [
            *linear_params("first", self.inputs, width),
            *linear_params("second", width, width),
            *linear_params("out", width, steps * self.head.size, bound=0.01),
        ]
        line = [Param("line.weight", (self.inputs, steps)), Param("line.bias", (1, steps))]
        return [*out, *line] if has_line(self.options) else out

    @override
    def forward(self, batch: Batch, w: Weights, draws: Draws | None) -> Tensor:
        rate = self.options.dropout
        inputs = batch.inputs.flatten(2)
        x = dropout(torch.nn.functional.gelu(linear(inputs, w, "first")), rate, draws)
        x = dropout(torch.nn.functional.gelu(linear(x, w, "second")), rate, draws)
        raw = self.unroll(linear(x, w, "out"))
        if not has_line(self.options):
            return raw
        line = linear(inputs, w, "line").unsqueeze(-1)
        return torch.cat([raw[..., :1], raw[..., 1:2] + line, raw[..., 2:]], -1)  # output 1 is the log-scale


def has_line(options: Preset) -> bool:
    """Whether a line to the log-scale belongs to the model: other heads have no log-scale."""
    return options.head == "student-t"
