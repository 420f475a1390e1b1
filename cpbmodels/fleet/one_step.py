"""One training step and one validation of any architecture, on random walks: to be called, checked and timed."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from cpbmodels.arch.options import Preset
from cpbmodels.data.series import Series
from cpbmodels.errors import ModelError
from cpbmodels.fleet.bank import Bank, MemberPlan, make_task
from cpbmodels.fleet.fleet import Fleet, rate_tensor
from cpbmodels.fleet.graphs import Graphs, StepRunner, ValidationRunner
from cpbmodels.fleet.job import FleetJob
from cpbmodels.fleet.net import Net, compute_dtype, windows_in_flight
from cpbmodels.fleet.rates import step_rates


@dataclass(frozen=True)
class FleetStep:
    """A fleet with one batch for each member; calling it takes one optimizer step as a training would."""

    fleet: Fleet
    bank: Bank
    origins: torch.Tensor
    weight: torch.Tensor
    runner: StepRunner

    def __call__(self) -> None:
        """One step (on a GPU a replay of its graph); adds each member's loss to `fleet.loss_sum`."""
        self.runner.counter.zero_()
        self.runner.step(len(self.origins))

    def eager(self) -> None:
        """The same step operator by operator, without a graph, so that each can be observed."""
        self.fleet.step(self.bank, self.origins, self.weight, self.runner.rates[0])

    def validation(self) -> tuple[Callable[[], object], int]:
        """A call that validates as a training would, and how many windows of each member it reads: one part."""
        members, device = len(self.origins), self.fleet.flat.device
        in_flight = windows_in_flight(self.fleet.net.options.context, device)
        width = max(in_flight // members, 1)
        validator = ValidationRunner(self.fleet, self.bank, self.runner.graphs, in_flight)
        # The same windows again and again: only their number counts.
        origins = self.origins.repeat(1, -(-width // self.origins.shape[1]))[:, :width]
        validator.load(origins, torch.ones_like(origins, dtype=self.weight.dtype))
        return (lambda: validator.run(members)), width


def fleet_step(
    architecture: str,
    options: Preset,
    members: int,
    device: torch.device,
    compute: torch.dtype | None = None,
    rows: int = 900,
    *,
    kernels: bool = True,
    dtype: torch.dtype = torch.float32,
    net: Net | None = None,
) -> "FleetStep":
    """One optimizer step of a new fleet, on the same windows every time, to be called and timed.

    Each member has its own random walk of `rows` candles. `compute` is the dtype of the products, by default what a
    training would choose, `dtype` that of the weights. `kernels`: use `cpbmodels.kernels` if possible, unchecked; not
    asked if a `net` is given. ModelError if so many candles do not give one batch.
    """
    series = [walk(rows, seed, options) for seed in range(members)]
    options = replace(options, steps_per_epoch=1)
    bank = Bank.build(series, options, device, dtype)
    plans = (MemberPlan((k,), k, candles.symbol) for k, candles in enumerate(series))
    tasks = [make_task(bank, series, plan, options) for plan in plans]
    kind = compute or compute_dtype(options, architecture, device, dtype)
    fleet = FleetJob(series, architecture, options, device, dtype, kind, bank, tasks, kernels=kernels).fleet(
        net
    )
    if min(len(task.train) for task in tasks) < options.batch_size:
        raise ModelError(
            f"{rows} rows give less than one batch of {options.batch_size} windows: use more rows."
        )
    # Not shuffled: what is timed or compared must be the same work every time.
    origins = torch.as_tensor(np.stack([task.train[: options.batch_size] for task in tasks])).to(device)
    weight = torch.ones(origins.shape, device=device, dtype=dtype)
    runner = StepRunner(fleet, bank, Graphs(device) if device.type == "cuda" and options.cuda_graph else None)
    runner.load(origins, weight, rate_tensor(step_rates(options, 0, 1), device))
    return FleetStep(fleet, bank, origins, weight, runner)


def walk(rows: int, seed: int, options: Preset) -> Series:
    """Random-walk candles for timing. Columns that do not follow from candles are noise, calendar codes count rows."""
    draw = np.random.default_rng(seed)
    close = 100 * np.exp(np.cumsum(draw.normal(0, 0.01, rows)))
    opened = np.concatenate([[100.0], close[:-1]])
    wick = 1 + np.abs(draw.normal(0, 0.003, (2, rows)))
    high, low = np.maximum(opened, close) * wick[0], np.minimum(opened, close) / wick[1]
    prices = np.stack([opened, high, low, close], axis=1)
    plain = Series.from_ohlc(prices, symbol=f"WALK{seed}", timeframe="1h")
    wanted = (*options.features, *((options.calendar,) if options.calendar else ()))
    added = tuple(dict.fromkeys(name for name in wanted if name not in plain.names))
    extra = [np.arange(rows) % 168.0 if n == options.calendar else draw.normal(0, 1, rows) for n in added]
    if not added:
        return plain
    features = np.column_stack([plain.features, *extra])
    return replace(plain, features=features, names=(*plain.names, *added))
