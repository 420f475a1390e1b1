"""What a device does: memory, utilisation and power beside a running training.

Sampling never syncs the device.

The allocator's statistics live on the host and NVML reads the driver, so a sample costs the GPU nothing.
The alternative, torch.cuda.synchronize() around each reading, stalls the queue that keeps the device busy.

NVML is read by pynvml (package nvidia-ml-py), which is opened lazily and does not touch CUDA.
"""

import contextlib
import importlib
import os
import threading
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, TracebackType

import torch

from cpbmodels.errors import pip_install

MB = 2**20  # as nvidia-smi counts
MIN_UTILISATION_PERCENT = 20.0  # below, the device mostly waits for the host
_RSS = {"VmRSS": "rss_mb", "VmHWM": "rss_peak_mb"}  # names in /proc
MIN_SAMPLES = 10  # a mean over fewer tells nothing about a run


@dataclass(frozen=True)
class GpuState:
    """One reading of a GPU: utilisation in percent of the last sample period, power in watts."""

    utilisation: float
    power_w: float | None


class GpuCounters:
    """Counters of one GPU; `read` gives None, with the reason in `note`, where NVML cannot be read."""

    def __init__(self, device: torch.device) -> None:
        self.note = ""
        self._nvml: ModuleType | None = None
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            self.note = f"utilisation and power not measured: `{pip_install('nvidia-ml-py')}`"
            return
        try:
            nvml.nvmlInit()
            self._handle = _handle(nvml, device)
        except (nvml.NVMLError, ValueError) as error:
            self.note = f"utilisation and power not measured: NVML says {error}"
            return
        self._nvml = nvml

    def read(self) -> GpuState | None:
        """Utilisation and power now; None if NVML does not support it on this GPU (a vGPU or MIG slice)."""
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
    return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(index).uuid}")


class Monitor:
    """`with Monitor("cuda") as m: train(); m.summary()`; on a CPU it records the memory of the process alone.

    `interval`: seconds between two samples. `quiet`: no warning about a GPU that waited. NVML's utilisation counts
    every process on the GPU, not only this one.
    """

    def __init__(self, device: torch.device | str, interval: float = 0.5, *, quiet: bool = False) -> None:
        self.device, self.interval, self.quiet = torch.device(device), interval, quiet
        self._cuda = self.device.type == "cuda"
        self._states: list[GpuState] = []
        self._counters: GpuCounters | None = None
        self._thread: threading.Thread | None = None
        self._stop, self._read = threading.Event(), 0
        self._clocks = time.perf_counter(), time.process_time()

    def __enter__(self) -> "Monitor":
        if self._cuda:
            torch.cuda.reset_peak_memory_stats(self.device)
            self._counters = GpuCounters(self.device)
            self._thread = threading.Thread(
                target=self._sample, args=(self._counters,), name="device-monitor", daemon=True
            )
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            # Without the join a sample could still be added while a summary counts them.
            self._thread.join()
        if kind is None and self.warning and not self.quiet:
            warnings.warn(self.warning, stacklevel=2)

    def _sample(self, counters: GpuCounters) -> None:
        while not self._stop.wait(self.interval) and (state := counters.read()) is not None:
            self._states.append(state)

    def latest(self) -> dict[str, float]:
        """What was measured since the last call, for a line per epoch; it waits for nothing on the device.

        Memory in MB (`_peak_`: since the start), power in W, utilisation in percent: `cpu_util` of the cores that this
        process may use (all its threads together), `gpu_util` of the GPU's time.
        """
        clocks = time.perf_counter(), time.process_time()
        wall, cpu = (now - before for now, before in zip(clocks, self._clocks, strict=True))
        self._clocks = clocks
        reading = resident_mb() | {"cpu_util": 100.0 * cpu / (max(wall, 1e-9) * usable_cores())}
        if self._cuda:
            reading["gpu_mem_allocated_mb"] = torch.cuda.memory_allocated(self.device) / MB
            reading["gpu_mem_reserved_mb"] = torch.cuda.memory_reserved(self.device) / MB
            reading |= self._peaks()
        states = self._states[self._read :] or self._states[-1:]  # an epoch may be shorter than the interval
        self._read = len(self._states)
        if states:
            reading["gpu_util"] = sum(state.utilisation for state in states) / len(states)
            if states[-1].power_w is not None:
                reading["gpu_power_w"] = states[-1].power_w
        return reading

    def summary(self) -> dict[str, float]:
        """Figures of the monitored time: peaks in MB, mean utilisation in percent, mean power in W.

        On a CPU the GPU's figures are 0: none was used. On a GPU whose counters cannot be read, utilisation and power
        are left out (see `note`): 0 would be wrong.
        """
        figures = {"rss_peak_mb": resident_mb()["rss_peak_mb"]}
        if not self._cuda:
            names = (
                "gpu_mem_allocated_peak_mb",
                "gpu_mem_reserved_peak_mb",
                "gpu_util_mean",
                "gpu_power_mean_w",
            )
            return figures | dict.fromkeys(names, 0.0)
        figures |= self._peaks()
        states = list(self._states)  # a copy: the thread may still add to the list
        powers = [state.power_w for state in states if state.power_w is not None]
        if states:
            figures["gpu_util_mean"] = sum(state.utilisation for state in states) / len(states)
        if powers:
            figures["gpu_power_mean_w"] = sum(powers) / len(powers)
        return figures

    def _peaks(self) -> dict[str, float]:
        return {
            "gpu_mem_allocated_peak_mb": torch.cuda.max_memory_allocated(self.device) / MB,
            "gpu_mem_reserved_peak_mb": torch.cuda.max_memory_reserved(self.device) / MB,
        }

    @property
    def note(self) -> str:
        """Why utilisation or power are missing from the summary; empty if nothing is missing."""
        return self._counters.note if self._counters is not None else ""

    @property
    def warning(self) -> str:
        """One sentence with reason and remedy if the GPU mostly waited; empty otherwise."""
        mean = sum(state.utilisation for state in self._states) / max(len(self._states), 1)
        if len(self._states) < MIN_SAMPLES or mean >= MIN_UTILISATION_PERCENT:
            return ""
        return (
            f"the GPU was busy only {mean:.0f} % of the time: each step is too small to fill it, so the "
            "host's launches are the limit; train more members in one fleet, raise batch_size, "
            "or use --device cpu"
        )


def usable_cores() -> int:
    """Cores this process may run on (affinity masks of containers included)."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def resident_mb() -> dict[str, float]:
    """Resident memory of this process in MB: `rss_mb` now and `rss_peak_mb`, its peak; 0 where not on Linux."""
    memory = {"rss_mb": 0.0, "rss_peak_mb": 0.0}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in _RSS:
                memory[_RSS[name]] = int(value.split()[0]) * 1024 / MB
    return memory
