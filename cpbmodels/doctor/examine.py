"""What `cpb doctor` finds: driver, torch build, devices and memory, one timed training step of each architecture."""

import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from cpbmodels.arch import every
from cpbmodels.arch.options import Preset, profile_for
from cpbmodels.arch.presets import default_preset
from cpbmodels.device.monitor import MB
from cpbmodels.device.operators import gpu_kernels, operators_on_cpu
from cpbmodels.doctor.findings import Problem, cpu, gpu_evidence, memory_findings, software_findings
from cpbmodels.doctor.pace import (
    MODELS,
    Run,
    members_on_gpu,
    time_fleet,
    time_on_cores,
    training_seconds,
)
from cpbmodels.errors import first_line

NO_CUPTI = (
    "the profiler saw no GPU kernel: CUPTI is missing or not permitted (a container or the driver's option "
    "NVreg_RestrictProfilingToAdminUsers); training does not need it"
)
ESTIMATED = {"seed-transformer": "transformer", "seed-gru": "gru", "seed-lstm": "lstm"}
"""Presets whose training of `MODELS` models is estimated, and their architectures."""
TRAINER_MB = 1000.0  # of RAM for a process that trains on a CPU
MAX_LOAD_SHARE = 0.5  # of the cores; above, other programs slow the steps on a CPU


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


