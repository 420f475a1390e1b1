"""The description of one training that all its fleets share, and the record it reports after every epoch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from cpbmodels.arch.options import Preset
from cpbmodels.data.series import Series
from cpbmodels.fleet.member import Member
from cpbmodels.fleet.net import Net
from cpbmodels.kernels.support import off_reason


@dataclass(frozen=True)
class EpochRecord:
    """What `on_epoch` is called with, once per fleet and epoch.

    epoch: from 1. epochs: at most as many. lr: learning rate at the end of the epoch, of the first member.
    members: one dict per member that trained in this epoch: index in the returned list, symbol, timeframe, seed,
        train_loss, val_loss, lr, best_val_loss, stopped ("" while it is training).
    windows_per_s, seconds: of the whole fleet, validation included.
    memory: MB and percent, as `Monitor.latest` gives them.
    """

    epoch: int
    epochs: int
    lr: float
    members: list[dict[str, Any]]
    windows_per_s: float
    seconds: float
    memory: dict[str, float]


OnEpoch = Callable[[EpochRecord], Iterable[int] | None]
"""Called after every epoch of a fleet; may return indices of members that must stop now (of other fleets: ignored)."""


@dataclass(frozen=True)
class StepRecord:
    """What `on_step` is called with: once before a fleet's first step, then about every 0.3 s within an epoch.

    epoch: from 1, of at most `epochs`. step: done of the epoch's `steps` (on a GPU: launched). members: indices in the
    returned list of those that train. of_members: how many the whole call trains.
    device: as in `cpu` or `cuda:0`. data: rows and columns of the candles there, data_mb: their size.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    members: list[int]
    of_members: int
    device: str
    data: tuple[int, int]
    data_dtype: str
    data_mb: float


OnStep = Callable[[StepRecord], bool | None]
"""May return True: the fleet's members then stop within this epoch, each with the snapshot of its best one so far."""


class Stopped(Exception):
    """Raised in a fleet when another part of its training failed or was interrupted."""


@dataclass(frozen=True)
class Job:
    """Everything a fleet needs besides its tasks. `options` are what its members have in common (`Task.options`)."""

    series: list[Series]
    architecture: str
    options: Preset
    device: torch.device
    dtype: torch.dtype  # of the master weights
    compute: torch.dtype  # of the products
    checkpoint: Path | None
    resume: bool
    warm: list[Member | None] | None  # per task, the member it continues from
    on_epoch: OnEpoch | None
    on_step: OnStep | None = None
    of_members: int = 0  # members of the whole call
    kernels: bool = True  # whether to use `cpbmodels.kernels` if possible
    halved_to: int = 0  # members trained together since memory ran out; 0: it has not
    lock: threading.Lock = field(default_factory=threading.Lock)  # held while `on_epoch` or `on_step` runs
    stop: threading.Event = field(default_factory=threading.Event)  # set: all fleets stop at their next step

    @property
    def kernels_off(self) -> str:
        """Why its fleets do not use `cpbmodels.kernels`; "" if they do."""
        return off_reason(self.architecture, self.options, self.device, self.compute, self.kernels)

    def net(self) -> Net:
        """The net of its fleets."""
        kernels = None if self.kernels_off else self.compute
        return Net(self.architecture, self.options, self.device, self.dtype, kernels)
