"""What a fleet gives: records of its steps and epochs while it trains, and its members when it has finished."""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cpbmodels.arch.heads import Classes
from cpbmodels.arch.options import Preset
from cpbmodels.data.student_t import QUANTILES
from cpbmodels.fleet.bank import Task
from cpbmodels.fleet.config import FORMAT
from cpbmodels.fleet.loop import FleetJob, Loop
from cpbmodels.fleet.member import Member
from cpbmodels.fleet.net import Net, windows_in_flight
from cpbmodels.kernels.support import described


@dataclass(frozen=True)
class EpochRecord:
    """What `on_epoch` is called with, once per fleet and epoch.

    epoch: from 1. epochs: at most as many. lr: learning rate at the end of the epoch, of the first member.
    members: one dict per member that trained in this epoch: index in the returned list, symbol, timeframe, seed,
        train_loss, val_loss, lr, best_val_loss, stopped ("" while it goes on).
    windows_per_s, seconds: of the whole fleet, validation included.
    memory: MB and percent, as `Monitor.latest` gives them.
    """

    epoch: int
    epochs: int
    lr: float
    members: list[dict[str, Any]]
    windows_per_s: float
    seconds: float
    memory: dict[str, float]


OnEpoch = Callable[[EpochRecord], Iterable[int] | None]
"""Called after every epoch of a fleet; may return indices of members that shall stop now (of other fleets: ignored)."""


@dataclass(frozen=True)
class StepRecord:
    """What `on_step` is called with: once before a fleet's first step, then about every 0.3 s within an epoch.

    epoch: from 1, of at most `epochs`. step: done of the epoch's `steps` (on a GPU: launched). members: indices in the
    returned list of those that train. of_members: how many the whole call trains.
    device: as in `cpu` or `cuda:0`. data: rows and columns of the candles there, data_mb: their size.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    members: list[int]
    of_members: int
    device: str
    data: tuple[int, int]
    data_dtype: str
    data_mb: float


OnStep = Callable[[StepRecord], bool | None]
"""May return True: the fleet's members then stop within this epoch, each with the snapshot of its best epoch so far."""


def step_reporter(on_step: OnStep, of_members: int, lock: threading.Lock) -> Callable[[Loop, int, int], bool]:
    """Calls `on_step` with how far a loop has come within its epoch; whether its members shall stop now.

    lock: fleets side by side report one at a time.
    """

    def report(loop: Loop, step: int, steps: int) -> bool:
        rows = loop.bank.rows
        record = StepRecord(
            epoch=loop.epoch + 1,
            epochs=max(options.epochs for options in loop.own_options),
            step=step,
            steps=steps,
            members=[loop.tasks[task].index for task in loop.order[: loop.active]],
            of_members=of_members,
            device=str(rows.device),
            data=(rows.shape[0], rows.shape[1]),
            data_dtype=str(rows.dtype).removeprefix("torch."),
            data_mb=rows.numel() * rows.element_size() / 1e6,
        )
        with lock:
            return bool(on_step(record))

    return report


def epoch_reporter(on_epoch: OnEpoch, lock: threading.Lock) -> Callable[[Loop, int, float], None]:
    """Calls `on_epoch` with the members that trained in a loop's last epoch, and stops those it returns."""

    def report(loop: Loop, windows: int, seconds: float) -> None:
        members = [
            {
                "index": task.index,
                "symbol": task.symbol,
                "timeframe": task.timeframe,
                "seed": task.seed,
                "best_val_loss": progress.best,
                "stopped": progress.stopped,
                **progress.history[-1],
            }
            for task, progress in zip(loop.tasks, loop.progress, strict=True)
            if progress.history and progress.history[-1]["epoch"] == loop.epoch
        ]
        record = EpochRecord(
            epoch=loop.epoch,
            epochs=max(options.epochs for options in loop.own_options),
            lr=members[0]["lr"],
            members=members,
            windows_per_s=windows / seconds,
            seconds=seconds,
            memory=loop.monitor.latest(),
        )
        with lock:
            unwanted = set(on_epoch(record) or ())
        for task, progress in zip(loop.tasks, loop.progress, strict=True):
            if task.index in unwanted and not progress.stopped:
                progress.stopped = "on_request"
                progress.reason = f"stopped on request after epoch {loop.epoch}"

    return report