def examine(*, steps: bool = True, run: Run | None = None) -> Diagnosis:
    """Examine this machine; `steps` also times a step of every architecture on its first usable device.

    run: how an application trains the models whose time is estimated from these steps.
    """
    evidence, processor = gpu_evidence(), cpu()
    gpus: list[dict[str, Any]] = []
    try:
        with warnings.catch_warnings():
            # What torch warns of here (a chip without code, an old driver) is a problem of the answer, with its remedy.
            warnings.filterwarnings("ignore", module=r"torch\.cuda")
            problems, notes = software_findings(evidence)
            gpus += [_gpu(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    except RuntimeError as error:  # the device is another process's alone, or gone from the bus
        what = f"CUDA fails on this machine's GPU: {first_line(error)}"
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
        _time_steps(diagnosis, device, run or Run())
    return diagnosis


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


def _time_steps(diagnosis: Diagnosis, device: torch.device, run: Run) -> None:
    """Where nn.LSTM runs, a step of each architecture, and what they say of a whole training.

    A step that fails, or an operator that leaves a GPU, is a problem.
    """
    profile = diagnosis.profile if device.type == "cuda" else None  # a CPU's is not chosen by itself
    # Neither in closed form nor an average, whose members are timed by their own names.
    options = {
        name: size
        for name, architecture in every().items()
        if not architecture.spec.closed_form and not (size := default_preset(name, profile)).members
    }
    lanes = _lanes(diagnosis, device, run)
    if device.type == "cpu" and (busy := _load()) > MAX_LOAD_SHARE * diagnosis.facts["cpu"]["cores"]:
        cores = f"{diagnosis.facts['cpu']['cores']} cores"
        diagnosis.notes.append(
            f"other programs use this machine (load {busy:.1f} on {cores}), which slows steps and trainings down"
        )
    rows = _rows(options, device, lanes, run)
    for name, row in list(rows.items()):
        if "error" in row:
            what = f"a training step of {name} failed on {device}: {rows.pop(name)['error']}"
            remedy = "train with `--device cpu`, or install another torch build"
            diagnosis.problems.append(Problem(what, remedy))
        elif row["cpu_operators"]:
            diagnosis.problems.append(_left(f"a training step of {name}", device, row["cpu_operators"]))
    diagnosis.facts |= {
        "lanes": lanes,
        "steps": rows,
        "estimates": {
            name: {"models": len(run.spans), "epochs": options[kind].epochs, "seconds": spent}
            for name, kind in ESTIMATED.items()
            if kind in rows
            for spent in [training_seconds(options[kind], rows[kind], run.spans, lanes)]
        },
    }
    try:
        lstm = diagnosis.facts["lstm"] = lstm_step(device)
    except Exception as error:  # noqa: BLE001 - as for the architectures
        what = f"a training step of nn.LSTM failed on {device}: {first_line(error)}"
        diagnosis.problems.append(Problem(what, "install another torch build"))
        return
    if device.type != "cuda":
        return
    if lstm["cpu_operators"]:
        diagnosis.problems.append(_left("a training step of nn.LSTM", device, lstm["cpu_operators"]))
    if rows and not any(row["longest_kernels"] for row in (lstm, *rows.values())):
        stayed = not lstm["cpu_operators"] and not any(row["cpu_operators"] for row in rows.values())
        checked = "; no operator of these steps gave a CPU tensor, so they ran on the GPU" if stayed else ""
        diagnosis.notes.append(f"{NO_CUPTI}{checked}")


def _rows(
    options: Mapping[str, Preset], device: torch.device, lanes: int, run: Run
) -> dict[str, dict[str, Any]]:
    """A row of `time_fleet` for each architecture, {"error": reason} for one whose step failed."""
    if device.type == "cpu":
        return time_on_cores(options, run.cpu_members, lanes, run)
    rows: dict[str, dict[str, Any]] = {}
    for name, size in options.items():
        members = members_on_gpu(size, torch.cuda.mem_get_info(device)[0])
        try:
            rows[name] = time_fleet(name, size, members, device)
        except Exception as error:  # noqa: BLE001 - a report on the other architectures is wanted all the more
            rows[name] = {"error": first_line(error)}
    return rows


def _load() -> float:
    """Mean number of processes that wanted a core in the last minute; 0 where the system does not say."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):  # Windows; a sandbox
        return 0.0


def _lanes(diagnosis: Diagnosis, device: torch.device, run: Run) -> int:
    """Fleets that train side by side: one on each GPU, or on each core as far as memory and fleets suffice."""
    if device.type == "cuda":
        return len(diagnosis.facts["gpus"])
    processor = diagnosis.facts["cpu"]
    by_memory = int(processor["memory_free_mb"] / TRAINER_MB) or 1 if processor["memory_free_mb"] else MODELS
    return max(1, min(processor["cores"], by_memory, -(-len(run.spans) // run.cpu_members)))


def lstm_step(device: torch.device, batch: int = 32, hidden: int = 256) -> dict[str, Any]:
    """A training step of torch's own nn.LSTM at the size of `seed-lstm` (30 candles, 2 layers), and where it ran.

    Returns output_device, cpu_operators and, of a GPU whose kernels the profiler sees, the longest_kernels.
    """
    lstm = torch.nn.LSTM(4, hidden, num_layers=2, batch_first=True).to(device)
    weights = list(lstm.parameters())
    candles = torch.randn(batch, 30, 4, device=device)
    output = candles

    def step() -> None:
        nonlocal output
        output = lstm(candles)[0]
        gradients = torch.autograd.grad(output.square().mean(), weights)
        with torch.no_grad():
            # By hand: torch.optim imports torch's compiler, which takes seconds.
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.sub_(gradient, alpha=1e-3)

    on_cpu = operators_on_cpu(step)
    seen = gpu_kernels(step, device) if device.type == "cuda" else {}
    return {"output_device": str(output.device), "cpu_operators": on_cpu, "longest_kernels": list(seen)[:2]}


def _left(what: str, device: torch.device, operators: Sequence[str]) -> Problem:
    """The problem of operators that gave CPU tensors in a step on a GPU."""
    more = f" and {len(operators) - 6} more" if len(operators) > 6 else ""
    return Problem(
        f"{what} on {device} made tensors on the CPU: {', '.join(operators[:6])}{more}",
        "in an architecture of your own, make them on the device of its inputs; else reinstall torch, and report it",
    )
