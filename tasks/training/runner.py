"""Who runs the shards: this machine's resident trainers (here), or a cluster (`ray_executor.py`).

A trainer is a process of its own (`trainer.py`), because a long device call cannot be interrupted from within, because
one CPU fleet per core is faster than one fleet on all cores, and because a device is opened by whoever trains on it
alone. It stays: importing torch and opening a GPU takes up to 10 s. Its GPU is locked for a shard, just before it is
ordered, until it is predicted, so that another command can train in between.
"""

import json
import logging
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Protocol

from schemas.errors import BusyError, CpbError
from schemas.handover import ShardJob, ShardResult
from schemas.run import LOCAL, RAY, UNIVERSAL, RunSpec, base_of
from schemas.scope import home
from schemas.wording import install_extra
from tasks.running.parallel import usable_cores
from tasks.running.resident import Cores, Died, Pool, Resident
from tasks.storage.files import read_json_or_none
from tasks.storage.locks import acquire, machine_lock, open_lock, release
from tasks.training.devices import Slots, check_device, gpus_of, plan_slots
from tasks.training.files import KERNELS, LOG, PROGRESS, RESULT, prepare, read_result
from tasks.training.progress import FleetProgress
from tasks.training.ray_address import ADDRESS, check_cluster

log = logging.getLogger("cpb")

TRAINER = "tasks.training.trainer"
"""The module that trains."""

MALLOC = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "4294967296"}
"""glibc keeps memory that was freed; read when a process starts, so set from outside. Otherwise every large temporary
is mapped and page-faulted anew in each step (up to 30 % slower)."""

OUT_OF_MEMORY, DISK_FULL = "out-of-memory", "disk-full"
"""Codes of `TrainerDied` for two causes that the user can mend."""

_FULL_BYTES = 1 << 20

Report = Callable[[dict[str, Any]], None]


class EngineLost(CpbError):
    """What trains the shards is gone, for this shard and all others: the run ends, and what is finished stays."""

    default_code = "engine-lost"


class TrainerDied(CpbError):
    """The training process ended without a result; what it had checkpointed stays."""

    default_code = "trainer-died"


class TrainingTimeout(CpbError):
    """The training ran past its time limit and was stopped; what it had checkpointed stays."""

    default_code = "timeout"


class Trainers:
    """Resident trainers, one per GPU or as many as the plan has CPU slots; each is lent to one shard at a time.

    Args:
        label: for `ps`: where they train.
        cores: on a CPU, what they share with judges.
        env_on_gpu: added to the environment of those that have a GPU.
    """

    def __init__(
        self,
        slots: Slots,
        label: Path,
        cores: Cores | None = None,
        env_on_gpu: Mapping[str, str] | None = None,
    ) -> None:
        self._cores, self._threads = None if slots.gpus else cores, slots.threads
        self._locks: dict[Resident, IO[bytes]] = {}
        env = MALLOC | {"CPB_THREADS": str(slots.threads), "OMP_NUM_THREADS": str(slots.threads)}
        if slots.gpus:
            env |= env_on_gpu or {}
            files = {gpu: open_lock(machine_lock(f"cpb-{gpu}.lock"), everyone=True) for gpu in slots.gpus}
            # The descriptor goes to the trainer: the GPU is free when the trainer has ended as well.
            trainers = [
                Resident(TRAINER, str(label), env | {"CUDA_VISIBLE_DEVICES": gpu}, [file.fileno()])
                for gpu, file in files.items()
            ]
            self._locks = dict(zip(trainers, files.values(), strict=True))
        else:  # sees no GPU: it would use one without its lock
            trainers = [
                Resident(TRAINER, str(label), env | {"CUDA_VISIBLE_DEVICES": ""})
                for _ in range(slots.workers)
            ]
        self._pool = Pool(trainers)

    def start(self) -> None:
        """Let them import their libraries and open their devices beside what the caller does meanwhile."""
        self._pool.start()

    def train(
        self,
        folder: Path,
        timeout_s: float,
        on_progress: Report | None = None,
        on_start: Callable[[], None] | None = None,
    ) -> None:
        """Train the job in `folder` to its `result.json`; return at once where that is there already.

        Waits for a free trainer first; `timeout_s` counts from then. An interrupt ends the trainer.

        Args:
            on_progress: called with the contents of `progress.json` whenever it has changed.
            on_start: called when a trainer is free.

        Raises:
            TrainerDied: the process failed or was killed; the next shard gets a new one.
            TrainingTimeout: it ran past `timeout_s` seconds.
        """
        if (folder / RESULT).exists():
            return
        with self._lent() as trainer:
            if on_start:
                on_start()
            kills = _oom_kills()
            try:
                trainer.call(
                    {"folder": str(folder.absolute())}, folder / LOG, _watch(folder, timeout_s, on_progress)
                )
            except Died as end:
                if not (folder / RESULT).exists():
                    raise _death(folder, end, kills) from end

    @contextmanager
    def _lent(self) -> Iterator[Resident]:
        with ExitStack() as stack:
            trainer = stack.enter_context(self._pool.lent(self._locked))
            if trainer in self._locks:
                stack.callback(release, self._locks[trainer])
            elif self._cores:
                stack.enter_context(self._cores.held(self._threads))
            yield trainer

    def _locked(self, trainer: Resident) -> bool:
        """Whether the trainer's GPU, if it has one, could be locked."""
        try:
            if trainer in self._locks:
                acquire(self._locks[trainer], wait=False)
        except BusyError:  # another command's training
            return False
        return True

    def stop(self) -> None:
        """End the trainers, and give their devices' memory back."""
        self._pool.stop()
        for file in self._locks.values():
            file.close()


