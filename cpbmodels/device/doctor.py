"""`cpb doctor`: driver, torch build, devices and memory, one timed training step of each architecture, and remedies.

What the machine has is read from the system itself, because it is needed most when CUDA is broken.
"""

import contextlib
import os
import platform
import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from cpbmodels.arch import every
from cpbmodels.arch.torch_private import bf16_in_cpu_hardware
from cpbmodels.device.monitor import MB, driver_version, kernels, usable_cores
from cpbmodels.device.steps import fleet_step, seed_size
from cpbmodels.fleet.graphs import EAGER_RUNS
from cpbmodels.kernels.check import kernels_off
from cpbmodels.kernels.support import described

PCI_DEVICES = Path("/sys/bus/pci/devices")
NVIDIA_VENDOR, DISPLAY_CLASS = "0x10de", "0x03"
NO_CUPTI = (
    "the profiler saw no GPU kernel, although every operator returned a GPU tensor: CUPTI is missing or not permitted "
    "(a container or the driver's option NVreg_RestrictProfilingToAdminUsers); training does not need it"
)
PROFILES = (("gpu-80gb", 70e9), ("gpu-16gb", 14e9), ("gpu-6gb", 5e9))
MIN_BYTES_OF_40 = 8e9  # free memory of a GPU for a step of 40 members: an lstm's takes 5.1 GB
MIN_FREE_MB = 500.0  # of RAM and of a GPU; below, not even a small fleet trains


@dataclass(frozen=True)
class GpuEvidence:
    """Signs of an NVIDIA GPU that do not come from torch; `driver` is None if no driver is loaded."""

    signs: tuple[str, ...]
    driver: str | None


def gpu_evidence() -> GpuEvidence:
    """Look for a GPU in the driver and on the PCI bus."""
    driver = driver_version()
    signs = [f"driver {driver} is loaded"] if driver else []
    with contextlib.suppress(OSError):  # the bus shows display controllers even without a driver
        for device in sorted(PCI_DEVICES.iterdir()):
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
            if vendor == NVIDIA_VENDOR and kind.startswith(DISPLAY_CLASS):
                signs.append(f"PCI device {device.name}")
    return GpuEvidence(tuple(signs), driver)


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
    """Something that keeps a device from being used, and what to do about it."""

    what: str
    remedy: str


def software_findings(evidence: GpuEvidence) -> tuple[list[Problem], list[str]]:
    """Whether GPU, driver and this torch build fit together: problems with remedies, and notes."""
    if torch.cuda.is_available():
        return [], []
    if not evidence.signs:
        return [], ["no GPU on this machine: everything runs on the CPU"]
    what, hidden = f"this machine has a GPU ({evidence.signs[0]}) but", os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and hidden.strip() in ("", "-1"):
        return [], [f"{what} CUDA_VISIBLE_DEVICES={hidden!r} hides it; unset it to use the GPU"]
    if evidence.driver is None:
        return [Problem(f"{what} no NVIDIA driver is loaded", "install the driver, then reboot")], []
    if torch.version.cuda is None:
        remedy = (
            f"install torch's CUDA build for driver {evidence.driver} or older: see pytorch.org/get-started"
        )
        return [Problem(f"{what} torch {torch.__version__} is a CPU-only build", remedy)], []
    try:
        torch.cuda.init()
        why = "no device is visible"
    except RuntimeError as error:  # torch names a driver that is too old for its build
        why = _reason(error)
    remedy = "see what `nvidia-smi` says; update the driver; in a container start it with `--gpus all`"
    return [Problem(f"{what} CUDA does not start: {why}", remedy)], []


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


def profile_for(total_bytes: float) -> str:
    """The largest profile that fits a GPU with this much memory; below 5 GB the smallest, whose fleets are halved
    where they do not fit: the profile `cpu` would run without CUDA graphs."""
    return next((name for name, needed in PROFILES if total_bytes >= needed), PROFILES[-1][0])


