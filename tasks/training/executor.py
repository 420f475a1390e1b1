"""Who runs the shards: this machine (here), or a cluster (`ray_executor.py`)."""

from pathlib import Path
from typing import Protocol

from schemas.errors import CpbError
from schemas.handover import FleetJob, FleetResult
from tasks.training.fleet_files import prepare, read_result
from tasks.training.process import run_trainer
from tasks.training.slots import Slots
from tasks.training.told import ShardTold


class EngineLost(CpbError):
    """What trains the shards is gone, for this shard and all others: the run ends, and what is finished stays."""

    default_code = "engine-lost"


class Executor(Protocol):
    """Runs shards."""

    @property
    def calls(self) -> int:
        """How many shards are handed over at the same time, in as many threads."""
        ...

    @property
    def retries(self) -> int:
        """How often a shard whose trainer died is handed over once more; 0 where the executor does that itself."""
        ...

    @property
    def on_gpus(self) -> bool:
        """Whether shards wait for GPUs of this machine."""
        ...

    def run(self, job: FleetJob, root: Path, timeout_s: float, told: ShardTold) -> FleetResult:
        """Train and judge a shard below `root/fleets`: continued from its last checkpoint, skipped where it is done.

        Raises:
            CpbError: the shard failed as a whole; `TrainerDied` where another try may succeed.
            EngineLost: no shard can be trained any more.
        """
        ...


class LocalExecutor:
    """Trainers on this machine, one for each slot; further shards wait in the order in which they are handed over."""

    retries = 1

    def __init__(self, slots: Slots) -> None:
        self._slots = slots

    @property
    def calls(self) -> int:
        """One for each slot: the queue is in the caller, who gives the dearest shards first."""
        return self._slots.workers

    @property
    def on_gpus(self) -> bool:
        """Whether the slots are GPUs."""
        return bool(self._slots.gpus)

    def run(self, job: FleetJob, root: Path, timeout_s: float, told: ShardTold) -> FleetResult:
        """Train and judge a shard on the next free slot; see `Executor`."""
        folder = prepare(root, job)
        told.waiting("GPU" if self.on_gpus else "core")
        run_trainer(folder, self._slots, timeout_s, told, told.starting)
        return read_result(folder)