@torch.no_grad()
def export(loop: Loop) -> list[Member]:
    """Members from the best rows, in the order of the tasks."""
    job, fleet, monitor = loop.job, loop.fleet, loop.monitor
    fleet.reorder(torch.tensor([loop.order.index(k) for k in range(len(loop.tasks))]).to(job.device))
    loop.order, loop.validation = list(range(len(loop.tasks))), None
    net = fleet.net_of(len(loop.tasks))
    raw, truth, weight = _validate(net, loop)
    residuals = None
    if net.head.needs_residuals:
        # Close minus its median forecast [K, V, H] in volatilities x sqrt(step); NaN where there is no window.
        error = truth[..., 3] - net.head.median(raw)[..., 3]
        residuals = torch.where(weight.unsqueeze(-1) > 0, error, torch.nan).double().numpy()
    table = net.head.table(net.layout.views(fleet.best), residuals)
    classes = _classification(net, raw, truth, weight)
    # Speed, seconds and device figures are those of the whole fleet.
    of_fleet = {
        "windows_per_s": loop.windows / loop.seconds if loop.seconds else 0.0,
        "train_seconds": loop.seconds,
        "fleet_members": len(loop.tasks),
        "halved_to": job.halved_to,
        "device": str(job.device),
        "compute_dtype": str(job.compute).removeprefix("torch."),
        "kernels": described(job.kernels_off),
        "accumulate": job.options.accumulate,
        **monitor.summary(),
        "device_warning": monitor.warning or monitor.note,
    }
    members = []
    for k, (task, progress) in enumerate(zip(loop.tasks, loop.progress, strict=True)):
        report = {
            "epochs_run": len(progress.history),
            "best_epoch": progress.best_epoch,
            "best_val_loss": progress.best,
            "stopped": progress.stopped,
            "reason": progress.reason,
            "diverged": progress.diverged,
            "train_windows": len(task.train),
            "validation_windows": len(task.validation),
        }
        rows = slice(k, k + 1)
        members.append(
            Member(
                config=_config(job, task, loop.own_options[k]),
                rows=fleet.best[rows].cpu().clone(),
                mean=fleet.scaling.mean[rows].cpu().clone(),
                inverse=fleet.scaling.inverse[rows].cpu().clone(),
                table=torch.as_tensor(table[rows]).to(job.dtype),
                history=progress.history,
                report=report | of_fleet | classes[k],
            )
        )
    return members


def _config(job: FleetJob, task: Task, options: Preset) -> dict[str, Any]:
    """Everything needed to rebuild the model, and where it came from.

    `known_until`: ISO time (UTC) of the close of the last candle in any span of its series, None without times.
    """
    series, known_until = [job.series[index] for index in task.members], None
    if all(candles.times is not None for candles in series):
        ends = [s.end_of(stop - 1) for s in series for first, stop in s.spans.values() if stop > first]
        known_until = max(ends).isoformat() if ends else None
    return {
        "format": FORMAT,
        "architecture": job.architecture,
        "symbol": task.symbol,
        "timeframe": task.timeframe,
        "symbols": [candles.symbol for candles in series],
        "seed": task.seed,
        "known_until": known_until,
        "dtype": str(job.dtype).removeprefix("torch."),
        "quantiles": QUANTILES.tolist(),
        **options.as_dict(),
        "versions": {
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def _validate(net: Net, loop: Loop) -> tuple[Tensor, Tensor, Tensor]:
    """Raw outputs [K, V, H, size], truth [K, V, H, 4] and weights [K, V] of the best rows on the validation windows."""
    origins, weight = loop.validation_windows()
    raws, truths = [], []
    weights = net.layout.views(loop.fleet.best)
    batch = max(windows_in_flight(net.options.context, origins.device) // len(origins), 1)
    for part in torch.split(origins, batch, 1):
        window = net.gather(loop.bank, part, loop.fleet.scaling, future=True)
        raws.append(net.raw(window, weights, None).cpu())
        assert window.truth is not None
        truths.append(window.truth.cpu())
    return torch.cat(raws, 1), torch.cat(truths, 1), weight.cpu()


def _classification(net: Net, raw: Tensor, truth: Tensor, weight: Tensor) -> list[dict[str, Any]]:
    """Validation accuracy and confusion matrix (rows: truth up, flat, down) of classifiers."""
    if not isinstance(net.head, Classes):
        return [{}] * len(raw)
    out = []
    for chosen, real, valid in zip(raw[:, :, 0].argmax(-1), net.head.truth(truth), weight > 0, strict=True):
        counts = torch.bincount(real[valid] * 3 + chosen[valid], minlength=9).view(3, 3)
        total = int(counts.sum())
        accuracy = float(counts.diagonal().sum()) / total if total else float("nan")
        out.append({"accuracy": accuracy, "confusion": counts.tolist()})
    return out
