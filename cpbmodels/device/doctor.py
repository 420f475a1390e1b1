"""`cpb doctor`: driver, torch build, devices and memory, one timed training step of each architecture, and remedies.

What the machine has is read from the system itself, because it is needed most when CUDA is broken.
"""

import contextlib
import os
import platform
import re
import sys
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from cpbmodels.arch import every
from cpbmodels.arch.options import Preset
from cpbmodels.arch.torch_private import bf16_in_cpu_hardware
from cpbmodels.device import builds
from cpbmodels.device.monitor import MB, Chip, chips, driver_version, kernels, operators_on_cpu, usable_cores
from cpbmodels.device.pace import (
    MODELS,
    Run,
    members_on_gpu,
    reason,
    time_fleet,
    time_on_cores,
    training_seconds,
)
from cpbmodels.device.steps import seed_size

PCI_DEVICES = Path("/sys/bus/pci/devices")
NVIDIA_VENDOR, DISPLAY_CLASS = "0x10de", "0x03"
NO_CUPTI = (
    "the profiler saw no GPU kernel: CUPTI is missing or not permitted (a container or the driver's option "
    "NVreg_RestrictProfilingToAdminUsers); training does not need it"
)
LSTM = "nn.LSTM never falls back to the CPU: its input would have to be there"
ESTIMATED = {"seed-transformer": "transformer", "seed-gru": "gru", "seed-lstm": "lstm"}
"""Presets whose training of `MODELS` models is estimated, and their architectures."""
PROFILES = (("gpu-80gb", 70e9), ("gpu-16gb", 14e9), ("gpu-6gb", 5e9))
MIN_FREE_MB = 500.0  # of RAM and of a GPU; below, not even a small fleet trains
TRAINER_MB = 1000.0  # of RAM for a process that trains on a CPU
MAX_LOAD_SHARE = 0.5  # of the cores; above, other programs slow the steps on a CPU
WIDTH = 100  # columns of the report


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
        why = reason(error)
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
        what = f"CUDA fails on this machine's GPU: {reason(error)}"
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
        if not architecture.spec.closed_form and not (size := seed_size(name, profile)).members
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
        what = f"a training step of nn.LSTM failed on {device}: {reason(error)}"
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
            rows[name] = {"error": reason(error)}
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
    seen = kernels(step, device) if device.type == "cuda" else {}
    return {"output_device": str(output.device), "cpu_operators": on_cpu, "longest_kernels": list(seen)[:2]}


def _left(what: str, device: torch.device, operators: Sequence[str]) -> Problem:
    """The problem of operators that gave CPU tensors in a step on a GPU."""
    more = f" and {len(operators) - 6} more" if len(operators) > 6 else ""
    return Problem(
        f"{what} on {device} made tensors on the CPU: {', '.join(operators[:6])}{more}",
        "in an architecture of your own, make them on the device of its inputs; else reinstall torch, and report it",
    )


def lines(diagnosis: Diagnosis) -> Iterator[str]:
    """The report of `cpb doctor`: one screen of 100 columns, problems and what to do about them last.

    A command to be copied stands whole on a line of its own, however long.
    """
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
        yield from _steps(rows, diagnosis)
    if "lstm" in facts:
        yield _wrapped(f"nn.LSTM: {_lstm(facts['lstm'], diagnosis.device)}")
    if estimates := facts.get("estimates"):
        yield _wrapped(_estimates(estimates, diagnosis))
    yield f"recommended profile: {diagnosis.profile}"
    for note in diagnosis.notes:
        yield _wrapped(f"note: {note}")
    for problem in diagnosis.problems:
        yield _wrapped(f"PROBLEM: {problem.what}")
        yield _wrapped(f"  remedy: {problem.remedy}{':' if problem.command else ''}")
        if problem.command:
            yield f"    {problem.command}"
    yield f"problems: {len(diagnosis.problems) or 'none'}"


def _free(memory: Mapping[str, Any]) -> str:
    return f"{memory['memory_free_mb'] / 1024:.1f} of {memory['memory_total_mb'] / 1024:.1f} GiB free"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent="    ", break_on_hyphens=False)


