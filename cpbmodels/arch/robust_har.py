"""`robust-har`: one linear map to the log of the coming range, fitted in closed form. The reference to beat."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from cpbmodels.arch.base import Architecture, ArchitectureSpec, Batch, MemberData
from cpbmodels.arch.har import context_conflict
from cpbmodels.draws import Draws
from cpbmodels.figures import ROLLING
from cpbmodels.layers import linear
from cpbmodels.options import Preset
from cpbmodels.ranges import fit_ranges
from cpbmodels.weights import Param, Weights


class RobustHar(Architecture):
    """Serves what `cpbmodels.ranges` fits; the hour of the week is added to its log-scale by the net."""

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
        fixed={"context": 1, "head": "scaled", "calendar_dim": 0, "epochs": 1, "mixed_precision": "off"},
        closed_form=True,
        exportable=True,
    )

    @override
    @classmethod
    def conflict(cls, name: str, options: Preset) -> str:
        return context_conflict(name, options)

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
        log_scale = linear(batch.inputs.flatten(2), w, "out")
        open_, high, low = (row.unsqueeze(1).expand_as(log_scale) for row in w["candle"].unbind(1))
        return torch.stack([open_, log_scale, high, low], -1)

    @override
    def solve(self, data: MemberData) -> dict[str, np.ndarray]:
        fitted = fit_ranges(
            data.origins(),
            data.columns,
            self.options.calendar,
            self.options.horizon,
            self.options.input_clip,
        )
        weights = {
            "out.weight": fitted.slopes,
            "out.bias": fitted.level[None],
            "candle": fitted.candle.T,
            "head.table": fitted.table,
        }
        if fitted.calendar:
            weights["calendar"] = fitted.hours
        return weights
