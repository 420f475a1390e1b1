import importlib
from types import SimpleNamespace

import pytest
import torch

from cpbmodels.device import monitor as monitor_module
from cpbmodels.device.chips import chips
from cpbmodels.device.monitor import MIN_SAMPLES, GpuCounters, GpuState, Monitor

KEYS = {
    "gpu_mem_allocated_peak_mb",
    "gpu_mem_reserved_peak_mb",
    "gpu_util_mean",
    "gpu_power_mean_w",
    "rss_peak_mb",
}


def test_on_the_cpu_every_key_is_there_and_no_thread_runs():
    with Monitor("cpu") as monitor:
        ballast = torch.ones(1000)
    summary = monitor.summary()
    assert set(summary) == KEYS
    assert summary["gpu_mem_allocated_peak_mb"] == 0
    assert summary["rss_peak_mb"] * 2**20 > ballast.nbytes
    assert monitor.note == ""
    assert monitor._thread is None


def with_states(*utilisations: float) -> Monitor:
    monitor = Monitor("cpu")
    monitor._states = [GpuState(u, 100.0) for u in utilisations]
    return monitor


def test_warns_with_a_remedy_only_where_the_gpu_mostly_waited():
    assert "batch_size" in with_states(*[5.0] * MIN_SAMPLES).warning
    assert with_states(*[80.0] * MIN_SAMPLES).warning == ""
    assert with_states(*[5.0] * (MIN_SAMPLES - 1)).warning == ""
    with pytest.warns(UserWarning, match="busy only 3 %"), with_states(*[3.0] * MIN_SAMPLES):
        pass


def fake_nvml(monkeypatch, **functions):
    class NVMLError(Exception):
        pass

    module = SimpleNamespace(NVMLError=NVMLError, nvmlInit=lambda: None, **functions)
    monkeypatch.setattr(importlib, "import_module", lambda name: module)
    monkeypatch.setattr(
        monitor_module.torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid="abc")
    )
    return module


def test_counters_are_read_by_uuid(monkeypatch):
    module = fake_nvml(
        monkeypatch,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=42),
    )

    def no_power(handle):
        raise module.NVMLError("Not Supported")

    module.nvmlDeviceGetPowerUsage = no_power
    counters = GpuCounters(torch.device("cuda:0"))
    assert counters._handle == "GPU-abc"
    assert counters.read() == GpuState(42.0, None)


def test_chips_are_named_with_their_capability_and_none_without_a_driver(monkeypatch):
    facts = [("Tesla P100-PCIE-16GB", (6, 0)), ("NVIDIA GeForce RTX 5090", (12, 0))]
    module = fake_nvml(
        monkeypatch,
        nvmlDeviceGetCount=lambda: len(facts),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: facts[handle][0],
        nvmlDeviceGetCudaComputeCapability=lambda handle: facts[handle][1],
    )
    assert list(map(str, chips())) == [
        "Tesla P100-PCIE-16GB (sm_60)",
        "NVIDIA GeForce RTX 5090 (sm_120)",
    ]

    def no_driver():
        raise module.NVMLError("Driver Not Loaded")

    module.nvmlInit = no_driver
    assert chips() == ()

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    assert chips() == ()


def test_a_silent_gpu_is_noted_and_not_reported_as_zero(monkeypatch):
    module = fake_nvml(monkeypatch)

    def refuse(uuid):
        raise module.NVMLError("Insufficient Permissions")

    module.nvmlDeviceGetHandleByUUID = refuse
    counters = GpuCounters(torch.device("cuda:0"))
    assert counters.read() is None
    assert "Insufficient Permissions" in counters.note


def test_one_busy_thread_on_two_cores_is_half_of_the_cpu(monkeypatch):
    """As docs/gpu.md explains the share."""
    monkeypatch.setattr(monitor_module, "usable_cores", lambda: 2)
    clocks = iter([10.0, 14.0])
    monkeypatch.setattr(monitor_module.time, "perf_counter", lambda: next(clocks))
    worked = iter([1.0, 5.0])
    monkeypatch.setattr(monitor_module.time, "process_time", lambda: next(worked))
    assert Monitor("cpu").latest()["cpu_util"] == pytest.approx(50)
