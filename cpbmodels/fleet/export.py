"""A trained fleet as members: weights of their best epochs, tables, configuration and report."""

import platform
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cpbmodels.arch.heads import Classes
from cpbmodels.arch.options import Preset
from cpbmodels.arch.task import Task
from cpbmodels.data.student_t import QUANTILES
from cpbmodels.fleet.config import FORMAT
from cpbmodels.fleet.job import FleetJob
from cpbmodels.fleet.kernel_switch import described
from cpbmodels.fleet.loop import Loop
from cpbmodels.fleet.member import Member
from cpbmodels.fleet.net import Net, windows_in_flight


@torch.no_grad()
def export(loop: Loop) -> list[Member]:
    """Members from the best rows, in the order of the tasks."""
    job, fleet, monitor = loop.job, loop.fleet, loop.monitor
    # Back into the callers' order: the loop has moved members that stopped to the back.
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
        "trained_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "fleet_members": len(loop.tasks),
        "halved_to": job.halved_to,
        "device": str(job.device),
        "compute_dtype": str(job.compute).removeprefix("torch."),
        "kernels": described(job.kernels_off),
        "accumulate": job.options.accumulate,
        "split_to": job.split_to,
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
                # Clones: a view would keep the matrix of the whole fleet in memory for as long as one member lives.
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
    series, known_until = [job.series[index] for index in task.series_indices], None
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
        # Part by part to the host, where all windows fit; on a GPU they might not.
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
