"""`cpb doctor`: facts about this machine, its measured rates, its problems and what to do about them.

Problems of a GPU, its driver, this torch build and the memory, each with its remedy.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from cpbmodels.arch import problems as architecture_problems
from cpbmodels.device import host, placement, probe

GB = 1e9
MIN_RATE_SHARE = 0.4  # of the data sheet's rate; healthy chips reach 0.6 to 0.95 in a plain matmul
NO_CUPTI = (
    "the profiler saw no GPU kernel, although every operator returned a GPU tensor: CUPTI is missing or not permitted "
    "(a container or the driver's option NVreg_RestrictProfilingToAdminUsers), so kernels are not listed; training "
    "does not need it"
)
PROFILES = (("gpu-80gb", 70 * GB), ("gpu-16gb", 14 * GB), ("gpu-6gb", 5 * GB))


MIN_FREE_GPU_MB, MIN_FREE_RAM_MB = 500.0, 500.0  # below, not even a small fleet trains


@dataclass(frozen=True)
class Problem:
    """Something that keeps a device from being used, and what to do about it."""

    what: str
    remedy: str


def software_findings(evidence: host.GpuEvidence) -> tuple[list[Problem], list[str]]:
    """Whether GPU, driver and this torch build fit together: problems with remedies, and notes."""
    build, cuda = torch.__version__, torch.version.cuda
    if torch.cuda.is_available():
        return [problem for i in range(torch.cuda.device_count()) if (problem := _unsupported(i))], []
    if not evidence.present:
        return [], ["no GPU on this machine: everything runs on the CPU"]
    what = f"this machine has a GPU ({evidence.signs[0]})"
    if evidence.driver is None:
        return [Problem(f"{what} but no NVIDIA driver is loaded", "install the driver, then reboot")], []
    if cuda is None:
        return [Problem(f"{what} but torch {build} is a CPU-only build", _torch_remedy(evidence.driver))], []
    if host.driver_too_old(evidence.driver, cuda):
        oldest = ".".join(map(str, host.MIN_DRIVER[int(cuda.split(".")[0])]))
        remedy = f"update the driver to {oldest} or newer, or {_torch_remedy(evidence.driver)}"
        return [Problem(f"driver {evidence.driver} is too old for torch {build} (CUDA {cuda})", remedy)], []
    return _not_visible(what)


def _not_visible(what: str) -> tuple[list[Problem], list[str]]:
    """Driver and torch fit, yet torch sees no GPU: hidden by the user (a note), or a problem."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and hidden.strip() in ("", "-1"):
        return [], [f"{what} but CUDA_VISIBLE_DEVICES={hidden!r} hides it; unset it to use the GPU"]
    remedy = "in a container start it with `--gpus all`; else see what `nvidia-smi` says, or reboot"
    return [Problem(f"{what} but CUDA does not start", remedy)], []


def _torch_remedy(driver: str) -> str:
    for cuda, tag in (("13", "cu130"), ("12", "cu126")):
        if not host.driver_too_old(driver, cuda):
            return f"install torch's {tag} build; the selector at pytorch.org/get-started gives the command"
    return f"update the driver ({driver} is too old for any torch that cpb supports)"


def _unsupported(index: int) -> Problem | None:
    """A chip that this torch build has no machine code for (too old, or too new)."""
    major, minor = torch.cuda.get_device_capability(index)
    if supports(torch.cuda.get_arch_list(), major, minor):
        return None
    what = (
        f"torch {torch.__version__} has no code for {torch.cuda.get_device_name(index)} (sm_{major}{minor})"
    )
    return Problem(what, "install a torch build for another CUDA version, or use `--device cpu`")


def supports(built_for: list[str], major: int, minor: int) -> bool:
    """Whether a build with these targets (["sm_80", "compute_90"]) runs on compute capability major.minor.

    Machine code runs on later minor versions of its major; PTX ("compute_…") is compiled for any later chip.
    """
    for target in built_for:
        kind, _, number = target.rstrip("af").partition("_")
        built = divmod(int(number), 10)
        if built <= (major, minor) and (kind == "compute" or built[0] == major):
            return True
    return False


def memory_findings(ram_free_mb: float, gpu_free_mb: Mapping[int, float]) -> list[Problem]:
    """Problems if RAM (0: unknown) or a GPU's free memory, in MB, is too small for any training."""
    found = []
    if 0 < ram_free_mb < MIN_FREE_RAM_MB:
        found.append(Problem(f"only {ram_free_mb:.0f} MB of RAM are free", "close other programs"))
    for index, free in gpu_free_mb.items():
        if free < MIN_FREE_GPU_MB:
            remedy = "stop the processes that `nvidia-smi` lists, or pick another GPU by CUDA_VISIBLE_DEVICES"
            found.append(Problem(f"only {free:.0f} MB are free on cuda:{index}", remedy))
    return found


