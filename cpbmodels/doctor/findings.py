"""What keeps a machine from training: GPU, driver and torch build that do not fit together, and too little memory.

What the machine has is read from the system itself, because it is needed most when CUDA is broken.
"""

import contextlib
import os
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cpbmodels.arch.torch_private import bf16_in_cpu_hardware
from cpbmodels.device.chips import Chip, chips, driver_version
from cpbmodels.device.monitor import usable_cores
from cpbmodels.doctor import builds
from cpbmodels.errors import first_line

PCI_DEVICES = Path("/sys/bus/pci/devices")
NVIDIA_VENDOR, DISPLAY_CLASS = "0x10de", "0x03"
MIN_FREE_MB = 500.0  # of RAM and of a GPU; below, not even a small fleet trains


@dataclass(frozen=True)
class GpuEvidence:
    """Signs of an NVIDIA GPU that do not come from torch; `driver` is None if no driver is loaded."""

    signs: tuple[str, ...]
    driver: str | None
    chips: tuple[Chip, ...] = ()


def gpu_evidence() -> GpuEvidence:
    """Look for a GPU in the driver and on the PCI bus."""
    driver = driver_version()
    found = chips() if driver else ()
    signs = [f"driver {driver} is loaded"] if driver else []
    with contextlib.suppress(OSError):  # the bus shows display controllers even without a driver
        for device in sorted(PCI_DEVICES.iterdir()):
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
            if vendor == NVIDIA_VENDOR and kind.startswith(DISPLAY_CLASS):
                signs.append(f"PCI device {device.name}")
    return GpuEvidence((*map(str, found), *signs), driver, found)


def cpu() -> dict[str, Any]:
    """The processor as this process may use it: model, cores, `bf16` (products in hardware), memory in MB."""
    facts: dict[str, str] = {}
    for path in ("/proc/cpuinfo", "/proc/meminfo"):
        with contextlib.suppress(OSError):  # not Linux
            facts |= dict(
                re.findall(r"^(model name|Mem\w+)\s*: *(.+)$", Path(path).read_text(), re.MULTILINE)
            )
    total, free = (int(facts.get(name, "0 kB").split()[0]) / 1024 for name in ("MemTotal", "MemAvailable"))
    return {
        "model": facts.get("model name") or platform.processor() or platform.machine(),
        "cores": usable_cores(),
        "bf16": bf16_in_cpu_hardware(),
        "memory_total_mb": total,
        "memory_free_mb": free,
    }


@dataclass(frozen=True)
class Problem:
    """Something that keeps a device from being used, and what to do about it; `command`: to be run for that."""

    what: str
    remedy: str
    command: str = ""


def software_findings(evidence: GpuEvidence) -> tuple[list[Problem], list[str]]:
    """Whether GPU, driver and this torch build fit together: problems with remedies, and notes."""
    if torch.cuda.is_available():
        return [*_without_code(evidence.driver)], []
    if not evidence.signs:
        return [], ["no GPU on this machine: everything runs on the CPU"]
    what, hidden = f"this machine has a GPU ({evidence.signs[0]}) but", os.environ.get("CUDA_VISIBLE_DEVICES")
    # Asked before the driver: a GPU that is hidden on purpose is no problem.
    if hidden is not None and hidden.strip() in ("", "-1"):
        return [], [f"{what} CUDA_VISIBLE_DEVICES={hidden!r} hides it; unset it to use the GPU"]
    if evidence.driver is None:
        return [Problem(f"{what} no NVIDIA driver is loaded", "install the driver, then reboot")], []
    installed, capability = (
        f"torch {torch.__version__}",
        evidence.chips[0].capability if evidence.chips else None,
    )
    if torch.version.cuda is None:
        of_what = "is built for AMD's GPUs" if torch.version.hip else "is a CPU-only build"
        return [Problem(f"{what} {installed} {of_what}", *_other_build(evidence.driver, capability))], []
    cuda = int(torch.version.cuda.partition(".")[0])
    if builds.driver_too_old(evidence.driver, cuda):
        needed = builds.MIN_DRIVER[cuda]
        problem = (
            f"driver {evidence.driver} is too old for {installed} (CUDA {torch.version.cuda} needs {needed})"
        )
        remedy, command = _other_build(evidence.driver, capability)
        update = f"update the driver to {needed} or newer, or {remedy}" if command else remedy
        return [Problem(problem, update, command)], []
    try:
        torch.cuda.init()
        why = "no device is visible"
    except RuntimeError as error:
        why = first_line(error)
    remedy = "see what `nvidia-smi` says; update the driver; in a container start it with `--gpus all`"
    return [Problem(f"{what} CUDA does not start: {why}", remedy)], []


def _without_code(driver: str | None) -> Iterator[Problem]:
    """A problem for each GPU that torch sees and has no code for, before a step fails there."""
    targets = torch.cuda.get_arch_list()
    for index in range(torch.cuda.device_count()):
        capability = torch.cuda.get_device_capability(index)
        if targets and not builds.supports(targets, capability):
            chip = Chip(torch.cuda.get_device_name(index), capability)
            what = (
                f"torch {torch.__version__} has no code for {chip}, so every step on it would fail: it has "
            )
            remedy, command = _other_build(driver or builds.MIN_DRIVER[12], capability)
            cpu = "train with `--device cpu`, or " if command else ""
            yield Problem(f"{what}{', '.join(targets)}", f"{cpu}{remedy}", command)


def _other_build(driver: str, capability: tuple[int, int] | None) -> tuple[str, str]:
    """What to do to get a torch for this driver and chip, and the command for that, "" if there is none."""
    chip = f"sm_{capability[0]}{capability[1]}" if capability else f"this machine ({platform.machine()})"
    if build := builds.build_for(driver, capability):
        fits = f"driver {driver}{f' and {chip}' if capability else ''}"
        conda = (
            ""
            if not builds.in_conda()
            else (", by pip in this conda environment, too: PyTorch's own conda channel ends with 2.5.1")
        )
        command = builds.install_command(build, torch.__version__)
        return f"install torch's {build.tag} build, which fits {fits}{conda}", command
    allowed = f"no torch from {builds.OLDEST} to {builds.NEWEST}, with which cpb runs, has"
    if oldest := builds.oldest_driver(capability):
        return f"{allowed} a build for driver {driver}: update the driver to {oldest} or newer", ""
    return (
        f"{allowed} code for {chip}: train with `--device cpu`, or on another GPU (CUDA_VISIBLE_DEVICES)",
        "",
    )


def memory_findings(ram_free_mb: float, gpu_free_mb: Mapping[int, float]) -> list[Problem]:
    """Problems if RAM (0: unknown) or a GPU's free memory, in MB, is too small for any training."""
    problems = []
    if 0 < ram_free_mb < MIN_FREE_MB:
        problems.append(Problem(f"only {ram_free_mb:.0f} MB of RAM are free", "close other programs"))
    for index, free in gpu_free_mb.items():
        if free < MIN_FREE_MB:
            remedy = "stop the processes that `nvidia-smi` lists, or pick another GPU by CUDA_VISIBLE_DEVICES"
            problems.append(Problem(f"only {free:.0f} MB are free on cuda:{index}", remedy))
    return problems
