"""One trained model: its weights (one row, or several of an ensemble), its config, its history, its folder."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cpbmodels.bank import Scaling
from cpbmodels.errors import ModelError
from cpbmodels.net import Net
from cpbmodels.options import Preset
from cpbmodels.series import Series
from cpbmodels.student_t import QUANTILES

FORMAT = 1
OPTION_FIELDS = tuple(Preset().as_dict())
DTYPES = {"float32": torch.float32, "float64": torch.float64}


class QuantilePaths(Mapping[Any, np.ndarray]):
    """Prices [H] by level: `paths[0.05]`, `paths["q05"]` or `paths[0]`; `.array` is [H, 19]."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __getitem__(self, key: float | str) -> np.ndarray:
        if isinstance(key, (int, np.integer)) and not isinstance(key, bool):
            return self.array[:, int(key)]
        level = float(key[1:]) / 100 if isinstance(key, str) else float(key)
        found = np.flatnonzero(np.isclose(QUANTILES, level))
        if not len(found):
            raise KeyError(f"no quantile {key!r}: the levels are 0.05, 0.10 .. 0.95")
        return self.array[:, int(found[0])]

    def __iter__(self) -> Iterator[float]:
        return iter(QUANTILES.tolist())

    def __len__(self) -> int:
        return len(QUANTILES)


@dataclass(frozen=True)
class Forecast:
    """What comes after the series' last usable candle, in prices.

    `close[q]`: [H] for q = 0.05 .. 0.95. `candle`: float64 [H, 4], the median open, high, low, close.
    `probabilities`: [3] up, flat, down for a classifier, else None. `issued_row` is the last candle used.
    """

    close: QuantilePaths
    candle: np.ndarray
    last_close: float
    issued_row: int
    probabilities: np.ndarray | None = None


@dataclass
class Member:
    """A trained model. `rows` is [E, P]: one row, or E rows whose quantiles are averaged (an ensemble)."""

    config: dict[str, Any]
    rows: Tensor
    mean: Tensor  # [E, columns], with `inverse` the scaling of the inputs
    inverse: Tensor
    table: Tensor  # [E, H, 19] quantiles of the standardised error
    history: list[dict[str, Any]] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)

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
        found = {name: self.config[name] for name in OPTION_FIELDS if name in self.config}
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in found.items()}
        return Preset(**values)

    @property
    def dtype(self) -> torch.dtype:
        """float32 or float64."""
        return DTYPES[self.config["dtype"]]

    @property
    def scaling(self) -> Scaling:
        """Input scaling of its rows."""
        return Scaling(self.mean, self.inverse)

    def net(self, device: torch.device | None = None) -> Net:
        """Its architecture and head."""
        return Net(self.config["architecture"], self.options, device or torch.device("cpu"), self.dtype)

    def forecast(self, series: Series) -> Forecast:
        """The forecast after the series' last usable candle."""
        from cpbmodels.prediction import forecast_all

        return forecast_all([self], [series])[0]

    def save(self, folder: str | Path, extra: Mapping[str, Any] | None = None) -> Path:
        """Write model.safetensors and config.json (plus `extra`: training span, digest, metrics); both whole or not."""
        from safetensors.torch import save as to_bytes

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "model.safetensors", to_bytes(self._tensors()))
        config = {**self.config, **(extra or {}), "history": self.history, "report": self.report}
        write_whole(folder / "config.json", json.dumps(config, indent=2, default=str).encode())
        return folder

    def _tensors(self) -> dict[str, Tensor]:
        views = self.net().layout.views(self.rows)
        named = {f"weights.{name}": view.contiguous() for name, view in views.items()}
        return named | {"input.mean": self.mean, "input.inverse": self.inverse, "head.table": self.table}


def load(folder: str | Path) -> Member:
    """A member from its folder. Needs no pickle and runs no code from it; ModelError names what is wrong."""
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    folder = Path(folder)
    try:
        config = json.loads((folder / "config.json").read_text())
        tensors = from_bytes((folder / "model.safetensors").read_bytes())
    except FileNotFoundError as missing:
        raise ModelError(
            f"{missing.filename} is missing: a model folder holds config.json and model.safetensors."
        ) from None
    except (json.JSONDecodeError, SafetensorError) as broken:
        raise ModelError(f"{folder} is damaged ({broken}): fetch or train the model again.") from None
    if config.get("format") != FORMAT:
        raise ModelError(f"{folder} has model format {config.get('format')!r}, this version reads {FORMAT}.")
    history, report = config.pop("history", []), config.pop("report", {})
    empty = torch.zeros(0)
    member = Member(config, empty, empty, empty, empty, history, report)
    return _fill(member, tensors, folder)


def _fill(member: Member, tensors: dict[str, Tensor], folder: Path) -> Member:
    layout = member.net().layout
    wanted = {f"weights.{param.name}": param.shape for param in layout.params}
    for name, shape in wanted.items():
        if name not in tensors or tensors[name].shape[1:] != shape:
            found = tuple(tensors[name].shape[1:]) if name in tensors else "nothing"
            raise ModelError(
                f"{folder}: {name} should have the shape {shape}, found {found}: config and weights differ."
            )
    first = tensors[next(iter(wanted))]
    member.rows = first.new_zeros(len(first), layout.size)
    for name, view in layout.views(member.rows).items():
        view.copy_(tensors[f"weights.{name}"])
    member.mean, member.inverse = tensors["input.mean"], tensors["input.inverse"]
    member.table = tensors["head.table"]
    return member


def ensemble(members: list[Member]) -> Member:
    """One model of several trained with equal options (other seeds): their quantiles and candles are averaged."""
    if not members:
        raise ModelError("An ensemble needs at least one member.")
    first, ignored = members[0], {"seed", "seeds"}
    for other in members[1:]:
        differing = [k for k in first.config if k not in ignored and other.config.get(k) != first.config[k]]
        if differing:
            raise ModelError(f"An ensemble needs equal options, these differ: {', '.join(differing)}.")
    seeds = [seed for one in members for seed in one.config.get("seeds", [one.config["seed"]])]
    return Member(
        config={**first.config, "seeds": seeds},
        rows=torch.cat([one.rows for one in members]),
        mean=torch.cat([one.mean for one in members]),
        inverse=torch.cat([one.inverse for one in members]),
        table=torch.cat([one.table for one in members]),
        history=first.history,
        report={**first.report, "ensemble": len(seeds)},
    )


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all, also after a kill."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
