"""Problems of a GPU, its driver, this torch build and the memory, each with its remedy."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from cpbmodels.device import host

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
    """Problems where RAM (0: unknown) or a GPU's free memory, in MB, is too small for any training."""
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
