"""Measured rates of a device, to compare with the data sheets in `CHIPS`.

Each rate is the best of several short runs: the question is what the device can do, and every disturbance only makes
it slower. On a GPU, time is taken between CUDA events: launches are asynchronous, so the host's clock would measure how
fast work is queued, not how fast it is done.

Dense matmul rates and memory bandwidth per chip, from NVIDIA's data sheets.

Rates in TFLOP/s without sparsity and at full boost clock; tensor-core rates with fp32 accumulation, which GeForce
cards do at half the advertised rate. Laptop variants share the names but not the rates, so they have no entry.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from cpbmodels.device import host

LAUNCH_US = 6.0
"""Host time of one eager PyTorch kernel launch on a current server CPU, in µs; the reference for launches."""


@dataclass(frozen=True)
class Chip:
    """One GPU's data sheet; a rate is None if the chip lacks that precision. `bandwidth` is in GB/s."""

    fp32: float
    tf32: float | None
    bf16: float | None
    fp16: float | None
    bandwidth: float


def _ampere(fp32: float, tf32: float, half: float, bandwidth: float) -> Chip:
    return Chip(fp32, tf32, half, half, bandwidth)


def _turing(fp32: float, fp16: float | None, bandwidth: float) -> Chip:
    return Chip(fp32, None, None, fp16, bandwidth)


CHIPS: dict[str, Chip] = {
    "GTX 1060": _turing(4.4, None, 192),
    "GTX 1080 Ti": _turing(11.3, None, 484),
    "GTX 1660 Ti": _turing(5.4, 10.9, 288),
    "P100-SXM2": _turing(10.6, 21.2, 732),
    "V100-SXM2": _turing(15.7, 125, 900),
    "V100-PCIE": _turing(14.0, 112, 900),
    "T4": _turing(8.1, 65, 320),
    "RTX 2060": _turing(6.5, 25.8, 336),
    "RTX 2070": _turing(7.5, 29.9, 448),
    "RTX 2080 Ti": _turing(13.4, 53.8, 616),
    "A10": _ampere(31.2, 62.5, 125, 600),
    "A10G": _ampere(31.5, 35, 70, 600),
    "A30": _ampere(10.3, 82, 165, 933),
    "A40": _ampere(37.4, 74.8, 149.7, 696),
    "RTX A2000": _ampere(8.0, 16.0, 31.9, 288),  # 6 and 12 GB alike
    "RTX A6000": _ampere(38.7, 77.4, 154.8, 768),
    "A100-SXM4-40GB": _ampere(19.5, 156, 312, 1555),
    "A100-PCIE-40GB": _ampere(19.5, 156, 312, 1555),
    "A100-SXM4-80GB": _ampere(19.5, 156, 312, 2039),
    "A100 80GB PCIe": _ampere(19.5, 156, 312, 1935),
    "RTX 3050": _ampere(9.1, 9.1, 18.2, 224),
    "RTX 3060": _ampere(12.7, 12.7, 25.5, 360),
    "RTX 3070": _ampere(20.3, 20.3, 40.6, 448),
    "RTX 3080": _ampere(29.8, 29.8, 59.5, 760),
    "RTX 3090": _ampere(35.6, 35.6, 71, 936),
    "RTX 4060": _ampere(15.1, 15.1, 30.2, 272),
    "RTX 4070": _ampere(29.1, 29.1, 58.3, 504),
    "RTX 4080": _ampere(48.7, 48.7, 97.5, 717),
    "RTX 4090": _ampere(82.6, 82.6, 165.2, 1008),
    "RTX 6000 Ada Generation": _ampere(91.1, 182.1, 364.2, 960),
    "L4": _ampere(30.3, 60, 121, 300),
    "L40": _ampere(90.5, 90.5, 181, 864),
    "L40S": _ampere(91.6, 183, 362, 864),
    "H100 80GB HBM3": _ampere(67, 494.7, 989.4, 3350),
    "H100 PCIe": _ampere(51, 378, 756, 2000),
    "H100 NVL": _ampere(60, 417.5, 835, 3938),
    "H200": _ampere(67, 494.7, 989.4, 4800),
    "B200": _ampere(75, 1100, 2250, 8000),
    "RTX 5080": _ampere(56.3, 56.3, 112.6, 960),
    "RTX 5090": _ampere(104.8, 104.8, 209.5, 1792),
}

_VARIANT = re.compile(r"\b(laptop|max-q|mobile|super|ti|mig|grid|vgpu)\b", re.IGNORECASE)


def reference(name: str) -> Chip | None:
    """The entry for a device name as CUDA gives it ("NVIDIA H200"), or None for a chip not in the table.

    None too for a variant that the table does not name (Laptop, SUPER, a MIG slice): its rates differ.
    """
    matches = [key for key in CHIPS if re.search(rf"(?<![\w-]){re.escape(key)}(?![\w-])", name)]
    if not matches:
        return None
    best = max(matches, key=len)
    return None if _VARIANT.search(name.replace(best, "")) else CHIPS[best]


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
        f"matmul_{p}": _rate(matmul_tflops(device, p, size), "TFLOP/s", getattr(chip, p, None))
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
    """The precisions worth measuring on a device: bf16 and TF32 exist from compute capability 8 on.

    A CPU without bf16 in hardware takes seconds for a product that takes 20 ms with it.
    """
    if device.type != "cuda":
        return ("fp32", "bf16") if host.cpu().fast_bf16 else ("fp32",)
    new = torch.cuda.get_device_capability(device) >= (8, 0)
    return ("fp32", "tf32", "bf16") if new else ("fp32", "fp16")


def _rate(value: float, unit: str, promised: float | None) -> dict[str, Any]:
    return {
        "value": value,
        "unit": unit,
        "promised": promised,
        "share": value / promised if promised else None,
    }
