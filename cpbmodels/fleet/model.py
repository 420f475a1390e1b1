"""What a forecast needs of a trained model: its configuration and weights, whoever trained it and however."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import torch
from torch import Tensor

from cpbmodels.arch.options import PER_MEMBER, Preset
from cpbmodels.data.extremes import Extremes
from cpbmodels.errors import printable
from cpbmodels.fleet.config import OPTIONS, options_of
from cpbmodels.fleet.net import DTYPES, Net


@dataclass
class Model:
    """What a forecast needs of a trained model: E rows of P weights, one, or several whose quantiles are averaged.

    config: what config.json holds: architecture, symbol, timeframe, seed, every option, versions.
    rows: [E, P], with the layout of `net().layout`.
    mean, inverse: [E, columns], the scaling of the inputs.
    table: [E, H, 19], quantiles of the standardised error (`heads`).
    parts: of an average, the models whose quantiles it averages; its own rows and tables are empty then.
    extremes: how far prices went, in widths of its forecasts; None of a classifier, and of a part of an average.
    """

    config: dict[str, Any]
    rows: Tensor
    mean: Tensor
    inverse: Tensor
    table: Tensor
    parts: tuple[Model, ...] = field(default=(), kw_only=True)
    extremes: Extremes | None = field(default=None, kw_only=True)

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
        # Rows count as well: `predict` takes the mean over as many rows of each model.
        return json.dumps([len(self.rows), forced, *(self.config.get(name) for name in names)], default=list)

    def net(self, device: torch.device | None = None) -> Net:
        """Its architecture and head."""
        return Net(self.config["architecture"], self.options, device or torch.device("cpu"), self.dtype)

    @property
    def known_until(self) -> datetime | None:
        """The end (UTC) of all its spans, the test span included, which it was chosen on; None if unknown.

        Forecasts from earlier origins do not test the model.
        """
        text = self.config.get("known_until")
        return datetime.fromisoformat(text) if text else None

    def __repr__(self) -> str:
        """One line: architecture, series, seed, and where its training data ends."""
        config, until = self.config, self.known_until
        seeds = config.get("seeds", config.get("seed"))
        end = f", knows candles until {until:%Y-%m-%d}" if until else ""
        name = f"{config.get('symbol') or '-'} {config.get('timeframe') or ''}".strip()
        return printable(f"<Member {config['architecture']}, {name}, seed {seeds}{end}>", keep="")