def gpu_memory() -> dict[int, float]:
    """Free memory of each visible GPU in MB."""
    if not torch.cuda.is_available():
        return {}
    return {i: torch.cuda.mem_get_info(i)[0] / 2**20 for i in range(torch.cuda.device_count())}


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
    """Examine this machine and measure its first usable device; `steps` also times every architecture."""
    evidence, cpu = host.gpu_evidence(), host.cpu()
    problems, notes = software_findings(evidence)
    problems += memory_findings(cpu.memory_free_mb, gpu_memory())
    usable = torch.cuda.is_available() and not problems
    device = torch.device("cuda", 0) if usable else torch.device("cpu")
    diagnosis = Diagnosis(str(device), recommend(device), _inventory(evidence, cpu), problems, notes)
    if device.type == "cuda":
        diagnosis.notes += small_memory_notes(torch.cuda.get_device_properties(device).total_memory)
    _measure(diagnosis, device)
    if steps or device.type == "cuda":  # on a CPU there is nowhere else to run, and the check takes seconds
        _place(diagnosis, device)
    if steps:
        from cpbmodels.device.steps import time_architectures  # the whole engine: `--quick` does without

        diagnosis.facts["steps"] = time_architectures(device)
    diagnosis.notes += [str(error) for error in architecture_problems()]
    return diagnosis


def recommend(device: torch.device) -> str:
    """The hardware profile for a device: cpu, or for a GPU gpu-6gb, gpu-16gb or gpu-80gb by its total memory."""
    if device.type != "cuda":
        return "cpu"
    return profile_for(torch.cuda.get_device_properties(device).total_memory)


def profile_for(total_bytes: float) -> str:
    """The largest profile that fits a GPU with this much memory; below 5 GB the smallest, whose fleets are halved
    where they do not fit: the profile `cpu` would run without CUDA graphs."""
    return next((name for name, needed in PROFILES if total_bytes >= needed), PROFILES[-1][0])


def _inventory(evidence: host.GpuEvidence, cpu: host.Cpu) -> dict[str, Any]:
    cudnn = torch.backends.cudnn.version() if torch.version.cuda else None
    return {
        "python": sys.version.split()[0],
        "torch": {"version": torch.__version__, "cuda": torch.version.cuda, "cudnn": cudnn},
        "driver": evidence.driver,
        "gpu_signs": list(evidence.signs),
        "cpu": asdict(cpu) | {"fast_bf16": cpu.fast_bf16},
        "gpus": [_gpu(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else [],
    }


def _gpu(index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    return {
        "index": index,
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_total_mb": total / 2**20,
        "memory_free_mb": free / 2**20,
    }


def _measure(diagnosis: Diagnosis, device: torch.device) -> None:
    """Rates, in relation to the data sheet."""
    chip = probe.reference(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    rates = probe.rates(device, chip)
    diagnosis.facts["rates"] = rates
    diagnosis.notes += slow_notes(rates)


def _place(diagnosis: Diagnosis, device: torch.device) -> None:
    """nn.LSTM under the profiler: did it run on the device?"""
    diagnosis.facts["lstm"] = lstm = placement.lstm_placement(device)
    if not lstm["ran_on_device"]:
        what = f"a training step of nn.LSTM left {device}: {', '.join(lstm['cpu_ops'])}"
        diagnosis.problems.append(Problem(what, "reinstall torch; a build with cuDNN never does this"))
    elif device.type == "cuda" and not lstm["kernels"]:
        diagnosis.notes.append(NO_CUPTI)


def small_memory_notes(total_bytes: float) -> list[str]:
    """A note if a GPU has less memory than the smallest profile is made for."""
    name, needed = PROFILES[-1]
    if total_bytes >= needed:
        return []
    return [
        f"this GPU has {total_bytes / GB:.1f} GB, less than the {needed / GB:.0f} GB that profile {name} is made for: "
        "fleets that do not fit are halved, or choose a smaller --batch-size"
    ]


def slow_notes(rates: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A note for each rate far below the data sheet's: another process, heat, or a power limit."""
    return [
        f"{name} reaches only {rate['share']:.0%} of the data sheet: is another process on the GPU, or "
        "does it throttle (`nvidia-smi -q -d PERFORMANCE`)?"
        for name, rate in rates.items()
        if rate["share"] is not None and rate["share"] < MIN_RATE_SHARE
    ]
