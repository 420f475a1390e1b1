"""Dense matmul rates and memory bandwidth per chip, from NVIDIA's data sheets.

Rates in TFLOP/s without sparsity and at full boost clock; tensor-core rates with fp32 accumulation, which GeForce
cards do at half the advertised rate. Laptop variants share the names but not the rates, so they have no entry.
"""

import re
from dataclasses import dataclass

LAUNCH_US = 6.0
"""Host time of one eager PyTorch kernel launch on a current server CPU, in µs; the reference for launches."""


@dataclass(frozen=True)
class Chip:
    """One GPU's data sheet; a rate is None where the chip lacks that precision. `bandwidth` is in GB/s."""

    fp32: float
    tf32: float | None
    bf16: float | None
    fp16: float | None
    bandwidth: float

    def rate(self, precision: str) -> float | None:
        """TFLOP/s of the data sheet for "fp32", "tf32", "bf16" or "fp16"."""
        rates = {"fp32": self.fp32, "tf32": self.tf32, "bf16": self.bf16, "fp16": self.fp16}
        return rates[precision]


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
