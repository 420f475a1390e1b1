"""`har`: about 10,000 weights on the rolling columns of the last candle. Small on purpose: the architecture with skill.

With the Student-t head a straight line from the inputs to the log-scale runs beside the perceptron. It starts as the
robust HAR's solution (`initial_weights`), so that the few hundred steps before validation turns are spent on what the
line misses.

`robust-har`: one linear map to the log of the coming range, fitted in closed form. The reference to beat.

`linear`: each input column has its own linear map from the window to the horizon; a last map mixes columns.
"""

import math

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from cpbmodels.arch.base import Architecture, ArchitectureSpec, Batch
from cpbmodels.arch.heads import START_DF, START_SCALE
from cpbmodels.arch.layers import Draws, Param, Weights, dropout, linear, linear_params
from cpbmodels.arch.options import Preset
from cpbmodels.arch.task import MemberData
from cpbmodels.data import ROLLING
from cpbmodels.data.ranges import RangeModel, fit_ranges
from cpbmodels.data.student_t import QUANTILES, t_quantiles

HAR_COLUMNS = (
    *(f"abs_return_mean_{n}" for n in ROLLING),
    *(f"log_range_mean_{n}" for n in ROLLING),
    "close_location",
    "log_sigma",
)
# their places in QUANTILES
QUARTILES = [int(np.flatnonzero(level == QUANTILES)[0]) for level in (0.25, 0.75)]
QUARTILE_DISTANCE = float(2 * t_quantiles(np.array(START_DF), np.array([0.75]))[0])
"""Between the quartiles of the standard t distribution with which a Student-t head starts."""

FITTED = {"context": 1, "head": "scaled", "calendar_dim": 0, "epochs": 1, "mixed_precision": "off"}
"""Options that `RobustHar` and its relatives fix: a fit of the last candle's columns in closed form."""


class OfOneCandle(Architecture):
    """Reads the rolling columns of the last candle alone."""

    @override
    @classmethod
    def conflict(cls, name: str, options: Preset) -> str:
        if options.context != 1:
            return f"context must be 1 for {name}: it reads the rolling columns of the last candle alone."
        return super().conflict(name, options)


class Har(OfOneCandle):
    """A two-layer perceptron; with the Student-t head it is a heterogeneous autoregression of the volatility."""

    spec = ArchitectureSpec(
        sizes=("hidden_dim", "dropout"),
        defaults={
            "context": 1,
            "features": HAR_COLUMNS,
            "calendar": "hour_of_week_ny",
            "calendar_dim": 0,
            "input_clip": 4.0,
            "target_clip": 6.0,
            "hidden_dim": 56,
            "dropout": 0.0,
            "batch_size": 512,
            "lr": 2e-4,  # the line starts solved: with a higher rate, models of one coin lose it within an epoch
            "warmup_steps": 10,
        },
        fixed={"context": 1},
    )

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

    @override
    def initial_weights(self, data: MemberData) -> dict[str, np.ndarray]:
        """The line as the robust HAR fitted on the member's training origins.

        The robust HAR reads unscaled columns, this model (x - mean) * inverse: with slopes s and level l,
        s x + l = (s / inverse) ((x - mean) inverse) + (l + mean s). Its scale is turned into that of a t distribution
        with `START_DF` degrees of freedom by the distance between the quartiles of the standardised moves.
        """
        if not has_line(self.options):
            return {}
        fitted = fit_ranges(data.origins(), data.columns, self.options.calendar, self.options.horizon)
        # Quartiles, since no few extreme moves change them; the tails are the head's to learn.
        distance = np.diff(fitted.table[:, QUARTILES], axis=1)[:, 0]
        scale = np.log(np.maximum(distance / QUARTILE_DISTANCE, 1e-3) / START_SCALE)
        line = {
            "line.weight": fitted.slopes / data.inverse[:, None],
            "line.bias": (fitted.level + data.mean @ fitted.slopes + scale)[None],
        }
        if self.options.calendar and not self.options.calendar_dim:
            line["calendar"] = fitted.hours
        return line


def has_line(options: Preset) -> bool:
    """Whether the model has a line to the log-scale: heads other than Student-t have no log-scale to learn."""
    return options.head == "student-t"


def with_candle(log_scale: Tensor, w: Weights) -> Tensor:
    """Raw [K, B, H, 4] of the head `scaled`: log-scale [K, B, H], and from w["candle"] [K, 3, H] open, high, low."""
    open_, high, low = (row.unsqueeze(1).expand_as(log_scale) for row in w["candle"].unbind(1))
    return torch.stack([open_, log_scale, high, low], -1)


def fitted_weights(model: RangeModel) -> dict[str, np.ndarray]:
    """The weights that every architecture takes over from a fit of the coming range, by name."""
    return {
        "out.weight": model.slopes,
        "out.bias": model.level[None],
        "candle": model.candle.T,
        "head.table": model.table,
    }


class RobustHar(OfOneCandle):
    """Serves what `cpbmodels.data.ranges` fits; the hour of the week is added to its log-scale by the net."""

    spec = ArchitectureSpec(
        defaults={
            "features": (
                *(f"log_range_mean_{n}" for n in ROLLING),
                *(f"abs_return_mean_{n}" for n in ROLLING),
                "log_sigma",
            ),
            "calendar": "hour_of_week_ny",
            "input_clip": 100.0,
        },
        fixed=FITTED,
        closed_form=True,
    )

    @override
    def params(self) -> list[Param]:
        steps = self.head.steps
        return [
            Param("out.weight", (self.inputs, steps)),
            Param("out.bias", (1, steps)),
            Param("candle", (3, steps)),  # open, high, low in units of the scale
        ]

    @override
    def forward(self, batch: Batch, w: Weights, draws: Draws | None) -> Tensor:
        return with_candle(linear(batch.inputs.flatten(2), w, "out"), w)

    @override
    def solve(self, data: MemberData) -> dict[str, np.ndarray]:
        fitted = fit_ranges(
            data.origins(), data.columns, self.options.calendar, self.options.horizon, self.options.input_clip
        )
        return fitted_weights(fitted) | ({"calendar": fitted.hours} if fitted.calendar else {})


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