def run_trainer(
    folder: Path,
    slots: Slots,
    timeout_s: float,
    on_progress: Report | None = None,
    on_start: Callable[[], None] | None = None,
) -> None:
    """Train one job with a trainer of its own; see `Trainers.train`."""
    trainers = Trainers(slots, folder)
    try:
        trainers.train(folder, timeout_s, on_progress, on_start)
    finally:
        trainers.stop()


def _watch(folder: Path, timeout_s: float, on_progress: Report | None) -> Callable[[], None]:
    """Return what is called while a trainer is at work: it tells progress, and ends what takes too long."""
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
    """Return the error that names the cause: the last line of the log tells more than an exit code."""
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
        f"training process ran out of memory: {last}; lower batch_size, train fewer series at once, or add memory, "
        f"then run the same command again to resume it {log}",
        code=OUT_OF_MEMORY,
    )


def _is_full(folder: Path) -> bool:
    """Whether next to nothing can be written: then the log lacks the line that would say so."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize < _FULL_BYTES or (disk.f_files > 0 and disk.f_favail == 0)


def _oom_kills() -> int:
    """Return how many processes the kernel has killed for want of memory since it started; 0 where it does not say."""
    try:
        found = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0


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

    def run(self, job: ShardJob, root: Path, timeout_s: float, progress: FleetProgress) -> ShardResult:
        """Train a shard below `root/fleets`: continued from its last checkpoint, skipped where it is done.

        Raises:
            CpbError: the shard failed as a whole; `TrainerDied` where another try may succeed.
            EngineLost: no shard can be trained any more.
        """
        ...


class Engine(Protocol):
    """What a run plans for, and who trains its shards."""

    @property
    def gpus(self) -> bool:
        """Whether shards train on GPUs."""
        ...

    @property
    def cores(self) -> Cores:
        """The cores of this machine that judges may take beside what trains here."""
        ...

    def executor(self, shards: int) -> Executor:
        """Return who runs a plan of so many shards."""
        ...

    def leave(self) -> None:
        """Let go of what trains shards: nothing else of the run is trained."""
        ...


def kernel_environment(spec: RunSpec) -> dict[str, str]:
    """Return where a trainer's compiled kernels are kept, and what it compiles before its first shard.

    Triton's folders below `TRITON_CACHE_DIR` are named by chip, versions and source.
    """
    kept = os.environ.get("TRITON_CACHE_DIR") or str(home().absolute() / "triton")
    names = [base_of(name) for name in spec.names if not name.endswith(UNIVERSAL)] if spec.kernels else []
    wanted = {"names": names, "preset": spec.preset, "profile": spec.profile, "overrides": spec.overrides}
    return {"TRITON_CACHE_DIR": kept, KERNELS: json.dumps(wanted)}


class LocalEngine:
    """This machine, also the executor of its shards. Further shards wait in the order in which they are handed over.

    Where there are GPUs their trainers start at once, beside ingestion. On a CPU they would only take its cores, and
    how many threads each has follows from the plan: they start with the first shard that is not trained yet.
    """

    retries = 1

    def __init__(self, spec: RunSpec) -> None:
        self._device, self._root = spec.device, spec.scope.root
        self._gpus = gpus_of(spec.device)
        self.cores = Cores(max(1, usable_cores() - len(self._gpus)))
        self._slots = plan_slots(spec.device, len(self._gpus))
        self._env = kernel_environment(spec)
        self._trainers = self._made()
        if self._gpus:
            self._trainers.start()

    def _made(self) -> Trainers:
        return Trainers(self._slots, self._root.absolute(), self.cores, self._env)

    @property
    def gpus(self) -> bool:
        """Whether this machine has GPUs that the device names."""
        return bool(self._gpus)

    on_gpus = gpus

    @property
    def calls(self) -> int:
        """One for each trainer: the queue is in the caller, who gives the largest shards first."""
        return self._slots.workers

    def executor(self, shards: int) -> "LocalEngine":
        """Return this engine with a trainer per GPU, or per core."""
        if not self._gpus:
            self._slots = plan_slots(self._device, shards)
            self._trainers = self._made()
        return self

    def run(self, job: ShardJob, root: Path, timeout_s: float, progress: FleetProgress) -> ShardResult:
        """Train a shard on the next free trainer; see `Executor`."""
        folder = prepare(root, job)
        progress.waiting(f"waiting for a free {'GPU' if self.gpus else 'core'}")
        self._trainers.train(folder, timeout_s, partial(progress.take, job), progress.starting)
        return read_result(folder)

    def leave(self) -> None:
        """End the trainers, which gives their memory back."""
        self._trainers.stop()


def check_engine(spec: RunSpec) -> None:
    """Look at the engine's settings, before anything is fetched.

    Raises:
        UsageError: a setting is none, or the device is not there.
        CpbError: Ray is not installed, nothing answers at the cluster's address, or others may read its token.
    """
    if _name(spec) == LOCAL:
        check_device(spec.device)
        return
    if find_spec("ray") is None:
        raise CpbError(
            f"engine ray: the package ray is not installed; run {install_extra('ray')}, or train with --engine local",
            code="extra-missing", field="engine",
        )  # fmt: skip
    check_cluster()


def _name(spec: RunSpec) -> str:
    return spec.engine or (RAY if os.environ.get(ADDRESS) else LOCAL)


@contextmanager
def opened_engine(spec: RunSpec) -> Iterator[Engine]:
    """Yield the engine that the run names, or else the cluster of `RAY_ADDRESS`, or else this machine.

    Raises:
        UsageError: the device is not there.
        CpbError: Ray's cluster cannot be used.
    """
    if _name(spec) != LOCAL:
        from tasks.training.ray_engine import connected

        with connected(spec) as engine:
            yield engine
        return
    local = LocalEngine(spec)
    try:
        yield local
    finally:
        local.leave()
