"""Measured rates of a device: matrix products and copies, the best of several runs."""

import re

import torch

from cpbmodels.arch.torch_private import bf16_in_cpu_hardware
from cpbmodels.doctor.pace import best_seconds

DATA_SHEET_BF16 = {
    "A10": 125.0,
    "A100": 312.0,
    "L4": 121.0,
    "L40S": 362.0,
    "H100 PCIe": 756.0,
    "H100 80GB HBM3": 989.4,
    "H200": 989.4,
    "B200": 2250.0,
}
"""Dense bf16 TFLOP/s of NVIDIA's data sheets."""
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def data_sheet(name: str, precision: str) -> float | None:
    """TFLOP/s that the data sheet promises a chip with this name, as CUDA gives it; None for a part of a chip (MIG)."""
    rates = [rate for chip, rate in DATA_SHEET_BF16.items() if re.search(rf"\b{chip}\b", name)]
    return rates[0] if rates and precision == "bf16" and "MIG" not in name else None


def best_precision(device: torch.device) -> str:
    """The precision that a fleet would use here."""
    if device.type == "cuda":
        return "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp16"
    return "bf16" if bf16_in_cpu_hardware() else "fp32"


def matmul_tflops(device: torch.device, precision: str, size: int) -> float:
    """TFLOP/s of a [size, size] product, on random data."""
    # Random data: with zeros a chip draws less power, clocks higher and looks a tenth faster.
    a, b = (torch.randn(size, size, device=device).to(_DTYPES[precision]) for _ in range(2))
    best = best_seconds(lambda: torch.mm(a, b), device, inner=3)
    return 2 * size**3 / best / 1e12  # a product of n x n matrices is n^3 multiplications and n^3 additions


def copy_gbs(device: torch.device, megabytes: int) -> float:
    """GB/s of a copy inside the device's memory, bytes read and bytes written counted both."""
    source = torch.empty(megabytes * 1_000_000, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / best_seconds(lambda: target.copy_(source), device, inner=20) / 1e9
