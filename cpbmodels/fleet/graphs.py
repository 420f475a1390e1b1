"""Runs the steps of an epoch, and validation; on a GPU as CUDA graphs, from the gather to the optimizer at once.

A graph replays kernels on the memory addresses it was captured with. So the epoch's windows and learning rates lie in
buffers that never move, and a counter on the device says which step it is. An epoch is then `replay()` n times: no
launch from Python, no copy, no sync.

A graph holds for one number of rows. Members with fewer windows finish an epoch before others, and with one graph for
each number still at work 40 unequal histories made 40 graphs. So rows are counted in multiples of `BUCKET`, and rows of
the last multiple that have no window left are masked: they take no step (`Fleet.step`).
"""

from collections import Counter
from collections.abc import Callable, Hashable
from functools import cache

import torch
from torch import Tensor

from cpbmodels.fleet.bank import Bank
from cpbmodels.fleet.fleet import Fleet

BUCKET = 8  # rows of a graph are rounded up to a multiple of this
EAGER_RUNS = 3  # eager runs before the first capture: cuBLAS handles, autograd's buffers, cached constants
# Before each further capture there is one eager run: a different number of rows may need kernels that are not loaded
# yet, and loading is not allowed while capturing.


class Graphs:
    """Work by key, captured at its second run and replayed from then on; all graphs share a memory pool."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.captured: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self.warm: Counter[Hashable] = Counter()  # eager runs

    def run(self, key: Hashable, work: Callable[[], None]) -> None:
        """Run `work`, which does the same at every run of this key, on tensors that do not move."""
        if key not in self.captured:
            if self.warm.total() < EAGER_RUNS or not self.warm[key]:
                self.eager(work)
                self.warm[key] += 1
                return
            self.captured[key] = self.capture(work)
        self.captured[key].replay()

    def forget(self) -> None:
        """Drop all graphs: buffers that they were captured with have moved."""
        self.captured.clear()

    def eager(self, work: Callable[[], None]) -> None:
        """Run without a graph, on the side stream, which torch requires of what runs before a capture."""
        side, usual = side_stream(self.device), torch.cuda.current_stream(self.device)
        side.wait_stream(usual)
        with torch.cuda.stream(side):
            work()
        usual.wait_stream(side)

    def capture(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Record `work`; recording does not run it."""
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self.captured.values())).pool() if self.captured else None
        stream = side_stream(self.device)
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            work()
        return graph


@cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """The one stream of this process for captures: cuBLAS keeps a workspace (8 to 32 MB) per stream for good."""
    return torch.cuda.Stream(device)


