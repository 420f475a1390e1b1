"""A model that can forecast: weights, input scaling, quantile table and the options it was trained with."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cpbmodels.arch.options import Preset
from cpbmodels.arch.per_member import PER_MEMBER
from cpbmodels.fleet.config import OPTIONS, options_of
from cpbmodels.fleet.net import Net

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass
class Model:
    """E rows of P weights: one, or several whose quantiles are averaged (an ensemble).

    config: what config.json holds: architecture, symbol, timeframe, seed, every option, versions.
    rows: [E, P], with the layout of `net().layout`.
    mean, inverse: [E, columns], the scaling of the inputs.
    table: [E, H, 19], quantiles of the standardised error (`heads`).
    parts: of an average, the models whose quantiles it averages; its own rows and tables are empty then.
    """

    config: dict[str, Any]
    rows: Tensor
    mean: Tensor
    inverse: Tensor
    table: Tensor
    parts: tuple[Model, ...] = field(default=(), kw_only=True)

    @property
    def context(self) -> int:
        """Candles the model reads."""
        return int(self.config["context"])

    @property
    def horizon(self) -> int:
        """Candles the model forecasts."""
        return int(self.config["horizon"])

    @property
    def options(self) -> Preset:
        """The preset it was trained with."""
        return options_of(self.config)

    @property
    def dtype(self) -> torch.dtype:
        """float32 or float64."""
        return DTYPES[self.config["dtype"]]

    @property
    def stacking_key(self) -> str:
        """Equal for models of the same architecture, layout and number of rows: they can forecast as one fleet.

        Options in which rows of a fleet may differ do not count, but whether a decoder learned by teacher forcing does:
        it reads its own candles then.
        """
        names = ("architecture", "dtype", *(name for name in OPTIONS if name not in PER_MEMBER))
        forced = bool(self.config.get("teacher_forcing"))
        return json.dumps([len(self.rows), forced, *(self.config.get(name) for name in names)], default=list)

    def net(self, device: torch.device | None = None) -> Net:
        """Its architecture and head."""
        return Net(self.config["architecture"], self.options, device or torch.device("cpu"), self.dtype)
