"""All that one fleet trains on and how: what `train_fleet` cuts a call into, and what its loop reads."""

import threading
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from cpbmodels.arch import find
from cpbmodels.arch.options import Preset, differing
from cpbmodels.arch.task import Task
from cpbmodels.data.series import Series
from cpbmodels.fleet.bank import Bank, Scaling
from cpbmodels.fleet.fleet import Fleet
from cpbmodels.fleet.kernel_switch import off_reason
from cpbmodels.fleet.net import Net
from cpbmodels.fleet.records import OnEpoch, OnStep


class Stopped(Exception):
    """Raised in a fleet when another part of its training failed or was interrupted."""


@dataclass(frozen=True)
class FleetJob:
    """All that one fleet trains on and how. `options` are what its members have in common (`Task.options`).

    of_members: how many the whole call trains. lock: fleets side by side report one at a time.
    stage, stages: an average trains its members in as many calls, this one from 1.
    """

    series: list[Series]
    architecture: str
    options: Preset
    device: torch.device
    dtype: torch.dtype  # of the master weights
    compute: torch.dtype  # of the products
    bank: Bank
    tasks: list[Task]
    checkpoint: Path | None = None
    resume: bool = False
    on_epoch: OnEpoch | None = None
    on_step: OnStep | None = None
    of_members: int = 1
    lock: threading.Lock = field(default_factory=threading.Lock)
    kernels: bool | str = True  # use `cpbmodels.kernels` where they can be used; False or a reason: do not
    stage: int = 1
    stages: int = 1
    halved_to: int = 0  # members at once since memory ran out; 0: it has not
    split_to: int = 0  # micro-batches per step since memory ran out for one member; 0: it has not
    stop: threading.Event = field(default_factory=threading.Event)  # set: all fleets stop at their next step

    @property
    def kernels_off(self) -> str:
        """Why the fleet does not use `cpbmodels.kernels`; "" where it may, if `kernel_check.kernels_off` agrees."""
        return off_reason(
            find(self.architecture), self.options, self.device, self.compute, wanted=self.kernels
        )

    def fleet(self, net: Net | None = None) -> Fleet:
        """A fleet with the initial weights of each task, on the device."""
        if net is None:
            kernels = None if self.kernels_off else self.compute
            net = Net(self.architecture, self.options, self.device, self.dtype, kernels)
        scales = (np.stack([getattr(task, name) for task in self.tasks]) for name in ("mean", "inverse"))
        scaling = Scaling(*(torch.as_tensor(scale).to(self.device, self.dtype) for scale in scales))
        seeds = torch.tensor([task.seed for task in self.tasks], device=self.device)
        differ = differing([task.options for task in self.tasks], self.device)
        # Drawn in float64 and rounded last, so that both types of weights start from the same numbers.
        flat = torch.stack([torch.as_tensor(net.layout.initial(task.seed)) for task in self.tasks])
        return Fleet(net, flat.to(self.device, self.dtype), seeds, scaling, self.compute, differ)
