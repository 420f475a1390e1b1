"""The engine of this machine: a resident trainer for each of its devices (a cluster: `ray.py`)."""

import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from schemas.fleets import FleetSpec, is_universal
from schemas.handover import ShardJob, ShardResult
from schemas.home import home_folder
from schemas.run import RunSpec
from tasks.running.cores import Cores, usable_cores
from tasks.training.fleet_progress import FleetProgress
from tasks.training.gpus import check_device, gpus_of
from tasks.training.shard import prepare, read_result
from tasks.training.trainers import KERNELS, Trainers, plan_slots


def kernel_cache(folder: Path) -> dict[str, str]:
    """Return the environment that keeps compiled kernels in `triton` below a folder: a home's, or a node's.

    A TRITON_CACHE_DIR of the user's own goes before. Triton names what it keeps there by source, chip and versions.
    """
    return {"TRITON_CACHE_DIR": os.environ.get("TRITON_CACHE_DIR") or str(folder.absolute() / "triton")}


class LocalEngine:
    """This machine. Further shards wait in the order of submission; `gpus`: whether they train on GPUs.

    With GPUs, the trainers start immediately, concurrently with ingestion. On a CPU they would only occupy its cores,
    and their thread count depends on the plan: they start with the first shard that is not trained yet.
    """

    def __init__(self, spec: RunSpec, fleets: Sequence[FleetSpec]) -> None:
        """Start the trainers of GPUs.

        Args:
            fleets: what will probably be trained, whose kernels are compiled meanwhile.

        Raises:
            UsageError: the device is not available.
        """
        check_device(spec.device)
        self._device, gpus = spec.device, gpus_of(spec.device)
        self.gpus = bool(gpus)
        # Each GPU's trainer keeps a core busy with launches: judges share the rest.
        self.cores = Cores(max(1, usable_cores() - len(gpus)))
        # Only what a first training launches: a float64 or universal fleet uses no kernels, and one listed twice
        # needs them once.
        ahead = [
            fleet.model_dump()
            for number, fleet in enumerate(fleets)
            if spec.kernels
            and fleet.dtype == "float32"
            and not is_universal(fleet.architecture)
            and fleet not in fleets[:number]
        ]
        wanted = {"fleets": ahead, "profile": spec.profile}
        self._env = kernel_cache(home_folder()) | {KERNELS: json.dumps(wanted)}
        self._slots = plan_slots(spec.device, len(gpus))
        self._trainers = Trainers(self._slots, self.cores, self._env)
        if self.gpus:
            self._trainers.start()

    def plan(self, shards: int) -> int:
        """Prepare for a plan of `shards` shards; return how many to pass to `run` concurrently, each in a thread."""
        if not self.gpus:
            self._slots = plan_slots(self._device, shards)
            self._trainers = Trainers(self._slots, self.cores, self._env)
        return self._slots.workers

    def run(self, job: ShardJob, root: Path, timeout_s: float, progress: FleetProgress) -> ShardResult:
        """Train a shard below `root/fleets`: continued from its last checkpoint, skipped if done.

        Raises:
            CpbError: the shard failed as a whole; `TrainerDied` if another try may succeed.
        """
        folder = prepare(root, job)
        progress.begin(job, folder)
        self._trainers.train(
            folder,
            timeout_s,
            partial(progress.update, job),
            progress.waiting,
            partial(progress.read_written, job),
        )
        return read_result(folder)

    def close(self) -> None:
        """End the trainers, which releases their memory."""
        self._trainers.close()
