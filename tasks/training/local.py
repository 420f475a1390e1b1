"""The engine of this machine: its devices with their locks, and a resident trainer for each (a cluster: `ray.py`).

A trainer is a separate process (`trainer.py`), because a long device call cannot be interrupted from within, because
one CPU fleet per core is faster than one fleet on all cores, and so that only the training process opens a device. It
is resident: importing torch and opening a GPU takes up to 10 s. It locks its GPU per shard, until the predictions are
done, so that another command can train in between.

A GPU's slot is a file lock named by the device's UUID, which is the same for every process, however
`CUDA_VISIBLE_DEVICES` renumbers the devices, and for every user of the machine.
"""

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from schemas.errors import BusyError, CpbError, UsageError, counted, log
from schemas.fleets import FleetSpec, is_universal
from schemas.handover import ShardJob, ShardResult
from schemas.home import home_folder
from schemas.run import RunSpec
from tasks.running.cores import Cores, usable_cores
from tasks.running.resident import Died, Pool, WorkerProcess
from tasks.storage.files import read_json_or_none
from tasks.storage.interrupts import pause
from tasks.storage.locks import locked, machine_lock
from tasks.training.progress import FleetProgress
from tasks.training.shard import LOG, PROGRESS, RESULT, prepare, read_result

TRAINER = "tasks.training.trainer"
"""The module that trains."""

KERNELS = "CPB_KERNELS"
"""Environment of a trainer: the architectures whose kernels it compiles before its first request, as JSON."""

GPU_LOST = "the process lost its GPU"
"""Begins a trainer's last words where a launch made the device unusable for the process."""

MALLOC = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "4294967296"}
"""Make glibc keep freed memory; read when a process starts, so set from outside. Otherwise every large temporary is
mapped and page-faulted again in each step (up to 30 % slower)."""

_BUSY_S = 0.5
"""Seconds between two tries of a GPU on which another command trains."""

OnProgress = Callable[[dict[str, Any]], None]

_CPU_BUILD = "the installed torch is a CPU build and cannot use this machine's NVIDIA GPU"


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
        return Slots(gpus, len(gpus), max(1, (os.cpu_count() or 1) // len(gpus)))
    if device != "cpu" and torch_cuda() is None and visible_gpus():
        log.warning("%s; training on the CPU (`cpb doctor` says what to install)", _CPU_BUILD)
    cores = usable_cores()
    return Slots((), 1, cores) if shards <= 1 else Slots((), min(cores, shards), 1)


def check_device(device: str) -> None:
    """Raise `UsageError` if `device` names a GPU that is not available."""
    if device.startswith("cuda") and not gpus_of(device):
        count = len(visible_gpus())
        why = f"only {counted(count, 'NVIDIA GPU')} can be seen" if count else "no NVIDIA GPU is visible"
        why = _CPU_BUILD if count and torch_cuda() is None else why
        message = f"device {device!r}: {why} (see `cpb doctor`); choose cpu or auto"
        raise UsageError(message, code="device")


@cache
def torch_cuda() -> str | None:
    """Return the CUDA version that the installed torch was built for, None for a CPU build.

    Read from torch's version file: importing torch takes seconds, and only trainers need it.
    """
    spec = find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    text = Path(spec.origin).with_name("version.py").read_text()
    version = re.search(r"^cuda\b[^=]*=\s*'([^']+)'", text, re.MULTILINE)
    return version[1] if version else None


def gpus_of(device: str) -> tuple[str, ...]:
    """Return the GPUs that `device` may use: auto and cuda all visible GPUs, cuda:N the N-th of them.

    Empty if torch is a CPU build: a GPU slot would run a single process, while the CPU has a slot per core.
    """
    if device == "cpu" or torch_cuda() is None:
        return ()
    gpus = visible_gpus()
    _, colon, number = device.partition(":")
    return gpus[int(number) :][:1] if colon else gpus


def visible_gpus() -> tuple[str, ...]:
    """Return the UUIDs of the NVIDIA GPUs (MIG: of their instances) that `CUDA_VISIBLE_DEVICES` leaves visible.

    An entry is a number as of `nvidia-smi`, a UUID, or a unique prefix of one. As in CUDA, an entry that matches no
    device hides all later entries.
    """
    import pynvml as nvml

    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return ()
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        uuids = [nvml.nvmlDeviceGetUUID(handle) for handle in handles]
        # The usable devices of each GPU: its instances if MIG divides it, else itself.
        parts = [
            tuple(_mig_instances(nvml, handle)) or (uuid,)
            for handle, uuid in zip(handles, uuids, strict=True)
        ]
    finally:
        nvml.nvmlShutdown()
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return tuple(device for devices in parts for device in devices)
    chosen: list[str] = []
    for entry in map(str.strip, wanted.split(",")):
        if entry.isdecimal():
            matches = [devices[0] for devices in parts[int(entry) :][:1]]
        elif entry.startswith("GPU-"):
            matches = [d[0] for uuid, d in zip(uuids, parts, strict=True) if uuid.startswith(entry)]
        else:
            matches = [d for ds in parts for d in ds if entry.startswith("MIG-") and d.startswith(entry)]
        if len(matches) != 1:
            break
        chosen += matches
    return tuple(dict.fromkeys(chosen))


def _mig_instances(nvml: Any, handle: object) -> Iterator[str]:
    with suppress(nvml.NVMLError):  # most GPUs do not support MIG
        if nvml.nvmlDeviceGetMigMode(handle)[0]:
            for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
                with suppress(nvml.NVMLError):  # no instance at this index
                    yield nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))


