"""What is solved, not trained: in place of all epochs, or as the weights from which training starts.

What is solved is the architecture's own business (`Architecture.solve`, `Architecture.initial_weights`); here the
results become rows of a fleet.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from cpbmodels.arch.base import MemberData
from cpbmodels.fleet.bank import Bank, Task, evenly_spread
from cpbmodels.fleet.fleet import Fleet
from cpbmodels.fleet.loop import Job, Loop, Stopped
from cpbmodels.fleet.net import Net
from cpbmodels.fleet.plan import windows_in_flight

REASON = "solved in closed form: there is nothing to repeat"


def unscaled(tasks: list[Task]) -> list[Task]:
    """The tasks without input scaling: a closed form's penalty is meant for the columns as they are."""
    return [replace(one, mean=np.zeros_like(one.mean), inverse=np.ones_like(one.inverse)) for one in tasks]


def solve(job: Job, loop: Loop) -> None:
    """Solve every member separately and write it into the fleet; one epoch of history with the head's losses.

    `train_loss` is taken on at most as many training windows as there are for validation, evenly spread.
    """
    started = time.perf_counter()
    net, fleet = loop.fleet.net, loop.fleet
    solved: dict[tuple[int, ...], Tensor] = {}
    for k, task in enumerate(loop.tasks):
        if job.stop.is_set():
            raise Stopped("this fleet was stopped with the others")
        if task.members not in solved:  # the seeds of a universal model are equal
            solved[task.members] = _row(net, net.architecture.solve(_member_data(job, loop.bank, net, task)))
        # [1, P]. A solution is its own best snapshot: there is no epoch that could be better.
        fleet.flat[k : k + 1] = fleet.best[k : k + 1] = solved[task.members].to(fleet.flat)
    origins, weight = loop.validation_windows()  # [K, V]
    batch = max(windows_in_flight(job.options.context, job.device) // len(loop.tasks), 1)
    val = fleet.evaluate(loop.bank, origins, weight, batch).double().tolist()
    train = _train_losses(loop, batch)
    for progress, train_loss, val_loss in zip(loop.progress, train, val, strict=True):
        progress.record(0, train_loss, val_loss, 0.0, job.options)
        if progress.stopped != "nan":
            progress.stopped, progress.reason = "closed_form", REASON
    loop.epoch, loop.windows = 1, sum(len(task.train) for task in loop.tasks)
    loop.seconds = time.perf_counter() - started


def set_initial_weights(job: Job, fleet: Fleet, bank: Bank, tasks: list[Task]) -> None:
    """Write what the architecture fits before training into new members; warm-started members keep their weights.

    Members of the same series (the seeds of an ensemble) share one fit.
    """
    net = fleet.net
    fitted: dict[tuple[int, ...], Mapping[str, np.ndarray]] = {}
    for k, task in enumerate(tasks):
        if job.warm is not None and job.warm[task.index] is not None:
            continue
        if task.members not in fitted:
            fitted[task.members] = net.architecture.initial_weights(_member_data(job, bank, net, task))
        views = net.layout.views(fleet.flat[k : k + 1])  # [1, ...] by name: writing to a view writes the row
        for name, values in fitted[task.members].items():
            # What is fitted may be fewer rows than the weight has; the others keep their random start.
            views[name][0, : len(values)] = torch.as_tensor(values).to(fleet.flat)
    fleet.best.copy_(fleet.flat)


def _member_data(job: Job, bank: Bank, net: Net, task: Task) -> MemberData:
    inputs = slice(*net.span)
    return MemberData(
        columns=net.input_columns,
        mean=task.mean[inputs],
        inverse=task.inverse[inputs],
        task=task,
        series=job.series,
        starts=bank.starts,
    )


def _row(net: Net, weights: Mapping[str, np.ndarray]) -> Tensor:
    """Weights by name as a row [1, P], float64."""
    row = torch.zeros(1, net.layout.size, dtype=torch.float64)
    views = net.layout.views(row)
    for name, values in weights.items():
        views[name][0] = torch.as_tensor(np.ascontiguousarray(values))
    return row


def _train_losses(loop: Loop, batch: int) -> list[float]:
    """Mean loss of each member on a sample of its training windows."""
    chosen = [evenly_spread(task.train, loop.options.max_validation_windows) for task in loop.tasks]
    # [K, width]: a shorter sample is padded with its last window, at weight 0.
    rows, weight = loop.padded(chosen, [own[-1] for own in chosen])
    losses = loop.fleet.evaluate(loop.bank, rows, weight, batch)
    return [float(one) for one in losses.double().tolist()]
