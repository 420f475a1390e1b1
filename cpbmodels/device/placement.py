"""Where a training step ran: its GPU kernels under the profiler, and every operator that gave a CPU tensor."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from cpbmodels.arch.torch_private import DeviceType, TorchDispatchMode

SYNCS = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "unique")
"""Operators that make the host wait for a GPU (`.item()` is _local_scalar_dense)."""

LSTM_EXPLANATION = (
    "nn.LSTM runs on the GPU: the kernels above are its own. Little GPU memory is in use because the model "
    "is small (its weights are a few MB and one batch of activations not much more), not because it fell "
    "back to the CPU; judge a device by kernels, utilisation and windows/s, not by gigabytes."
)


class OpLog(TorchDispatchMode):
    """Counts every dispatched operator, forward and backward: `counts` by name, `on_cpu` those giving CPU tensors.

    Single numbers do not count as CPU tensors: a step counter or a learning rate belongs on the host.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.on_cpu: Counter[str] = Counter()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """torch's hook: run the operator and count it."""
        out = func(*args, **(kwargs or {}))
        self.counts[str(func)] += 1
        if any(t.device.type == "cpu" and t.numel() > 1 for t in _tensors(out)):
            self.on_cpu[str(func)] += 1
        return out

    @property
    def syncs(self) -> int:
        """How many of the operators would make the host wait for a GPU."""
        return sum(n for name, n in self.counts.items() if name.split(".")[1] in SYNCS)


def _tensors(out: Any) -> Iterator[torch.Tensor]:
    for item in out if isinstance(out, (tuple, list)) else (out,):
        if isinstance(item, torch.Tensor):
            yield item


def operators_on_cpu(step: Callable[[], object]) -> tuple[str, ...]:
    """Run `step` once; the operators that gave CPU tensors."""
    with OpLog() as log:
        step()
    return tuple(log.on_cpu)


def ran_on(device: torch.device, cpu_ops: Sequence[str]) -> bool:
    """Whether a step with these operators on the CPU ran on this device and nowhere else.

    On a GPU the operators decide: an operator without a CPU tensor ran there, whether or not its kernel was seen.
    """
    return device.type == "cpu" or not cpu_ops


def kernels(step: Callable[[], object], device: torch.device) -> dict[str, float]:
    """The GPU kernels of one `step` with their time in µs, longest first; copies are left out.

    Empty on a GPU without CUPTI, the library through which the profiler sees kernels.
    """
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        step()
        torch.cuda.synchronize(device)
    found: Counter[str] = Counter()
    for event in trace.events():
        if event.device_type == DeviceType.CUDA and not event.name.startswith("Mem"):
            found[event.name] += event.time_range.elapsed_us()
    return dict(found.most_common())


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


def lstm_placement(device: torch.device) -> dict[str, Any]:
    """Train one step of nn.LSTM and return where it ran: kernels with µs, operators on the CPU, memory in MB."""
    gpu = device.type == "cuda"
    if gpu:
        torch.cuda.reset_peak_memory_stats(device)
    step = lstm_step(device)
    cpu_ops = operators_on_cpu(step)
    seen = kernels(step, device) if gpu else {}
    ran = ran_on(device, cpu_ops)
    return {
        "ran_on_device": ran,
        "kernels": dict(list(seen.items())[:8]),
        "recurrent_kernels": [name for name in seen if re.search("rnn|lstm|gru", name.lower())],
        "cpu_ops": list(cpu_ops),
        "gpu_mem_peak_mb": torch.cuda.max_memory_allocated(device) / 2**20 if gpu else 0.0,
        "explanation": LSTM_EXPLANATION if gpu and ran else "",
    }
