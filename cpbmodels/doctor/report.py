"""The report of `cpb doctor` for people: one screen, problems and what to do about them last."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cpbmodels.doctor.examine import Diagnosis

LSTM = "nn.LSTM never falls back to the CPU: its input would have to be there"
WIDTH = 100  # columns of the report


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
    # Last, so that they stand above the prompt.
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