class StepRunner:
    """Runs the steps of an epoch from device buffers; with `graphs`, captured and replayed."""

    def __init__(self, fleet: Fleet, bank: Bank, graphs: Graphs | None) -> None:
        self.fleet, self.bank, self.graphs = fleet, bank, graphs
        self.bucket = BUCKET if graphs else 1
        self.columns = torch.arange(fleet.net.options.batch_size, device=fleet.flat.device)
        # The number of the step, on the device: a captured kernel cannot be given a new argument from Python.
        self.counter = torch.zeros(1, dtype=torch.long, device=fleet.flat.device)
        self.origins = self.weight = self.rates = torch.empty(0)
        self.rows, self.unequal = 0, False

    def load(self, origins: Tensor, weight: Tensor, rates: Tensor, *, unequal: bool = False) -> None:
        """Put an epoch's windows [K, steps x B], their weights and the rates into the fixed buffers.

        Rates are [steps], or [steps, K] if members have rates of their own.
        unequal: some rows have fewer steps than others.
        """
        if origins.shape[0] > self.origins.shape[0] or origins.shape[1] > self.origins.shape[-1]:
            if self.graphs:
                self.graphs.forget()
            self.origins, self.weight, self.rates = origins.clone(), weight.clone(), rates.clone()
        self.rows, width = origins.shape
        self.unequal = unequal
        self.origins[: self.rows, :width].copy_(origins)
        self.weight[: self.rows, :width].copy_(weight)
        used = self.rates[: len(rates)]
        (used[:, : rates.shape[1]] if rates.dim() == 2 else used).copy_(rates)
        self.counter.zero_()
        if self.fleet.kernels:  # rows may have moved since the last step
            self.fleet.compute_weights.refresh(self.rows)

    def step(self, active: int) -> None:
        """The next step, of the first `active` rows; with graphs, of a whole bucket whose other rows are masked."""
        if self.graphs is None:
            self._body(active, 0)
            return
        rows = min(-(-active // self.bucket) * self.bucket, self.rows)
        maskable = min(self.bucket, rows) - 1 if self.unequal else 0
        self.fleet.prefix(rows)  # its views must not be made while capturing, in the graph's memory pool
        self.graphs.run(("step", rows, maskable), lambda: self._body(rows, maskable))

    def _body(self, rows: int, maskable: int) -> None:
        columns = self.columns + self.counter * len(self.columns)  # [B]: this step's columns of the epoch
        origins = self.origins[:rows].index_select(1, columns)  # [rows, B]
        weight = self.weight[:rows].index_select(1, columns)
        rate = self.rates.index_select(0, self.counter).squeeze(0)  # [] or [rows]
        rate = rate[:rows] if rate.dim() else rate
        masked = {"maskable": maskable} if maskable else {}
        self.fleet.step(self.bank, origins, weight, rate, **masked)
        self.counter.add_(1)


class ValidationRunner:
    """Mean losses on the members' validation windows, part after part; with `graphs`, captured and replayed."""

    def __init__(self, fleet: Fleet, bank: Bank, graphs: Graphs | None, in_flight: int) -> None:
        self.fleet, self.bank, self.graphs, self.in_flight = fleet, bank, graphs, in_flight
        self.counter = torch.zeros(1, dtype=torch.long, device=fleet.flat.device)
        self.origins = self.weight = torch.empty(0)
        self.total = torch.zeros_like(fleet.loss_sum)
        self.width = 0

    def load(self, origins: Tensor, weight: Tensor) -> None:
        """Take the windows [K, V] of all rows and their weights; with graphs, into buffers that never move.

        There V is padded with windows of weight 0, so that the parts of every number of rows have one width.
        """
        self.width = origins.shape[1]
        if self.graphs is None:
            self.origins, self.weight = origins, weight
            return
        spare = self._parts(len(origins))
        origins = torch.cat([origins, origins[:, -1:].expand(-1, spare)], 1)
        weight = torch.nn.functional.pad(weight, (0, spare))
        if self.origins.shape != origins.shape:
            self.graphs.forget()
            self.origins, self.weight = origins, weight
        self.origins.copy_(origins)
        self.weight.copy_(weight)

    def run(self, rows: int) -> Tensor:
        """Mean loss [rows] of the first rows."""
        if self.graphs is None:
            batch = max(self.in_flight // rows, 1)
            return self.fleet.evaluate(self.bank, self.origins[:rows], self.weight[:rows], batch)
        parts = self._parts(rows)
        columns = _arange(-(-self.width // parts), self.counter.device)
        self.counter.zero_()
        self.total.zero_()
        self.fleet.compute_weights.refresh(rows)
        for _ in range(parts):
            self.graphs.run(("validation", rows), lambda: self._body(rows, columns))
        return self.total[:rows] / self.weight[:rows].sum(1).clamp(min=1)

    def _parts(self, rows: int) -> int:
        return -(-self.width // max(self.in_flight // rows, 1))

    def _body(self, rows: int, columns: Tensor) -> None:
        columns = columns + self.counter * len(columns)
        origins = self.origins[:rows].index_select(1, columns)
        weight = self.weight[:rows].index_select(1, columns)
        self.total[:rows] += self.fleet.weighted_losses(self.bank, origins, weight)
        self.counter.add_(1)


@cache
def _arange(count: int, device: torch.device) -> Tensor:
    """0 .. count - 1; kept, because a graph reads it at every replay."""
    return torch.arange(count, device=device)
