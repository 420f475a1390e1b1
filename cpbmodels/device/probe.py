"""Measured rates of a device, to compare with the data sheets in `chips.py`.

Each rate is the best of several short runs: the question is what the device can do, and every disturbance only makes
it slower. On a GPU, time is taken between CUDA events: launches are asynchronous, so the host's clock would measure how
fast work is queued, not how fast it is done.
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
    """Best time of one `run()` in seconds: `repeats` measurements of `inner` runs each, after a warm-up.

    `inner` runs are timed together so that the two events (or clock readings) cost little beside them.
    """
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
    """Seconds between two events on the device's queue, recorded before and after `inner` runs."""
    with torch.cuda.device(device):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        for _ in range(inner):
            run()
        end.record()
        torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3  # elapsed_time is in milliseconds


def matmul_tflops(device: torch.device, precision: str, size: int) -> float:
    """TFLOP/s of a [size, size] product in "fp32", "tf32", "bf16" or "fp16", on random data."""
    # Random data: with zeros a chip draws less power, clocks higher and looks a tenth faster.
    a, b = (torch.randn(size, size, device=device).to(PRECISIONS[precision]) for _ in range(2))
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    try:
        best = seconds(lambda: torch.mm(a, b), device, inner=3)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    return 2 * size**3 / best / 1e12  # a product of n x n matrices is n^3 multiplications and n^3 additions


def copy_gbs(device: torch.device, megabytes: int) -> float:
    """GB/s of a copy inside the device's memory, bytes read and bytes written counted both."""
    source = torch.empty(megabytes * 1_000_000, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds(lambda: target.copy_(source), device, inner=3) / 1e9


def upload_gbs(device: torch.device, megabytes: int) -> float:
    """GB/s from pinned host memory to the device."""
    source = torch.empty(megabytes * 1_000_000, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(source, device=device)
    return source.nbytes / seconds(lambda: target.copy_(source, non_blocking=True), device) / 1e9


def launch_us(device: torch.device) -> float:
    """Time per operator on 16 numbers in µs: the cost of a launch, since the work itself costs next to nothing."""
    x = torch.zeros(16, device=device)
    return seconds(lambda: x.add_(1.0), device, inner=500) * 1e6


def rates(device: torch.device, chip: Chip | None) -> dict[str, dict[str, Any]]:
    """Every rate as {"value", "unit", "promised", "share"}.

    `promised` is the data sheet's value, `share` the part of it that was reached; None without a reference.
    """
    gpu = device.type == "cuda"
    large = gpu and torch.cuda.mem_get_info(device)[0] > 16e9
    size = 8192 if large else 4096 if gpu else 1024  # fills the chip, fits into its memory
    found = {
        f"matmul_{p}": _rate(matmul_tflops(device, p, size), "TFLOP/s", chip.rate(p) if chip else None)
        for p in precisions(device)
    }
    found["copy"] = _rate(copy_gbs(device, 256 if gpu else 64), "GB/s", chip.bandwidth if chip else None)
    if gpu:
        found["upload"] = _rate(upload_gbs(device, 256), "GB/s", None)
    launch = launch_us(device)
    share = min(1.0, LAUNCH_US / launch) if gpu else None  # a time, not a rate: the smaller the better
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
