"""What a training tells whoever called it: a record per epoch of a fleet, and some within an epoch."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class EpochRecord:
    """What `on_epoch` is called with, once per fleet and epoch.

    epoch: from 1. epochs: at most as many. lr: learning rate at the end of the epoch, of the first member.
    members: one dict per member that trained in this epoch: index in the returned list, symbol, timeframe, seed,
        train_loss, val_loss, lr, best_val_loss, stopped ("" while it goes on).
    windows_per_s, seconds: of the whole fleet, validation included.
    memory: MB and percent, as `Monitor.latest` gives them.
    architecture: what the fleet trains: in the training of an average, one of its members.
    stage: of how many `stages` this fleet is part, from 1: an average trains its members one after the other.
    of_members: how many the whole call trains, in each stage.
    last: train_loss and val_loss of the last epoch that each member of the fleet trained, by index in the returned
        list: of those that have stopped, too.
    """

    epoch: int
    epochs: int
    lr: float
    members: list[dict[str, Any]]
    windows_per_s: float
    seconds: float
    memory: dict[str, float]
    architecture: str = ""
    stage: int = 1
    stages: int = 1
    of_members: int = 1
    last: dict[int, tuple[float, float]] = field(default_factory=dict)


OnEpoch = Callable[[EpochRecord], Iterable[int] | None]
"""Called after every epoch of a fleet; may return indices of members that shall stop now (of other fleets: ignored)."""


@dataclass(frozen=True)
class StepRecord:
    """What `on_step` is called with: once before a fleet's first step, then about every 0.3 s within an epoch.

    epoch: from 1, of at most `epochs`. step: done of the epoch's `steps` (on a GPU: launched). members: indices in the
    returned list of those that train. of_members: how many the whole call trains.
    device: as in `cpu` or `cuda:0`. data: rows and columns of the candles there, data_mb: their size.
    architecture, stage, stages: as in `EpochRecord`.
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
    architecture: str = ""
    stage: int = 1
    stages: int = 1


OnStep = Callable[[StepRecord], bool | None]
"""May return True: the fleet's members then stop within this epoch, each with the snapshot of its best epoch so far."""
