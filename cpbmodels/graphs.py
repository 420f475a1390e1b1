"""A whole training step as one CUDA graph: gather, forward, backward, clip, optimizer, schedule and random draws.

A graph replays kernels on the memory addresses it was captured with. So the epoch's windows and learning rates lie in
buffers that never move, and a counter on the device says which step it is. An epoch is then `replay()` n times: no
launch from Python, no copy, no sync. One graph per number of active members; all graphs share a memory pool.
"""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

from cpbmodels.bank import Bank
from cpbmodels.fleet import Fleet

WARM_UP = 3  # eager steps before the first capture: cuBLAS handles, autograd's buffers, cached constants
# Before each further capture there is one: another number of members may need kernels that are not loaded yet, and
# loading is not allowed while capturing.


class StepRunner:
    """Runs the steps of an epoch from device buffers; with `graph`, captured once and replayed."""

    def __init__(self, fleet: Fleet, bank: Bank, graph: bool) -> None:
        self.fleet, self.bank, self.graph = fleet, bank, graph
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.warm: Counter[int] = Counter()  # eager steps by number of members
        self.columns = torch.arange(fleet.net.options.batch_size, device=fleet.flat.device)
        self.counter = torch.zeros(1, dtype=torch.long, device=fleet.flat.device)
        self.origins = self.weight = self.rates = torch.empty(0)
        self.stream = torch.cuda.Stream(fleet.flat.device) if graph else None

    def load(self, origins: Tensor, weight: Tensor, rates: Tensor) -> None:
        """Put an epoch's windows [K, steps x B], their weights and the rates into the fixed buffers.

        Rates are [steps], or [steps, K] where members have rates of their own.
        """
        if origins.shape[0] > self.origins.shape[0] or origins.shape[1] > self.origins.shape[-1]:
            self.graphs.clear()  # they were captured with the old buffers' addresses
            self.origins, self.weight, self.rates = origins.clone(), weight.clone(), rates.clone()
        rows, width = origins.shape
        self.origins[:rows, :width].copy_(origins)
        self.weight[:rows, :width].copy_(weight)
        used = self.rates[: len(rates)]
        (used[:, : rates.shape[1]] if rates.dim() == 2 else used).copy_(rates)
        self.counter.zero_()

    def step(self, active: int) -> None:
        """The next step, of the first `active` members."""
        if not self.graph:
            self._body(active)
        elif active in self.graphs:
            self.graphs[active].replay()
        elif self.warm.total() < WARM_UP or not self.warm[active]:
            self._eager_step(active)
        else:
            self._capture(active)
            self.graphs[active].replay()

    def _body(self, active: int) -> None:
        columns = self.columns + self.counter * len(self.columns)
        origins = self.origins[:active].index_select(1, columns)
        weight = self.weight[:active].index_select(1, columns)
        rate = self.rates.index_select(0, self.counter).squeeze(0)
        rate = rate[:active] if rate.dim() else rate
        self.fleet.step(self.bank, origins, weight, rate)
        self.counter.add_(1)

    def _eager_step(self, active: int) -> None:
        """A step without a graph on a side stream, which torch requires of the steps before a capture."""
        assert self.stream is not None
        usual = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(usual)
        with torch.cuda.stream(self.stream):
            self._body(active)
        usual.wait_stream(self.stream)
        self.warm[active] += 1

    def _capture(self, active: int) -> None:
        """Record the step; recording does not run it."""
        self.fleet.prefix(active)  # its views must not be made while capturing, in the graph's memory pool
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self.graphs.values())).pool() if self.graphs else None
        with torch.cuda.graph(graph, pool=pool, stream=self.stream, capture_error_mode="thread_local"):
            self._body(active)
        self.graphs[active] = graph
