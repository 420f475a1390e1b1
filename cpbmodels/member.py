"""One trained model with its history and report; saving, loading and averaging."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, cast

import torch
from torch import Tensor

from cpbmodels.arch import ENTRY_POINT_GROUP, architectures
from cpbmodels.errors import DamagedModelError, ModelError
from cpbmodels.figures import WARMUP
from cpbmodels.files import write_whole
from cpbmodels.model import Model
from cpbmodels.prediction import Forecast, forecast_all, predict_rows
from cpbmodels.series import Series

if TYPE_CHECKING:
    import polars as pl

FORMAT = 1


class Report(TypedDict, total=False):
    """How a training went. Speed, seconds and device figures are those of the member's fleet."""

    diverged: bool
    """True: a loss was NaN or infinite before any epoch improved validation, so the weights are the initial ones. The
    member forecasts like an untrained model; do not use it. (A later divergence keeps the snapshot of `best_epoch`.)"""
    stopped: str  # "early_stop", "max_epochs", "nan" (a loss was not finite), "on_request" or "closed_form"
    reason: str  # why it stopped, as a sentence
    epochs_run: int
    best_epoch: int  # from 1; 0: no epoch improved validation
    best_val_loss: float
    train_windows: int
    validation_windows: int
    accumulate: int  # micro-batches per step; more than asked for where memory was short
    fleet_members: int
    halved_to: int  # most members at once since memory ran out; 0: it did not
    windows_per_s: float
    train_seconds: float
    device: str
    compute_dtype: str  # of the products
    device_warning: str  # "" or a sentence: the GPU mostly waited, or could not be measured
    rss_peak_mb: float
    gpu_mem_allocated_peak_mb: float
    gpu_mem_reserved_peak_mb: float
    gpu_util_mean: float  # absent where the driver does not tell
    gpu_power_mean_w: float
    accuracy: float  # classifiers: on the validation windows
    confusion: list[list[int]]  # classifiers: rows truth, columns forecast, each up, flat, down
    ensemble: int  # ensembles: number of averaged models; all else is the first one's, but `diverged` and `accumulate`


@dataclass
class Member(Model):
    """A trained model. `history` has one dict per epoch: epoch, train_loss, val_loss, lr."""

    history: list[dict[str, Any]] = field(default_factory=list)
    report: Report = field(default_factory=Report)

    def forecast(self, series: Series, *, go_back: bool = False) -> Forecast:
        """The forecast after the series' last candle.

        Args:
            go_back: where that cannot be, forecast after the last candle from which it can (`Forecast.issued_at`).

        Raises:
            ModelError: the series is of another timeframe, or a gap or jump lies so near its end that the columns of
                the last candle are not known yet.
        """
        check_series(self, series)
        found = forecast_all([self], [series])[0]
        if not go_back and found.issued_row != len(series) - 1:
            age = int((series.segments == series.segments[-1]).sum())
            more = max(WARMUP + self.context - age, 1)
            raise ModelError(
                f"{series.label}: no forecast after its last candle: a gap or jump {age} candles before its end leaves "
                f"columns that are not known yet; {more} more candles without one are needed."
            )
        return found

    def predict(self, series: Series, since: datetime | str | None = None) -> pl.DataFrame:
        """The forecasts from every origin at once, as rows of `Forecast.to_frame`; for backtests.

        Args:
            since: the first origin's time (UTC close of the last candle used), as an aware datetime or a text;
                None: from the first candle with a whole context on. `known_until` is a good choice.
        """
        check_series(self, series)
        return predict_rows(self, series, since)

    @property
    def known_until(self) -> datetime | None:
        """The end (UTC) of all candles it learned from, was stopped by or was chosen on; None where unknown.

        Forecasts from earlier origins are no test of the model.
        """
        text = self.config.get("known_until") or self.config.get("bounds", {}).get("test", [None, None])[1]
        return datetime.fromisoformat(text) if text else None

    def __repr__(self) -> str:
        """One line: architecture, series, seed, and until when it knows the market."""
        config, until = self.config, self.known_until
        seeds = config.get("seeds", config.get("seed"))
        known = f", knows candles until {until:%Y-%m-%d}" if until else ""
        name = f"{config.get('symbol') or '-'} {config.get('timeframe') or ''}".strip()
        return f"<Member {config['architecture']}, {name}, seed {seeds}{known}>"

    def save(self, folder: str | Path, extra: Mapping[str, Any] | None = None) -> Path:
        """Write model.safetensors and config.json (plus `extra`: training span, digest, metrics), each as a whole."""
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


