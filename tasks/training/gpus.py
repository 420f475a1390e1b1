"""The NVIDIA GPUs that a command may use, found without torch, whose import takes seconds."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from schemas.errors import UsageError, counted

CPU_BUILD = "the installed torch is a CPU build and cannot use this machine's NVIDIA GPU"
"""Why a GPU is not used."""


def check_device(device: str) -> None:
    """Raise `UsageError` if `device` names a GPU that is not available."""
    if device.startswith("cuda") and not gpus_of(device):
        count = len(visible_gpus())
        why = f"only {counted(count, 'NVIDIA GPU')} can be seen" if count else "no NVIDIA GPU is visible"
        why = CPU_BUILD if count and torch_cuda() is None else why
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
    # N counts what CUDA_VISIBLE_DEVICES leaves, as torch does.
    gpus = visible_gpus()
    _, colon, number = device.partition(":")
    return gpus[int(number) :][:1] if colon else gpus


def visible_gpus() -> tuple[str, ...]:
    """Return the UUIDs of the NVIDIA GPUs (MIG: of their instances) that `CUDA_VISIBLE_DEVICES` leaves visible.

    An entry is a number as of `nvidia-smi`, a UUID, or a unique prefix of one. As in CUDA, an entry that matches no
    device hides all later entries.
    """
    # NVIDIA's own library: it numbers devices as `nvidia-smi` does and opens no context on any of them.
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
