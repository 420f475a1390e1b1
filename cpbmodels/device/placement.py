"""Where a training step really ran: its GPU kernels under the profiler, and every op that touched the CPU."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

LSTM_EXPLANATION = (
    "nn.LSTM runs on the GPU: the kernels above are its own. Little GPU memory is in use because the model "
    "is small (its weights are a few MB and one batch of activations not much more), not because it fell "
    "back to the CPU; judge a device by kernels, utilisation and windows/s, not by gigabytes."
)


@dataclass(frozen=True)
class Placement:
    """Where a training step ran: GPU kernels with their time in µs, and the ops that gave CPU tensors."""

    kernels: dict[str, float]
    cpu_ops: tuple[str, ...]

    def on(self, device: torch.device) -> bool:
        """Whether the step ran on this device and nowhere else."""
        if device.type == "cpu":
            return not self.kernels
        return bool(self.kernels) and not self.cpu_ops


class _CpuOps(TorchDispatchMode):
    """Collects the ops that produced a CPU tensor of more than one element (scalars belong on the host)."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204 — torch's protocol
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu" and tensor.numel() > 1:
                self.ops.append(str(func))
        return out


def observe(step: Callable[[], object], device: torch.device) -> Placement:
    """Run `step` once under the profiler and once under a dispatch mode, and say where it ran."""
    with _CpuOps() as watched:
        step()
    if device.type != "cuda":
        return Placement({}, tuple(dict.fromkeys(watched.ops)))
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        step()
        torch.cuda.synchronize(device)
    kernels: dict[str, float] = {}
    for event in trace.events():
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.name.startswith("Mem"):
            kernels[event.name] = kernels.get(event.name, 0.0) + event.time_range.elapsed_us()
    ordered = sorted(kernels.items(), key=lambda item: -item[1])
    return Placement(dict(ordered), tuple(dict.fromkeys(watched.ops)))


def lstm_step(device: torch.device, batch: int = 32, hidden: int = 256) -> Callable[[], None]:
    """A training step of torch's own nn.LSTM at the size of the seed preset (30 candles, 2 layers)."""
    lstm = torch.nn.LSTM(4, hidden, num_layers=2, batch_first=True).to(device)
    head = torch.nn.Linear(hidden, 4).to(device)
    optimizer = torch.optim.Adam([*lstm.parameters(), *head.parameters()])
    x = torch.randn(batch, 30, 4, device=device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        head(lstm(x)[0][:, -1]).square().mean().backward()
        optimizer.step()

    return step


def lstm_truth(device: torch.device) -> dict[str, Any]:
    """Train one step of nn.LSTM and show where it ran: kernels with µs, CPU ops, memory in MB."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seen = observe(lstm_step(device), device)
    peak = torch.cuda.max_memory_allocated(device) / 1e6 if device.type == "cuda" else 0.0
    ran = seen.on(device)
    return {
        "ran_on_device": ran,
        "kernels": dict(list(seen.kernels.items())[:8]),
        "recurrent_kernels": [name for name in seen.kernels if is_recurrent(name)],
        "cpu_ops": list(seen.cpu_ops),
        "gpu_mem_peak_mb": peak,
        "explanation": LSTM_EXPLANATION if device.type == "cuda" and ran else "",
    }


def is_recurrent(kernel: str) -> bool:
    """Whether a kernel's name says that it computes a recurrent step (cuDNN names its kernels so)."""
    return any(word in kernel.lower() for word in ("rnn", "lstm", "gru"))
