"""Where a training step ran: the kernels that a GPU was given, and operators that left it for the CPU."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from cpbmodels.arch.torch_private import DeviceType, DispatchMode


def gpu_kernels(step: Callable[[], object], device: torch.device) -> dict[str, float]:
    """The GPU kernels of one `step` with their time in µs, longest first; copies are left out.

    Empty on a GPU without CUPTI, the library through which the profiler sees kernels.
    """
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        step()
        torch.cuda.synchronize(device)
    times: Counter[str] = Counter()
    for event in trace.events():
        # Memcpy and Memset are no work of the GPU's cores.
        if event.device_type == DeviceType.CUDA and not event.name.startswith("Mem"):
            times[event.name] += event.time_range.elapsed_us()
    return dict(times.most_common())


class OperatorLog(DispatchMode):
    """Which operators, forward and backward, gave a CPU tensor while it was entered: `on_cpu`, in order.

    A single number does not count: a step counter or a learning rate belongs on the host.
    """

    def __init__(self) -> None:
        super().__init__()
        self.on_cpu: dict[str, None] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """torch's hook: run the operator and look at what it gave."""
        result = func(*args, **(kwargs or {}))
        for item in result if isinstance(result, (tuple, list)) else (result,):
            # By what it gave, not by its arguments: an operator that has left the GPU gives a CPU tensor.
            if isinstance(item, torch.Tensor) and item.device.type == "cpu" and item.numel() > 1:
                self.on_cpu[str(func)] = None
        return result


def operators_on_cpu(step: Callable[[], object]) -> list[str]:
    """Run `step` once, operator by operator; the operators that gave CPU tensors, such as `aten.mm.default`."""
    with OperatorLog() as log:
        step()
    return list(log.on_cpu)
