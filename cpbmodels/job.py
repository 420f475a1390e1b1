"""What a training is made of, and what it reports after every epoch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from cpbmodels.member import Member
from cpbmodels.options import Preset
from cpbmodels.series import Series


@dataclass(frozen=True)
class EpochRecord:
    """What `on_epoch` is told. `members`: one dict per member that trained in this epoch (symbol, timeframe, seed,
    index in the returned list, train_loss, val_loss, best_val_loss, stopped)."""

    epoch: int
    epochs: int
    lr: float
    members: list[dict[str, Any]]
    windows_per_s: float
    seconds: float
    memory: dict[str, float]


class Stopped(Exception):
    """A fleet gave up because another part of its training was interrupted."""


@dataclass(frozen=True)
class Job:
    """Everything a fleet needs besides its tasks."""

    series: list[Series]
    architecture: str
    options: Preset
    device: torch.device
    dtype: torch.dtype
    compute: torch.dtype
    checkpoint: Path | None
    resume: bool
    warm: list[Member | None] | None
    on_epoch: Callable[[EpochRecord], None] | None
    lock: threading.Lock = field(default_factory=threading.Lock)
    stop: threading.Event = field(default_factory=threading.Event)  # set: side-by-side fleets give up
