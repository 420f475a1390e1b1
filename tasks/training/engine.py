"""Where a run trains: on this machine, or on a Ray cluster."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from schemas.run import LOCAL, RAY, RunSpec
from tasks.training.executor import Executor, LocalExecutor
from tasks.training.ray_address import ADDRESS, check_cluster
from tasks.training.slots import check_device, gpus_of, plan_slots


class Engine(Protocol):
    """What a run plans for, and who trains its shards."""

    @property
    def gpus(self) -> bool:
        """Whether shards train on GPUs."""
        ...

    def executor(self, shards: int) -> Executor:
        """Return who runs a plan of so many shards."""
        ...

    def leave(self) -> None:
        """Let go of what trains shards: nothing else of the run is trained."""
        ...


class LocalEngine:
    """This machine."""

    def __init__(self, device: str) -> None:
        self._device = device

    @property
    def gpus(self) -> bool:
        """Whether this machine has GPUs that the device names."""
        return bool(gpus_of(self._device))

    def executor(self, shards: int) -> LocalExecutor:
        """Return the executor with a slot per GPU, or per core."""
        return LocalExecutor(plan_slots(self._device, shards))

    def leave(self) -> None:
        """Do nothing: slots are given back one by one."""


def check_engine(spec: RunSpec) -> None:
    """Look at the engine's settings, before anything is fetched.

    Raises:
        UsageError: a setting is none, or the device is not there.
        CpbError: nothing answers at the cluster's address, or others may read its token.
    """
    if _name(spec) == LOCAL:
        check_device(spec.device)
    else:
        check_cluster()


def _name(spec: RunSpec) -> str:
    return spec.engine or (RAY if os.environ.get(ADDRESS) else LOCAL)


@contextmanager
def opened_engine(spec: RunSpec) -> Iterator[Engine]:
    """Yield the engine that the run names, or else the cluster of `RAY_ADDRESS`, or else this machine.

    Raises:
        UsageError: the device is not there.
        CpbError: Ray is not installed, or its cluster cannot be used.
    """
    if _name(spec) == LOCAL:
        yield LocalEngine(spec.device)
        return
    from tasks.training.ray_engine import connected

    with connected(spec) as engine:
        yield engine
