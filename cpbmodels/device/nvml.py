"""NVIDIA's management library (pynvml, from nvidia-ml-py), opened lazily and read without touching CUDA."""

import importlib
from dataclasses import dataclass
from types import ModuleType

import torch


@dataclass(frozen=True)
class GpuState:
    """One reading of a GPU: utilisation in percent of the last sample period, power in watts."""

    utilisation: float
    power_w: float | None


class GpuCounters:
    """Counters of one GPU; `available` is False, with the reason in `note`, where NVML cannot be read."""

    def __init__(self, device: torch.device) -> None:
        self.note = ""
        self._nvml: ModuleType | None = None
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            self.note = "utilisation and power not measured: `pip install nvidia-ml-py`"
            return
        try:
            nvml.nvmlInit()
            self._handle = _handle(nvml, device)
        except (nvml.NVMLError, ValueError) as error:
            self.note = f"utilisation and power not measured: NVML says {error}"
            return
        self._nvml = nvml

    @property
    def available(self) -> bool:
        """Whether `read` gives figures."""
        return self._nvml is not None

    def read(self) -> GpuState | None:
        """Utilisation and power now; None where NVML does not support it on this GPU (a vGPU or MIG slice)."""
        nvml = self._nvml
        if nvml is None:
            return None
        try:
            utilisation = float(nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)
        except nvml.NVMLError as error:
            self.note = f"utilisation not measured: NVML says {error}"
            return None
        try:
            power = nvml.nvmlDeviceGetPowerUsage(self._handle) / 1000.0
        except nvml.NVMLError:
            power = None
        return GpuState(utilisation, power)


def _handle(nvml: ModuleType, device: torch.device) -> object:
    """NVML's handle of a torch device, by UUID: CUDA_VISIBLE_DEVICES renumbers torch's, not NVML's."""
    index = device.index if device.index is not None else torch.cuda.current_device()
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    if uuid is None:
        return nvml.nvmlDeviceGetHandleByIndex(index)
    return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
