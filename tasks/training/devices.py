"""Device slots for concurrent shards, and the locks that prevent two trainings on the same GPU.

A GPU's slot is a file lock named by the device's UUID, which is the same for every process, however
`CUDA_VISIBLE_DEVICES` renumbers the devices, and for every user of the machine. A CPU slot counts only within this
process.
"""

import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from schemas.errors import BusyError, UsageError
from schemas.errors import count as named
from tasks.running.parallel import usable_cores
from tasks.storage.locks import locked, machine_lock, pause

log = logging.getLogger("cpb")


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
    if not gpus and device != "cpu" and (unused := visible_gpus()) and torch_cuda() is None:
        log.warning(
            "%s; training on the CPU (`cpb doctor` names the build to install)", _cpu_build(len(unused))
        )
    if gpus:
        return Slots(gpus, len(gpus), max(1, (os.cpu_count() or 1) // len(gpus)))
    cores = usable_cores()
    return Slots((), 1, cores) if shards <= 1 else Slots((), min(cores, shards), 1)


def check_device(device: str) -> None:
    """Raise `UsageError` if `device` names a GPU that is not available."""
    if device.startswith("cuda") and not gpus_of(device):
        count = len(visible_gpus())
        if count and torch_cuda() is None:
            raise UsageError(
                f"device {device!r}: {_cpu_build(count)}; install the build that `cpb doctor` names, or choose cpu",
                code="device",
                field="device",
            )
        seen = f"only {named(count, 'NVIDIA GPU')} can be seen" if count else "no NVIDIA GPU is visible"
        raise UsageError(
            f"device {device!r}: {seen} here (see `cpb doctor`); choose cpu or auto",
            code="device",
            field="device",
        )


@cache
def torch_cuda() -> str | None:
    """Return the CUDA version that the installed torch was built for, None for a CPU build.

    Read from torch's version file: importing torch takes seconds, and only trainers need it.
    """
    spec = find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    found = re.search(
        r"^cuda\b[^=]*=\s*'([^']+)'", Path(spec.origin).with_name("version.py").read_text(), re.MULTILINE
    )
    return found[1] if found else None


def _cpu_build(gpus: int) -> str:
    return f"this machine has {named(gpus, 'NVIDIA GPU')}, but the installed torch is a CPU build and cannot use them"


def visible_gpus() -> tuple[str, ...]:
    """Return the UUIDs of the NVIDIA GPUs (MIG: of their instances) that `CUDA_VISIBLE_DEVICES` leaves visible.

    Numbers are those of `nvidia-smi`. As in CUDA, an entry that matches no device hides all later entries.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        devices = [_Device.read(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return tuple(part for device in devices for part in device.parts)
    return tuple(dict.fromkeys(_chosen(wanted, devices)))


@contextmanager
def gpu_held(gpus: tuple[str, ...], poll_s: float = 0.5) -> Iterator[None]:
    """Lock one of these GPUs during the block, waiting for it (interruptible); with no GPUs, do nothing."""
    paths = [machine_lock(f"cpb-{gpu}.lock") for gpu in gpus]
    with ExitStack() as stack:
        reported = False
        while paths:
            for path in paths:
                with suppress(BusyError):
                    stack.enter_context(locked(path, wait=False))
                    paths = []
                    break
            else:
                if not reported:
                    log.info("waiting for a GPU: other trainings hold %s", ", ".join(map(str, paths)))
                    reported = True
                pause(poll_s)
        yield


@contextmanager
def gpu_locked() -> Iterator[bool]:
    """Lock this trainer's GPU during the block unless another training holds it; yields whether it is this one's."""
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES")
    with ExitStack() as stack:
        is_free = True
        try:
            if gpu:  # else a trainer on a CPU
                stack.enter_context(locked(machine_lock(f"cpb-{gpu}.lock"), wait=False))
        except BusyError:
            is_free = False
        yield is_free


@dataclass(frozen=True)
class _Device:
    """A GPU's UUID and those of its MIG instances, in NVML's (`nvidia-smi`'s) order."""

    uuid: str
    instances: tuple[str, ...]

    @property
    def parts(self) -> tuple[str, ...]:
        """The usable devices: the instances if MIG divides the GPU, else the GPU."""
        return self.instances or (self.uuid,)

    @classmethod
    def read(cls, nvml: ModuleType, index: int) -> "_Device":
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        return cls(nvml.nvmlDeviceGetUUID(handle), tuple(_mig_instances(nvml, handle)))


def _mig_instances(nvml: ModuleType, handle: object) -> Iterator[str]:
    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(handle)
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(handle) if current else 0
    except nvml.NVMLError:  # most GPUs do not support MIG
        return
    for index in range(count):
        try:
            yield nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
        except nvml.NVMLError:  # no instance at this index
            continue


def _chosen(wanted: str, devices: Sequence[_Device]) -> Iterator[str]:
    """Yield the UUIDs selected by a value of `CUDA_VISIBLE_DEVICES`: numbers, UUIDs, or unique prefixes of UUIDs."""
    for entry in (part.strip() for part in wanted.split(",")):
        if re.fullmatch(r"\d+", entry):
            found = [device.parts[0] for device in devices[int(entry) :][:1]]
        elif entry.startswith("GPU-"):
            found = [device.parts[0] for device in devices if device.uuid.startswith(entry)]
        elif entry.startswith("MIG-"):
            found = [part for device in devices for part in device.instances if part.startswith(entry)]
        else:
            found = []
        if len(found) != 1:
            return
        yield found[0]


def gpus_of(device: str) -> tuple[str, ...]:
    """Return the GPUs that `device` may use: auto and cuda all visible GPUs, cuda:N the N-th of them.

    Empty if torch is a CPU build: a GPU slot would run a single process, while the CPU has a slot per core.
    """
    if device == "cpu" or torch_cuda() is None:
        return ()
    gpus = visible_gpus()
    _, colon, number = device.partition(":")
    return gpus[int(number) :][:1] if colon else gpus
