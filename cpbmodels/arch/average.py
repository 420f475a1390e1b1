"""`average`: a model whose members are models of other architectures, and whose quantiles are their mean.

`members` names them. Each is trained as it would be alone, with the same preset, seeds and scope; the averaging is in
`cpbmodels.fleet.average`. Models whose errors differ lose when averaged less than each: `har` and `walk` together score
.1 % better than `har` (docs/log.md). Mean quantiles ascend like each member's, and the mean of valid
median candles is a valid candle whose close is the mean median.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor
from typing_extensions import override

from cpbmodels.arch import find
from cpbmodels.arch.base import Architecture, ArchitectureSpec, Batch
from cpbmodels.arch.draws import Draws
from cpbmodels.arch.layers import Param
from cpbmodels.arch.options import SIZES, Preset
from cpbmodels.errors import ModelError

NAME = "average"


class Average(Architecture):
    """Has no weights of its own: every member has those of its architecture."""

    spec = ArchitectureSpec(sizes=SIZES, defaults={"context": 1, "members": ("har", "walk")})

    @override
    @classmethod
    def conflict(cls, name: str, options: Preset) -> str:
        if len(options.members) < 2 or NAME in options.members:
            return f"members of {name} must be two or more other architectures, as in har,walk."
        if any(find(member).is_classifier() for member in options.members):
            return f"members of {name} must forecast prices: leave out classifiers."
        return ""

    @override
    def params(self) -> list[Param]:
        return []

    @override
    def forward(self, batch: Batch, w: dict[str, Tensor], draws: Draws | None) -> Tensor:
        raise ModelError("an average has no outputs of its own: forecast with its members.")


def combined(options: Preset, members: list[Preset]) -> Preset:
    """The options of an average, as what it reads: every member's columns and the longest context."""
    return replace(
        options,
        context=max(one.context for one in members),
        features=tuple(dict.fromkeys(name for one in members for name in one.features)),
        calendar=next((one.calendar for one in members if one.calendar), ""),
    )