@contextmanager
def gpu_held(gpus: tuple[str, ...]) -> Iterator[None]:
    """Lock one of these GPUs during the block, waiting for it (interruptible); with no GPUs, do nothing."""
    with ExitStack() as stack:
        while gpus and not any(_locks(stack, gpu) for gpu in gpus):
            pause(_BUSY_S)
        yield


@contextmanager
def gpu_locked() -> Iterator[bool]:
    """Lock this trainer's GPU during the block; yields False if another training holds it, True on a CPU."""
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES")
    with ExitStack() as stack:
        yield not gpu or _locks(stack, gpu)  # without one: a trainer on a CPU


def _locks(stack: ExitStack, gpu: str) -> bool:
    """Lock a GPU until the stack is closed; whether no other training holds it."""
    with suppress(BusyError):
        stack.enter_context(locked(machine_lock(f"cpb-{gpu}.lock"), wait=False))
        return True
    return False


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
        on_look: Callable[[], None] = lambda: None,
    ) -> None:
        """Train the job in `folder` to its `result.json`; return immediately if it exists already.

        Waits for a free trainer first, and on a GPU until no other command trains there; `timeout_s` counts from then.
        An interrupt ends the trainer.

        Args:
            on_progress: called with the contents of `progress.json` whenever it has changed.
            on_wait: called with what the shard waits for.
            on_look: called about every 0.05 s while the trainer works, and once after it.

        Raises:
            TrainerDied: the process failed or was killed; the next shard gets a new process.
            TrainingTimeout: it took longer than `timeout_s` seconds.
        """
        trained = (folder / RESULT).exists()
        while not trained:
            on_wait(f"waiting for a free {'GPU' if self._on_gpu else 'core'}")
            with self._pool.lent() as trainer, self._cores.held(0 if self._on_gpu else self._threads):
                on_wait("starting its trainer")
                try:
                    trained = self._call(trainer, folder, _watch(folder, timeout_s, on_progress, on_look))
                except Died as end:
                    if not (folder / RESULT).exists():
                        raise _death(folder, end) from end
                    return
            if not trained:  # another command trains on that GPU
                pause(_BUSY_S)

    def _call(self, trainer: WorkerProcess, folder: Path, watch: Callable[[], None]) -> bool:
        """Have a shard trained; if its trainer dies in a launch, it and later ones do without `cpbmodels.kernels`."""
        folder = folder.absolute()
        try:
            return bool(trainer.call((folder, self._kernels_off), folder / LOG, watch))
        except Died as end:
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
    folder: Path, timeout_s: float, on_progress: OnProgress | None, on_look: Callable[[], None]
) -> Callable[[], None]:
    """Return a callback for a running trainer: it reports progress and raises `TrainingTimeout`."""
    path, deadline = folder / PROGRESS, time.monotonic() + timeout_s

    def stamp() -> tuple[int, int] | None:
        with suppress(FileNotFoundError):
            status = path.stat()
            return status.st_ino, status.st_mtime_ns
        return None

    last = stamp()

    def look() -> None:
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
        on_look()

    return look


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
            f"no space left on the disk of {folder}; {message}", code="disk-full", field=str(folder)
        )
    if re.search(r"MemoryError|out of memory|(can't|cannot) allocate memory", end.last, re.IGNORECASE):
        remedy = "lower batch_size, train fewer series together, or add memory"
        return TrainerDied(f"{message}, or {remedy}", code="out-of-memory")
    return TrainerDied(message)


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
        self.cores = Cores(max(1, usable_cores() - len(gpus)))
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
            folder, timeout_s, partial(progress.update, job), progress.waiting, partial(progress.look, job)
        )
        return read_result(folder)

    def close(self) -> None:
        """End the trainers, which releases their memory."""
        self._trainers.close()
