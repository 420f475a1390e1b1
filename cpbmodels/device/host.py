"""Facts about the machine, read from the system itself: needed most when CUDA is broken."""

import contextlib
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import torch

from cpbmodels.device.monitor import usable_cores

PROC_DRIVER = Path("/proc/driver/nvidia/version")
PCI_DEVICES = Path("/sys/bus/pci/devices")
NVIDIA_VENDOR, DISPLAY_CLASS = "0x10de", "0x03"

MIN_DRIVER = {11: (450, 80), 12: (525, 60), 13: (580, 65)}
"""Oldest Linux driver for each CUDA major version (CUDA release notes, minor-version compatibility)."""


@dataclass(frozen=True)
class GpuEvidence:
    """Signs of an NVIDIA GPU that do not come from torch; `driver` is None if no driver is loaded."""

    signs: tuple[str, ...]
    driver: str | None

    @property
    def present(self) -> bool:
        """Whether this machine has an NVIDIA GPU, usable or not."""
        return bool(self.signs)


@dataclass(frozen=True)
class Cpu:
    """The processor as this process may use it; memory in MB."""

    model: str
    cores: int
    torch_threads: int
    capability: str
    flags: tuple[str, ...] = field(default=())
    memory_total_mb: float = 0.0
    memory_free_mb: float = 0.0

    @property
    def fast_bf16(self) -> bool:
        """Whether bf16 products run in hardware (AVX512-BF16 or AMX), so that bf16 pays off."""
        return "avx512_bf16" in self.flags or "amx_bf16" in self.flags


def gpu_evidence() -> GpuEvidence:
    """Look for a GPU in the driver, on the PCI bus and through nvidia-smi."""
    driver = driver_version()
    signs = [f"driver {driver} is loaded"] if driver and _device_nodes() else []
    signs += [f"PCI device {name}" for name in _pci_gpus()]
    listed = _nvidia_smi("-L") or ""
    signs += [line.split(" (UUID")[0] for line in listed.splitlines() if line.startswith("GPU ")]
    return GpuEvidence(tuple(signs), driver)


def driver_version() -> str | None:
    """Version of the loaded NVIDIA driver ("580.159.03"), or None."""
    with contextlib.suppress(OSError):
        if found := re.search(r"Module\s+(?:for \S+\s+)?(\d+\.\d+(?:\.\d+)?)", PROC_DRIVER.read_text()):
            return found[1]
    answer = _nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader") or ""
    found = re.match(r"\d+\.\d+(\.\d+)?", answer)
    return found[0] if found else None


def driver_too_old(driver: str, cuda: str) -> bool:
    """Whether the driver cannot run a torch built for this CUDA version ("13.0")."""
    major, minor = (int(part) for part in driver.split(".")[:2])
    return (major, minor) < MIN_DRIVER.get(int(cuda.split(".")[0]), (0, 0))


def _device_nodes() -> list[Path]:
    return sorted(Path("/dev").glob("nvidia[0-9]*"))


def _pci_gpus() -> list[str]:
    """PCI addresses of NVIDIA display controllers; seen even without a driver."""
    found = []
    with contextlib.suppress(OSError):
        for device in sorted(PCI_DEVICES.iterdir()):
            vendor = (device / "vendor").read_text().strip()
            kind = (device / "class").read_text().strip()
            if vendor == NVIDIA_VENDOR and kind.startswith(DISPLAY_CLASS):
                found.append(device.name)
    return found


def _nvidia_smi(*arguments: str) -> str | None:
    """What nvidia-smi prints, or None if it is missing or fails (it fails if the driver is broken)."""
    if (program := shutil.which("nvidia-smi")) is None:
        return None
    try:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def cpu() -> Cpu:
    """The processor: model, usable cores, vector units, memory."""
    info = _read("/proc/cpuinfo")
    memory = dict(re.findall(r"^(\w+):\s+(\d+) kB", _read("/proc/meminfo"), re.MULTILINE))
    flags = set((_field(info, "flags") or "").split())
    interesting = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
    return Cpu(
        model=_field(info, "model name") or platform.processor() or platform.machine(),
        cores=usable_cores(),
        torch_threads=torch.get_num_threads(),
        capability=torch.backends.cpu.get_cpu_capability(),
        flags=tuple(f for f in interesting if f in flags),
        memory_total_mb=int(memory.get("MemTotal", 0)) * 1024 / 2**20,
        memory_free_mb=int(memory.get("MemAvailable", 0)) * 1024 / 2**20,
    )


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:  # not Linux
        return ""


def _field(text: str, name: str) -> str | None:
    found = re.search(rf"^{name}\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else None
