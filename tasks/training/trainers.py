"""Resident trainers: a process per GPU or CPU slot, which trains one shard at a time.

A trainer is a separate process (`trainer.py`), because a long device call cannot be interrupted from within, because
one CPU fleet per core is faster than one fleet on all cores, and so that only the training process opens a device. It
is resident: importing torch and opening a GPU takes up to 10 s.
"""

import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.errors import CpbError, log
from tasks.running.cores import Cores, usable_cores
from tasks.running.resident import Died, Pool, WorkerProcess
from tasks.storage.files import disk_of, read_json_or_none
from tasks.storage.interrupts import pause
from tasks.training.gpu_locks import BUSY_S
from tasks.training.gpus import CPU_BUILD, gpus_of, torch_cuda, visible_gpus
from tasks.training.shard import LOG, PROGRESS, RESULT

TRAINER = "tasks.training.trainer"
"""The module that trains."""

KERNELS = "CPB_KERNELS"
"""Environment of a trainer: the architectures whose kernels it compiles before its first request, as JSON."""

GPU_LOST = "the process lost its GPU"
"""Begins a trainer's last words where a launch made the device unusable for the process."""

MALLOC = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "4294967296"}
"""Make glibc keep freed memory; read when a process starts, so set from outside. Otherwise every large temporary is
mapped and page-faulted again in each step (up to 30 % slower)."""


OnProgress = Callable[[dict[str, Any]], None]


class TrainerDied(CpbError):
    """The training process ended without a result; its checkpoints are kept."""

    default_code = "trainer-died"


class TrainingTimeout(CpbError):
    """The training exceeded its time limit and was stopped; its checkpoints are kept."""

    default_code = "timeout"


@dataclass(frozen=True)
class Slots:
    """Slots for concurrent shards: GPUs by UUID, or a number of CPU processes."""

    gpus: tuple[str, ...]
    workers: int
    threads: int


