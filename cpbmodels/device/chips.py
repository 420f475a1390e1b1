"""GPUs and their driver as the system knows them, whether or not torch can use them; CUDA is not touched."""

import contextlib
import importlib
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

PROC_DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True)
class Chip:
    """A GPU as the driver knows it, whether or not torch can use it."""

    name: str
    capability: tuple[int, int]

    def __str__(self) -> str:
        """`Tesla P100 (sm_60)`."""
        return f"{self.name} (sm_{self.capability[0]}{self.capability[1]})"


def chips() -> tuple[Chip, ...]:
    """The GPUs that NVML lists, in its order; none where NVML cannot be read."""
    found = list[Chip]()
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return ()
    with contextlib.suppress(nvml.NVMLError):  # no driver, or one that does not answer
        # By NVML, which answers where CUDA does not start: then this is needed most.
        nvml.nvmlInit()
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
            found.append(Chip(str(nvml.nvmlDeviceGetName(handle)), (major, minor)))
    return tuple(found)


def driver_version() -> str | None:
    """Version of the loaded NVIDIA driver ("580.159.03"), or None."""
    with contextlib.suppress(OSError):
        if match := re.search(r"Module\s+(?:for \S+\s+)?(\d+\.\d+(?:\.\d+)?)", PROC_DRIVER.read_text()):
            return match[1]
    match = re.match(r"\d+\.\d+(\.\d+)?", nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader"))
    return match[0] if match else None


def nvidia_smi(*arguments: str) -> str:
    """What nvidia-smi prints; "" if it is missing or fails (it fails if the driver is broken)."""
    if (program := shutil.which("nvidia-smi")) is None:
        return ""
    try:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
