"""The engines that train shards: this machine's resident trainers (here), or a cluster (`ray.py`).

A trainer is a separate process (`trainer.py`), because a long device call cannot be interrupted from within, because
one CPU fleet per core is faster than one fleet on all cores, and so that only the training process opens a device. It
is resident: importing torch and opening a GPU takes up to 10 s. It locks its GPU per shard, until the predictions are
done, so that another command can train in between.
"""

import json
import logging
import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from schemas.errors import CpbError
from schemas.handover import ShardJob, ShardResult
from schemas.run import RunSpec, base_of, is_universal
from schemas.scope import home
from tasks.running.parallel import usable_cores
from tasks.running.resident import Cores, Died, Pool, Resident
from tasks.storage.files import read_json_or_none
from tasks.storage.locks import pause
from tasks.training.devices import Slots, gpus_of, plan_slots
from tasks.training.files import GPU_LOST, KERNELS, LOG, PROGRESS, RESULT, kernel_cache, prepare, read_result
from tasks.training.progress import FleetProgress

log = logging.getLogger("cpb")

TRAINER = "tasks.training.trainer"
"""The module that trains."""

MALLOC = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "4294967296"}
"""Make glibc keep freed memory; read when a process starts, so set from outside. Otherwise every large temporary is
mapped and page-faulted again in each step (up to 30 % slower)."""

OUT_OF_MEMORY, DISK_FULL = "out-of-memory", "disk-full"
"""Codes of `TrainerDied` for two causes that the user can fix."""

_FULL_BYTES = 1 << 20
_BUSY_S = 0.5
"""Seconds between two tries of a GPU on which another command trains."""

Report = Callable[[dict[str, Any]], None]


class TrainerDied(CpbError):
    """The training process ended without a result; its checkpoints are kept."""

    default_code = "trainer-died"


class TrainingTimeout(CpbError):
    """The training exceeded its time limit and was stopped; its checkpoints are kept."""

    default_code = "timeout"


