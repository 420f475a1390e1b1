"""Measured rates of a device: what it gives, beside `chips.py`, which says what it should give.

Each rate is the best of several short runs: a probe asks what the device can do, and every disturbance
only makes it slower. On a GPU, time is taken between CUDA events, so the host's own clock does not enter.
"""

import time
from collections.abc import Callable
from typing import Any

import torch

from cpbmodels.device.chips import LAUNCH_US, Chip

PRECISIONS = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


def seconds(run: Callable[[], object], device: torch.device, repeats: int = 5, inner: int = 1) -> float:
    """Best time of one `run()` in seconds: `repeats` measurements of `inner` runs each, after a warm-up."""
    run()
    if device.type != "cuda":
        return min(_host_seconds(run, inner) for _ in range(repeats)) / inner
    return min(_event_seconds(run, inner, device) for _ in range(repeats)) / inner


def _host_seconds(run: Callable[[], object], inner: int) -> float:
    start = time.perf_counter()
    for _ in range(inner):
        run()
    return time.perf_counter() - start


def _event_seconds(run: Callable[[], object], inner: int, device: torch.device) -> float:
    with torch.cuda.device(device):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        for _ in range(inner):
            run()
        end.record()
        torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3


def matmul_tflops(device: torch.device, precision: str, size: int) -> float:
    """TFLOP/s of a [size, size] product in "fp32", "tf32", "bf16" or "fp16", on random data."""
    # Random data: zeros draw less power, clock higher and flatter the chip by a tenth.
    a, b = (torch.randn(size, size, device=device).to(PRECISIONS[precision]) for _ in range(2))
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    try:
        best = seconds(lambda: torch.mm(a, b), device, inner=3)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    return 2 * size**3 / best / 1e12


def copy_gbs(device: torch.device, megabytes: int) -> float:
    """GB/s of a copy inside the device's memory, counting bytes read and bytes written."""
    source = torch.empty(megabytes * 1_000_000, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds(lambda: target.copy_(source), device, inner=3) / 1e9


def upload_gbs(device: torch.device, megabytes: int) -> float:
    """GB/s from pinned host memory to the device."""
    source = torch.empty(megabytes * 1_000_000, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(source, device=device)
    return source.nbytes / seconds(lambda: target.copy_(source, non_blocking=True), device) / 1e9


def launch_us(device: torch.device) -> float:
    """Time per tiny eager op in µs: what one launch costs when the work itself costs nothing."""
    x = torch.zeros(16, device=device)
    return seconds(lambda: x.add_(1.0), device, inner=500) * 1e6


def rates(device: torch.device, chip: Chip | None) -> dict[str, dict[str, Any]]:
    """Every rate as {"value", "unit", "promised", "share"}; the last two are None without a reference."""
    gpu = device.type == "cuda"
    large = gpu and torch.cuda.mem_get_info(device)[0] > 16e9
    size = 8192 if large else 4096 if gpu else 1024
    found = {
        f"matmul_{p}": _rate(matmul_tflops(device, p, size), "TFLOP/s", chip.rate(p) if chip else None)
        for p in precisions(device)
    }
    found["copy"] = _rate(copy_gbs(device, 256 if gpu else 64), "GB/s", chip.bandwidth if chip else None)
    if gpu:
        found["upload"] = _rate(upload_gbs(device, 256), "GB/s", None)
    launch = launch_us(device)
    share = min(1.0, LAUNCH_US / launch) if gpu else None
    promised = LAUNCH_US if gpu else None
    return found | {"launch": {"value": launch, "unit": "us", "promised": promised, "share": share}}


def precisions(device: torch.device) -> tuple[str, ...]:
    """The precisions worth measuring on a device: bf16 and TF32 exist from compute capability 8 on."""
    if device.type != "cuda":
        return ("fp32", "bf16")
    new = torch.cuda.get_device_capability(device) >= (8, 0)
    return ("fp32", "tf32", "bf16") if new else ("fp32", "fp16")


def _rate(value: float, unit: str, promised: float | None) -> dict[str, Any]:
    return {
        "value": value,
        "unit": unit,
        "promised": promised,
        "share": value / promised if promised else None,
    }