@dataclass
class Diagnosis:
    """Everything `cpb doctor` found; `facts` is plain data for JSON."""

    device: str
    profile: str
    facts: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """0 if the machine can be used as it is, 1 if something is wrong."""
        return 1 if self.problems else 0

    def as_dict(self) -> dict[str, Any]:
        """Plain data: ok, device, profile, the facts, problems with remedies, notes."""
        return {
            "ok": not self.problems,
            "device": self.device,
            "profile": self.profile,
            **self.facts,
            "problems": [asdict(problem) for problem in self.problems],
            "notes": self.notes,
        }


def examine(*, steps: bool = True) -> Diagnosis:
    """Examine this machine; `steps` also times a step of every architecture on its first usable device."""
    evidence, processor = gpu_evidence(), cpu()
    gpus: list[dict[str, Any]] = []
    try:
        problems, notes = software_findings(evidence)
        gpus += [_gpu(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    except RuntimeError as error:  # the device is another process's alone, or gone from the bus
        what = f"CUDA fails on this machine's GPU: {_reason(error)}"
        problems, notes = [Problem(what, "see what `nvidia-smi` says, or use `--device cpu`")], []
    problems += memory_findings(
        processor["memory_free_mb"], {gpu["index"]: gpu["memory_free_mb"] for gpu in gpus}
    )
    device = torch.device("cuda", 0) if gpus and not problems else torch.device("cpu")
    profile = profile_for(gpus[0]["memory_total_mb"] * MB) if device.type == "cuda" else "cpu"
    facts: dict[str, Any] = {
        "python": sys.version.split()[0],
        "torch": {"version": torch.__version__, "cuda": torch.version.cuda},
        "driver": evidence.driver,
        "gpu_signs": list(evidence.signs),
        "cpu": processor,
        "gpus": gpus,
    }
    diagnosis = Diagnosis(str(device), profile, facts, problems, notes)
    if steps:
        _time_steps(diagnosis, device)
    return diagnosis


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _gpu(index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    return {
        "index": index,
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_total_mb": total / MB,
        "memory_free_mb": free / MB,
    }


def _time_steps(diagnosis: Diagnosis, device: torch.device) -> None:
    """Time a step of each architecture; one that fails is a problem."""
    diagnosis.facts["steps"] = rows = {}
    for name, architecture in every().items():
        # Neither in closed form nor an average, whose members are timed by their own names.
        if architecture.spec.closed_form or seed_size(name).members:
            continue
        try:
            rows[name] = time_one(name, device)
        except Exception as error:  # noqa: BLE001 - a report on the other architectures is wanted all the more
            what = f"a training step of {name} failed on {device}: {_reason(error)}"
            remedy = "train with `--device cpu`, or install another torch build"
            diagnosis.problems.append(Problem(what, remedy))
    if device.type == "cuda" and rows and not any(row["longest_kernels"] for row in rows.values()):
        diagnosis.notes.append(NO_CUPTI)


def time_one(architecture: str, device: torch.device) -> dict[str, Any]:
    """Time one step, on a CPU of one member, on a GPU of 40, or of 10 below 8 GB of free memory.

    Returns members, batch, step_ms, windows_per_s and kernels ("on", or why they are off); of a GPU also its peak
    memory in MB, the share of the step in which a kernel ran and the longest kernels.
    """
    options, gpu = seed_size(architecture), device.type == "cuda"
    members = 1 if not gpu else 40 if torch.cuda.mem_get_info(device)[0] > MIN_BYTES_OF_40 else 10
    reason = kernels_off(architecture, options, device)
    step = fleet_step(architecture, options, members, device, kernels=not reason)
    if gpu:
        torch.cuda.reset_peak_memory_stats(device)
        for _ in range(EAGER_RUNS + 1):  # eager steps, then the capture
            step()
    spent = seconds(step, device, repeats=3 if gpu else 1)
    seen = kernels(step, device) if gpu else {}
    return {
        "members": members,
        "batch": options.batch_size,
        "step_ms": spent * 1e3,
        "windows_per_s": members * options.batch_size / spent,
        "kernels": described(reason),
        "gpu_mem_peak_mb": torch.cuda.max_memory_allocated(device) / MB if gpu else None,
        "gpu_busy": min(1.0, sum(seen.values()) / 1e6 / spent) if seen else None,
        "longest_kernels": list(seen)[:2],
    }


def seconds(run: Callable[[], object], device: torch.device, repeats: int = 5, inner: int = 1) -> float:
    """Best time of one `run()` in seconds: `repeats` measurements of `inner` runs each, after a warm-up.

    On a GPU the host waits for the device before and after: launches are asynchronous.
    """

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    run()
    spent = []
    for _ in range(repeats):
        wait()
        start = time.perf_counter()
        for _ in range(inner):
            run()
        wait()
        spent.append(time.perf_counter() - start)
    return min(spent) / inner


def lines(diagnosis: Diagnosis) -> Iterator[str]:
    """The report of `cpb doctor`: one screen of 80 columns, problems and what to do about them last."""
    facts = diagnosis.facts
    build, processor = facts["torch"], facts["cpu"]
    cuda = f"CUDA {build['cuda']}" if build["cuda"] else "CPU-only build"
    driver = facts["driver"] or "none"
    yield f"python {facts['python']}, torch {build['version']} ({cuda}), NVIDIA driver: {driver}"
    bf16 = "bf16 in hardware" if processor["bf16"] else "no bf16 in hardware"
    yield _wrapped(f"CPU: {processor['model']}, {processor['cores']} cores, {bf16}; RAM: {_free(processor)}")
    for gpu in facts["gpus"]:
        yield _wrapped(
            f"cuda:{gpu['index']}: {gpu['name']} (sm_{gpu['capability'].replace('.', '')}); {_free(gpu)}"
        )
    if rows := facts.get("steps"):
        yield from _steps(rows, diagnosis.device)
    yield f"recommended profile: {diagnosis.profile}"
    for note in diagnosis.notes:
        yield _wrapped(f"note: {note}")
    for problem in diagnosis.problems:
        yield _wrapped(f"PROBLEM: {problem.what}")
        yield _wrapped(f"  remedy: {problem.remedy}")
    yield f"problems: {len(diagnosis.problems) or 'none'}"


def _free(memory: Mapping[str, Any]) -> str:
    return f"{memory['memory_free_mb'] / 1024:.1f} of {memory['memory_total_mb'] / 1024:.1f} GiB free"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 80, subsequent_indent="    ")


def _steps(rows: Mapping[str, Mapping[str, Any]], device: str) -> Iterator[str]:
    yield f"one training step of each architecture at its usual size, on {device}"
    yield f"  {'architecture':<16}{'members':>8}{'batch':>6}{'ms':>9}{'windows/s':>11}{'GPU MB':>8}{'busy':>6}  kernels"
    reasons: dict[str, list[str]] = {}
    for name, row in rows.items():
        memory, busy = row["gpu_mem_peak_mb"], row["gpu_busy"]
        state, _, reason = row["kernels"].partition(" ")
        if reason:
            reasons.setdefault(reason.strip("()"), []).append(name)
        yield (
            f"  {name:<16}{row['members']:>8}{row['batch']:>6}{row['step_ms']:>9.2f}{row['windows_per_s']:>11.0f}"
            f"{'-' if memory is None else f'{memory:.0f}':>8}{'-' if busy is None else f'{busy:.0%}':>6}  {state}"
        )
    for reason, names in reasons.items():
        yield _wrapped(f"  kernels off ({'all' if len(names) == len(rows) else ', '.join(names)}): {reason}")
    for name, row in rows.items():
        if row["longest_kernels"]:
            yield f"  {name} ran {', '.join(row['longest_kernels'])}"[:80]
    if device != "cpu":
        yield "  Models are small, so little memory is no sign of the CPU: look at busy."