class Trainers:
    """Resident trainers, one per GPU or per CPU slot of the plan; each trains one shard at a time.

    Args:
        cores: on a CPU, the cores shared with judges.
        env_on_gpu: added to the environment of trainers that have a GPU.
    """

    def __init__(
        self, slots: Slots, cores: Cores | None = None, env_on_gpu: Mapping[str, str] | None = None
    ) -> None:
        self._on_gpu, self._threads = bool(slots.gpus), slots.threads
        self._cores = cores or Cores(slots.workers * slots.threads)
        self._kernels_off = ""
        env = MALLOC | {"CPB_THREADS": str(slots.threads), "OMP_NUM_THREADS": str(slots.threads)}
        if self._on_gpu:
            env |= env_on_gpu or {}
        # On a CPU all GPUs are hidden: a trainer would use them without their locks.
        devices = slots.gpus or ("",) * slots.workers
        self._pool = Pool([Resident(TRAINER, env | {"CUDA_VISIBLE_DEVICES": device}) for device in devices])

    def start(self) -> None:
        """Start them, so that they import libraries and open devices in the background."""
        for trainer in self._pool.residents:
            trainer.start()

    def train(
        self,
        folder: Path,
        timeout_s: float,
        on_progress: Report | None = None,
        on_wait: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Train the job in `folder` to its `result.json`; return immediately if it exists already.

        Waits for a free trainer first, and on a GPU until no other command trains there; `timeout_s` counts from then.
        An interrupt ends the trainer.

        Args:
            on_progress: called with the contents of `progress.json` whenever it has changed.
            on_wait: called with what the shard waits for.

        Raises:
            TrainerDied: the process failed or was killed; the next shard gets a new process.
            TrainingTimeout: it took longer than `timeout_s` seconds.
        """
        trained = (folder / RESULT).exists()
        while not trained:
            on_wait(f"waiting for a free {'GPU' if self._on_gpu else 'core'}")
            with self._pool.lent() as trainer, self._cores.held(0 if self._on_gpu else self._threads):
                on_wait("starting its trainer")
                kills = _oom_kills()
                try:
                    trained = self._call(trainer, folder, _watch(folder, timeout_s, on_progress))
                except Died as end:
                    if not (folder / RESULT).exists():
                        raise _death(folder, end, kills) from end
                    return
            if not trained:  # another command trains on that GPU
                pause(_BUSY_S)

    def _call(self, trainer: Resident, folder: Path, watch: Callable[[], None]) -> bool:
        """Order a shard; if its trainer dies in a launch, it and all later shards do without `cpbmodels.kernels`."""
        folder = folder.absolute()
        try:
            return bool(trainer.call((folder, self._kernels_off), folder / LOG, watch))
        except Died as end:
            crashed = end.returncode in (-signal.SIGABRT, -signal.SIGSEGV)
            if self._kernels_off or not self._on_gpu or not (crashed or GPU_LOST in end.last):
                raise
            self._kernels_off = f"a trainer died with them: {end.last}"
            log.warning("%s: its trainer died (%s); started again without Triton kernels", folder, end.last)
            return bool(trainer.call((folder, self._kernels_off), folder / LOG, watch))

    def stop(self) -> None:
        """End the trainers and release their devices' memory."""
        self._pool.stop()


def run_trainer(folder: Path, slots: Slots, timeout_s: float, on_progress: Report | None = None) -> None:
    """Train one job with a new trainer; see `Trainers`."""
    trainers = Trainers(slots)
    try:
        trainers.train(folder, timeout_s, on_progress)
    finally:
        trainers.stop()


def _watch(folder: Path, timeout_s: float, on_progress: Report | None) -> Callable[[], None]:
    """Return a callback for a running trainer: it reports progress and raises `TrainingTimeout`."""
    deadline, seen = time.monotonic() + timeout_s, _stamp(folder / PROGRESS)

    def look() -> None:
        nonlocal seen
        if time.monotonic() > deadline:
            raise TrainingTimeout(
                f"training {folder.name} ran past its limit of {timeout_s:.0f} s; run the same command again to "
                "resume it from its last checkpoint, or set train_timeout_s higher",
                field="train_timeout_s",
            )
        if on_progress and (stamp := _stamp(folder / PROGRESS)) != seen:
            seen = stamp
            if (progress := read_json_or_none(folder / PROGRESS)) is not None:
                on_progress(progress)

    return look


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def _death(folder: Path, end: Died, kills: int) -> TrainerDied:
    """Return an error with the cause: the last line of the log is more specific than an exit code."""
    log, last, returncode = f"(log: {folder / LOG})", end.last, end.returncode
    if _is_full(folder) or re.search(r"No space left on device|Disk quota exceeded", last):
        return TrainerDied(
            f"no space left on the disk of {folder}: training stopped; free some space, then run the same command "
            "again to resume it",
            code=DISK_FULL,
            field=str(folder),
        )
    if returncode == -signal.SIGKILL and _oom_kills() > kills:
        last = "the kernel killed it"
    elif not re.search(r"MemoryError|out of memory|(can't|cannot) allocate memory", last, re.IGNORECASE):
        how = f"was killed by signal {-returncode}" if returncode < 0 else f"ended with code {returncode}"
        return TrainerDied(f"training process {how}: {last} {log}")
    return TrainerDied(
        f"training process ran out of memory: {last}; lower batch_size, train fewer series together, or add memory, "
        f"then run the same command again to resume it {log}",
        code=OUT_OF_MEMORY,
    )


def _is_full(folder: Path) -> bool:
    """Whether the disk is almost full: then the log may lack the line that would report it."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize < _FULL_BYTES or (disk.f_files > 0 and disk.f_favail == 0)


def _oom_kills() -> int:
    """Return the number of OOM kills by the kernel since boot; 0 if unknown."""
    try:
        found = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0


class Engine(Protocol):
    """The resources that a run plans for, and that train its shards."""

    @property
    def gpus(self) -> bool:
        """Whether shards train on GPUs."""
        ...

    @property
    def cores(self) -> Cores:
        """The cores of this machine shared by trainers and judges."""
        ...

    def plan(self, shards: int) -> int:
        """Prepare for a plan of `shards` shards; return how many to pass to `run` concurrently, each in a thread."""
        ...

    def run(self, job: ShardJob, root: Path, timeout_s: float, progress: FleetProgress) -> ShardResult:
        """Train a shard below `root/fleets`: continued from its last checkpoint, skipped if done.

        Raises:
            CpbError: the shard failed as a whole; `TrainerDied` if another try may succeed.
        """
        ...

    def leave(self) -> None:
        """Release the training resources: the run trains no further shards."""
        ...


def kernel_environment(spec: RunSpec) -> dict[str, str]:
    """Return where a trainer's compiled kernels are kept, and what it compiles before its first shard."""
    used = spec.kernels and spec.dtype == "float32"
    names = [base_of(name) for name in spec.names if not is_universal(name)] if used else []
    wanted = {"names": names, "preset": spec.preset, "profile": spec.profile, "overrides": spec.overrides}
    return kernel_cache(home()) | {KERNELS: json.dumps(wanted)}


class LocalEngine:
    """This machine. Further shards wait in the order of submission.

    With GPUs, the trainers start immediately, concurrently with ingestion. On a CPU they would only occupy its cores,
    and their thread count depends on the plan: they start with the first shard that is not trained yet.
    """

    def __init__(self, spec: RunSpec) -> None:
        self._device = spec.device
        self._gpus = gpus_of(spec.device)
        self.cores = Cores(max(1, usable_cores() - len(self._gpus)))
        self._slots = plan_slots(spec.device, len(self._gpus))
        self._env = kernel_environment(spec)
        self._trainers = self._made()
        if self._gpus:
            self._trainers.start()

    def _made(self) -> Trainers:
        return Trainers(self._slots, self.cores, self._env)

    @property
    def gpus(self) -> bool:
        """Whether this machine has GPUs selected by the device."""
        return bool(self._gpus)

    def plan(self, shards: int) -> int:
        """Prepare a trainer per GPU, or per core; the caller queues the shards, largest first."""
        if not self._gpus:
            self._slots = plan_slots(self._device, shards)
            self._trainers = self._made()
        return self._slots.workers

    def run(self, job: ShardJob, root: Path, timeout_s: float, progress: FleetProgress) -> ShardResult:
        """Train a shard on the next free trainer; see `Engine`."""
        folder = prepare(root, job)
        self._trainers.train(folder, timeout_s, partial(progress.take, job), progress.waiting)
        return read_result(folder)

    def leave(self) -> None:
        """End the trainers, which releases their memory."""
        self._trainers.stop()