def plan_slots(device: str, shards: int) -> Slots:
    """Return the slots for a plan of `shards` shards: one per GPU, else one process per core.

    With more than one shard, each has one CPU thread, however many cores there are: the last bits of a CPU result
    depend on the thread count, and must depend neither on the machine nor on the remaining work. A single shard uses
    all cores.
    """
    gpus = gpus_of(device)
    if gpus:
        # A GPU's trainer needs CPU threads for what the device does not do, and shares them fairly with the others'.
        return Slots(gpus, len(gpus), max(1, (os.cpu_count() or 1) // len(gpus)))
    if device != "cpu" and torch_cuda() is None and visible_gpus():
        log.warning("%s; training on the CPU (`cpb doctor` says what to install)", CPU_BUILD)
    cores = usable_cores()
    return Slots((), 1, cores) if shards <= 1 else Slots((), min(cores, shards), 1)


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
        # Two names of the same number: ours is read by the trainer before torch, OpenMP's by the C library as it is
        # loaded.
        env = MALLOC | {"CPB_THREADS": str(slots.threads), "OMP_NUM_THREADS": str(slots.threads)}
        if self._on_gpu:
            env |= env_on_gpu or {}
        # On a CPU all GPUs are hidden: a trainer would use them without their locks.
        devices = slots.gpus or ("",) * slots.workers
        self._pool = Pool(
            [WorkerProcess(TRAINER, env | {"CUDA_VISIBLE_DEVICES": device}) for device in devices]
        )

    def start(self) -> None:
        """Start them, so that they import libraries and open devices in the background."""
        for trainer in self._pool.residents:
            trainer.start()

    def train(
        self,
        folder: Path,
        timeout_s: float,
        on_progress: OnProgress | None = None,
        on_wait: Callable[[str], None] = lambda text: None,
        on_poll: Callable[[], None] = lambda: None,
    ) -> None:
        """Train the job in `folder` to its `result.json`; return immediately if it exists already.

        Waits for a free trainer first, and on a GPU until no other command trains there; `timeout_s` counts from then.
        An interrupt ends the trainer.

        Args:
            on_progress: called with the contents of `progress.json` whenever it has changed.
            on_wait: called with what the shard waits for.
            on_poll: called about every 0.05 s while the trainer works, and once after it.

        Raises:
            TrainerDied: the process failed or was killed; the next shard gets a new process.
            TrainingTimeout: it took longer than `timeout_s` seconds.
        """
        trained = (folder / RESULT).exists()
        while not trained:
            on_wait(f"waiting for a free {'GPU' if self._on_gpu else 'core'}")
            # The trainer first, then cores: one that held cores while it waited for a trainer would keep judges from
            # them.
            with self._pool.lent() as trainer, self._cores.held(0 if self._on_gpu else self._threads):
                on_wait("starting its trainer")
                try:
                    trained = self._call(trainer, folder, _watch(folder, timeout_s, on_progress, on_poll))
                except Died as end:
                    if not (folder / RESULT).exists():
                        raise _death(folder, end) from end
                    return
            if not trained:  # another command trains on that GPU
                pause(BUSY_S)

    def _call(self, trainer: WorkerProcess, folder: Path, watch: Callable[[], None]) -> bool:
        """Have a shard trained; if its trainer dies in a launch, it and later ones do without `cpbmodels.kernels`."""
        folder = folder.absolute()
        try:
            return bool(trainer.call((folder, self._kernels_off), folder / LOG, watch))
        except Died as end:
            # A fault inside a kernel ends the process, by a signal or by a device that answers no more; a Python
            # error has a message of its own and is not tried again.
            crashed = end.returncode in (-signal.SIGABRT, -signal.SIGSEGV)
            if self._kernels_off or not self._on_gpu or not (crashed or GPU_LOST in end.last):
                raise
            self._kernels_off = f"a trainer died with them: {end.last}"
            log.warning("%s: its trainer died (%s); started again without Triton kernels", folder, end.last)
            return self._call(trainer, folder, watch)

    def close(self) -> None:
        """End the trainers and release their devices' memory."""
        self._pool.stop()


def run_trainer(folder: Path, slots: Slots, timeout_s: float, on_progress: OnProgress | None = None) -> None:
    """Train one job with a new trainer; see `Trainers`."""
    with closing(Trainers(slots)) as trainers:
        trainers.train(folder, timeout_s, on_progress)


def _watch(
    folder: Path, timeout_s: float, on_progress: OnProgress | None, on_poll: Callable[[], None]
) -> Callable[[], None]:
    """Return a callback for a running trainer: it reports progress and raises `TrainingTimeout`."""
    # By inode and time of change: the file is replaced, so either differs, and nothing is read that is not new.
    path, deadline = folder / PROGRESS, time.monotonic() + timeout_s

    def stamp() -> tuple[int, int] | None:
        with suppress(FileNotFoundError):
            status = path.stat()
            return status.st_ino, status.st_mtime_ns
        return None

    last = stamp()

    def poll() -> None:
        nonlocal last
        if time.monotonic() > deadline:
            raise TrainingTimeout(
                f"training {folder.name} ran past its limit of {timeout_s:.0f} s; run the same command again to "
                "resume it from its last checkpoint, or set train_timeout_s higher",
                field="train_timeout_s",
            )
        if on_progress and (changed := stamp()) != last:
            last = changed
            if (progress := read_json_or_none(path)) is not None:
                on_progress(progress)
        on_poll()

    return poll


def _death(folder: Path, end: Died) -> TrainerDied:
    """Return an error with the cause: the last line of the log is more specific than an exit code."""
    how = (
        f"was killed by signal {-end.returncode}"
        if end.returncode < 0
        else f"ended with code {end.returncode}"
    )
    message = (
        f"training process {how}: {end.last} (log: {folder / LOG}); run the same command again to resume it"
    )
    # On a full disk the log may lack the line that would report it.
    if shutil.disk_usage(folder).free < 1 << 20 or re.search("No space left|quota exceeded", end.last):
        return TrainerDied(
            f"no space left on the disk at {disk_of(folder)}: free some, then run the same command again to resume it",
            code="disk-full",
            field=str(folder),
        )
    if re.search(r"MemoryError|out of memory|(can't|cannot) allocate memory", end.last, re.IGNORECASE):
        remedy = "lower batch_size, train fewer series together, or add memory"
        return TrainerDied(f"{message}, or {remedy}", code="out-of-memory")
    return TrainerDied(message)
