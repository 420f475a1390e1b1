"""What is solved, not trained: the robust HAR, in place of all epochs in `train_fleet` or as a network's start."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from cpbmodels.bank import Bank, Task, thin
from cpbmodels.fleet import Fleet
from cpbmodels.heads import START_DF, START_SCALE
from cpbmodels.job import Job, Stopped
from cpbmodels.loop import Loop, Measured
from cpbmodels.net import Net
from cpbmodels.plan import windows_in_flight
from cpbmodels.ranges import Known, RangeModel, fit_ranges
from cpbmodels.student_t import t_quantiles

START_QUARTILES = float(2 * t_quantiles(np.array(START_DF), np.array([0.75]))[0])
REASON = "solved in closed form: there is nothing to repeat"


def unscaled(tasks: list[Task]) -> list[Task]:
    """The tasks without input scaling: the ridge's penalty is meant for the columns as they are."""
    return [replace(one, mean=np.zeros_like(one.mean), inverse=np.ones_like(one.inverse)) for one in tasks]


def solve(job: Job, loop: Loop) -> Measured:
    """Fit every member by itself and write it into the fleet; one epoch of history, losses in mean pinball.

    `train_loss` is taken on at most as many training windows as validate, evenly spread.
    """
    started = time.perf_counter()
    net, fleet = loop.fleet.net, loop.fleet
    for k, task in enumerate(loop.tasks):
        if job.stop.is_set():
            raise Stopped("this fleet was stopped with the others")
        first, end = net.span
        names = net.columns[first:end]
        fitted = fit_ranges(
            _known(job, loop.bank, task),
            names,
            job.options.calendar,
            job.options.horizon,
            job.options.input_clip,
        )
        fleet.flat[k : k + 1] = fleet.best[k : k + 1] = _row(net, fitted).to(fleet.flat)
    origins, weight = loop.validation_windows()
    batch = max(windows_in_flight(job.options.context, job.device) // len(loop.tasks), 1)
    val = fleet.evaluate(loop.bank, origins, weight, batch).double().tolist()
    train = _train_losses(loop, batch)
    for progress, ours, theirs in zip(loop.progress, train, val, strict=True):
        progress.judge(0, ours, theirs, 0.0, job.options)
        if progress.stopped != "nan":
            progress.stopped, progress.reason = "closed_form", REASON
    loop.epoch, loop.windows = 1, sum(len(task.train) for task in loop.tasks)
    loop.seconds = time.perf_counter() - started
    return Measured(loop.windows / loop.seconds, loop.seconds, loop.monitor.latest())


def start_from_line(job: Job, fleet: Fleet, bank: Bank, tasks: list[Task], start: int = 0) -> None:
    """Let the log-scale of new (not warm) members start as the robust HAR's, fitted on their training origins."""
    net = fleet.net
    fitted: dict[tuple[int, ...], RangeModel] = {}  # shared by the seeds of an ensemble
    names = net.columns[net.span[0] : net.span[1]]
    for k, task in enumerate(tasks):
        if job.warm is not None and job.warm[start + k] is not None:
            continue
        if task.members not in fitted:
            known = _known(job, bank, task)
            fitted[task.members] = fit_ranges(known, names, job.options.calendar, job.options.horizon)
        views = net.layout.views(fleet.flat[k : k + 1])
        for name, values in _line(fitted[task.members], task, net).items():
            views[name][0, : len(values)] = torch.as_tensor(values).to(fleet.flat)
    fleet.best.copy_(fleet.flat)


def _line(fitted: RangeModel, task: Task, net: Net) -> dict[str, np.ndarray]:
    """The robust HAR as weights of a network whose inputs are scaled and whose log-scale is a Student t's."""
    own = slice(*net.span)
    mean, inverse = task.mean[own], task.inverse[own]
    middle = np.diff(fitted.table[:, [4, 14]], axis=1)[:, 0]  # between the quartiles, of moves over the scale
    scale = np.log(np.maximum(middle / START_QUARTILES, 1e-3) / START_SCALE)
    line = {
        "line.weight": fitted.slopes / inverse[:, None],
        "line.bias": (fitted.level + mean @ fitted.slopes + scale)[None],
    }
    if net.options.calendar and not net.options.calendar_dim:
        line["calendar"] = fitted.hours
    return line


def _known(job: Job, bank: Bank, task: Task) -> Known:
    """The task's training origins by series, as rows of each series."""
    out = []
    for index in task.members:
        one, start = job.series[index], bank.starts[index]
        rows = task.train[(task.train >= start) & (task.train < start + len(one))]
        out.append((one, rows - start))
    return out


def _row(net: Net, fitted: RangeModel) -> Tensor:
    """The fitted numbers as a row [1, P], float64."""
    row = torch.zeros(1, net.layout.size, dtype=torch.float64)
    views = net.layout.views(row)
    parts = {
        "out.weight": fitted.slopes,
        "out.bias": fitted.level[None],
        "candle": fitted.candle.T,
        "head.table": fitted.table,
    }
    if fitted.calendar:
        parts["calendar"] = fitted.hours
    for name, values in parts.items():
        views[name][0] = torch.as_tensor(np.ascontiguousarray(values))
    return row


def _train_losses(loop: Loop, batch: int) -> list[float]:
    chosen = [thin(task.train, loop.options.max_validation_windows) for task in loop.tasks]
    width = max(len(rows) for rows in chosen)
    device = loop.fleet.flat.device
    rows = np.stack([np.pad(own, (0, width - len(own)), mode="edge") for own in chosen])
    weight = np.arange(width) < np.array([len(own) for own in chosen])[:, None]
    losses = loop.fleet.evaluate(
        loop.bank, torch.as_tensor(rows).to(device), torch.as_tensor(weight).to(loop.fleet.flat), batch
    )
    return [float(one) for one in losses.double().tolist()]
