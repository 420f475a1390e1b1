"""A diagnosis as text for people: facts first, then problems and what to do about them."""

from collections.abc import Iterator, Mapping
from typing import Any

from cpbmodels.device.doctor import Diagnosis


def lines(diagnosis: Diagnosis) -> Iterator[str]:
    """The report of `cpb doctor`, line by line."""
    facts = diagnosis.facts
    yield from _software(facts)
    yield from _devices(facts)
    yield f"\nmeasured on {diagnosis.device}"
    for name, rate in facts["rates"].items():
        yield f"  {name:<12} {_rate(rate, gpu=diagnosis.device != 'cpu')}"
    if "lstm" in facts:
        yield from _lstm(facts["lstm"], diagnosis.device)
    if "steps" in facts:
        yield from _steps(facts["steps"])
    yield f"\nrecommended profile: {diagnosis.profile}"
    yield from (f"note: {note}" for note in diagnosis.notes)
    for problem in diagnosis.problems:
        yield f"PROBLEM: {problem.what}\n  remedy: {problem.remedy}"
    yield "no problems found" if not diagnosis.problems else _found(len(diagnosis.problems))


def _found(problems: int) -> str:
    return f"{problems} problem{'' if problems == 1 else 's'} found"


def _software(facts: Mapping[str, Any]) -> Iterator[str]:
    torch = facts["torch"]
    cuda = f"CUDA {torch['cuda']}, cuDNN {torch['cudnn']}" if torch["cuda"] else "CPU-only build"
    yield f"python {facts['python']}, torch {torch['version']} ({cuda})"
    yield f"NVIDIA driver: {facts['driver'] or 'none'}"


def _devices(facts: Mapping[str, Any]) -> Iterator[str]:
    cpu = facts["cpu"]
    units = ", ".join(cpu["flags"]) or "no AVX2"
    yield f"CPU: {cpu['model']}, {cpu['cores']} cores, {cpu['torch_threads']} threads, {units}"
    bf16 = "in hardware: use it" if cpu["fast_bf16"] else "emulated: stay with float32"
    yield f"     bf16 {bf16}; RAM {_gb(cpu['memory_free_mb'])} free of {_gb(cpu['memory_total_mb'])}"
    for gpu in facts["gpus"]:
        free, total = _gb(gpu["memory_free_mb"]), _gb(gpu["memory_total_mb"])
        yield f"cuda:{gpu['index']}: {gpu['name']}, capability {gpu['capability']}, {free} free of {total}"
    if not facts["gpus"]:
        yield "visible GPUs: none"


def _rate(rate: Mapping[str, Any], *, gpu: bool) -> str:
    text = f"{rate['value']:10.3g} {rate['unit']}"
    if rate["share"] is not None:
        return f"{text}, {rate['share']:.0%} of the reference {rate['promised']:g}"
    return f"{text}, no reference figure" if gpu else text


def _lstm(lstm: Mapping[str, Any], device: str) -> Iterator[str]:
    where = "ran" if lstm["ran_on_device"] else "did NOT run"
    yield f"\nplacement: a training step of nn.LSTM {where} on {device}"
    for name, microseconds in lstm["kernels"].items():
        yield f"  {microseconds:8.0f} us  {name[:90]}"
    if lstm["cpu_ops"] and device != "cpu":
        names = [one.removeprefix("aten.").partition(".")[0] for one in lstm["cpu_ops"]]
        yield f"  operators on the CPU: {', '.join(names[:6])} ({len(names)} kinds)"
    if lstm["explanation"]:
        yield f"  GPU memory at its peak: {lstm['gpu_mem_peak_mb']:.0f} MB. {lstm['explanation']}"


def _steps(steps: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield "\none training step of each architecture (its seed size, all members together)"
    yield f"  {'architecture':<16}{'members':>8}{'batch':>7}{'ms':>9}{'windows/s':>12}{'GPU MB':>9}  placement"
    for name, s in steps.items():
        yield (
            f"  {name:<16}{s['members']:>8}{s['batch']:>7}{s['step_ms']:>9.2f}{s['windows_per_s']:>12.0f}"
            f"{s['gpu_mem_peak_mb']:>9.0f}  {s['placement']}"
        )
    if built := sum(s["kernels"] for s in steps.values()):
        yield f"  {built} Triton kernels compiled or cached, in {sum(s['compile_s'] for s in steps.values()):.1f} s"


def _gb(megabytes: float) -> str:
    return f"{megabytes / 1024:.1f} GiB"