def _steps(rows: Mapping[str, Mapping[str, Any]], diagnosis: Diagnosis) -> Iterator[str]:
    device, lanes = diagnosis.device, diagnosis.facts["lanes"]
    where = (
        f"on {device}" if device != "cpu" else f"on a core, {lanes} at once" if lanes > 1 else "on one core"
    )
    yield f"one training step of each architecture at its usual size, {where}"
    yield f"  {'architecture':<16}{'members':>8}{'batch':>6}{'ms':>9}{'windows/s':>11}{'GPU MB':>8}{'busy':>6}  kernels"
    reasons: dict[str, list[str]] = {}
    products: dict[str, list[str]] = {}
    for name, row in rows.items():
        memory, busy = row["gpu_mem_peak_mb"], row["gpu_busy"]
        state, _, why = row["kernels"].partition(" ")
        if why:
            reasons.setdefault(why.strip("()"), []).append(name)
        products.setdefault(row["products"], []).append(name)
        yield (
            f"  {name:<16}{row['members']:>8}{row['batch']:>6}{row['step_ms']:>9.2f}{row['windows_per_s']:>11.0f}"
            f"{'-' if memory is None else f'{memory:.0f}':>8}{'-' if busy is None else f'{busy:.0%}':>6}  {state}"
        )

    def of_rows(names: Sequence[str]) -> str:
        return "all" if len(names) == len(rows) else ", ".join(names)

    for why, names in reasons.items():
        yield _wrapped(f"  kernels off ({of_rows(names)}): {why}")
    for name, row in rows.items():
        if row["longest_kernels"]:
            yield f"  {name} ran {', '.join(row['longest_kernels'])}"[:WIDTH]
    plain = products.pop("float32", [])
    mixed = "; ".join(f"on, {kind}: {of_rows(names)}" for kind, names in products.items())
    off = f"off, float32: {of_rows(plain)}" if plain else ""
    yield _wrapped(f"mixed precision: {'; '.join(filter(None, (mixed, off)))}")
    if device != "cpu":
        row = min(rows.values(), key=lambda row: float(row["gpu_mem_peak_mb"]))
        yield _wrapped(
            f"little GPU memory is no sign of the CPU: a model has {_millions(rows)} million weights, and a step of "
            f"{row['members']} needs {row['gpu_mem_peak_mb']:.0f} MB and more; look at busy, the share of the step "
            "in which a kernel ran"
        )


def _millions(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The range of the models' weights, such as `0.0 to 2.1`."""
    weights = [row["weights"] / 1e6 for row in rows.values()]
    return f"{min(weights):.2g} to {max(weights):.2g}"


def _lstm(seen: Mapping[str, Any], device: str) -> str:
    """Where nn.LSTM ran, and what was seen of it."""
    if device == "cpu":
        return f"a training step ran on the CPU, where its input was. {LSTM}"
    if seen["cpu_operators"]:
        return f"a training step on {device} gave CPU tensors (below). {LSTM}"
    ran = f", its longest kernel was {seen['longest_kernels'][0][:60]}" if seen["longest_kernels"] else ""
    return f"a training step ran on {seen['output_device']}: no operator gave a CPU tensor{ran}. {LSTM}"


def _estimates(estimates: Mapping[str, Mapping[str, Any]], diagnosis: Diagnosis) -> str:
    """What `MODELS` models take at most, and how early runs so far ended."""
    facts, lanes = diagnosis.facts, diagnosis.facts["lanes"]
    if diagnosis.device == "cpu":
        where = f"this CPU, {lanes} core{'s' * (lanes > 1)}"
    else:
        where = f"this {facts['gpus'][0]['name']}" if lanes == 1 else f"these {lanes} GPUs"
    models = next(iter(estimates.values()))["models"]
    times = ", ".join(
        f"{name}{' at most' * (not k)} {_duration(e['seconds'])}"
        for k, (name, e) in enumerate(estimates.items())
    )
    text = f"{models} models on {where}: {times} of training"
    if (used := facts.get("epochs_used")) is None:
        return text
    if not used:
        return f"{text}; no run of these presets so far says how early they end"
    ended = ", ".join(f"{share['percent']:.0f} % ({name})" for name, share in used.items())
    return f"{text}; runs so far ended after about {ended} of the epochs"


def _duration(seconds: float) -> str:
    """`40 s`, `12 min` or `3.4 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