def check_series(member: Member, series: Series) -> None:
    """Raise ModelError where `series` is no Series, or its candles are longer or shorter than those the model knows."""
    if not isinstance(series, Series):
        raise ModelError(
            f"A {type(series).__name__} is no Series of candles: make one with Series.from_frame."
        )
    trained = member.config.get("timeframe")
    if trained and series.timeframe and trained != series.timeframe:
        raise ModelError(
            f"{series.label}: the model was trained on {trained} candles and these are {series.timeframe}: give it "
            f"{trained} candles."
        )


def load(folder: str | Path) -> Member:
    """A member from its folder. Reads no pickle and runs no code from it; ModelError names what is wrong.

    A published folder's config.json holds the sha256 of its weights, which is checked.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    folder = Path(folder)
    try:
        config = json.loads((folder / "config.json").read_text())
        weights = (folder / "model.safetensors").read_bytes()
        _check_digest(config, weights, folder)
        tensors = from_bytes(weights)
    except FileNotFoundError as missing:
        raise ModelError(
            f"{missing.filename} is missing: a model folder holds config.json and model.safetensors."
        ) from None
    except (UnicodeDecodeError, json.JSONDecodeError, SafetensorError) as broken:
        raise DamagedModelError(f"{folder} is damaged ({broken}): fetch or train the model again.") from None
    if config.get("format") != FORMAT:
        raise ModelError(f"{folder} has model format {config.get('format')!r}, this version reads {FORMAT}.")
    name = config.get("architecture")
    if name not in architectures():
        raise ModelError(
            f"{folder} is a model of the architecture {name!r}, which is not installed here: install the package "
            f"that registers it under the entry-point group {ENTRY_POINT_GROUP}."
        )
    history, report = config.pop("history", []), cast(Report, config.pop("report", {}))
    # Folders written before the flag existed hold what it follows from.
    report.setdefault("diverged", report.get("stopped") == "nan" and not report.get("best_epoch"))
    empty = torch.zeros(0)
    member = Member(config, empty, empty, empty, empty, history, report)
    return _fill(member, tensors, folder)


def _check_digest(config: Any, weights: bytes, folder: Path) -> None:
    """Take `weights_sha256` out of the config: a member saved from this one has weights of its own."""
    if not isinstance(config, dict):
        raise DamagedModelError(
            f"{folder} is damaged (config.json is no object): fetch or train the model again."
        )
    told = config.pop("weights_sha256", None)
    if told not in (None, hashlib.sha256(weights).hexdigest()):
        raise DamagedModelError(
            f"{folder} is damaged (the sha256 of model.safetensors is not the one in config.json): fetch or train the "
            "model again."
        )


def _fill(member: Member, tensors: dict[str, Tensor], folder: Path) -> Member:
    """Put the tensors of a file into the member's rows, after a check of names and shapes."""
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
    """One model of several trained with equal options and other seeds: their quantiles and candles are averaged.

    Its history, and its report apart from `diverged`, `accumulate` and `ensemble`, are the first one's.
    """
    if not members:
        raise ModelError("An ensemble needs at least one member.")
    # `accumulate` may have grown for want of memory between one member and the next; it changes no result.
    first, ignored = members[0], {"seed", "seeds", "accumulate"}
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
        report={
            **first.report,
            "ensemble": len(seeds),
            "accumulate": max(one.report.get("accumulate", 1) for one in members),
            "diverged": any(one.report.get("diverged", False) for one in members),
        },
    )
