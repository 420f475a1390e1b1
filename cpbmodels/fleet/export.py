"""From a fleet that has finished to members: best rows, quantile tables, reports."""

from __future__ import annotations

import platform
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from cpbmodels.arch.heads import Classes
from cpbmodels.arch.options import Preset
from cpbmodels.data.student_t import QUANTILES
from cpbmodels.fleet.bank import Bank, Task
from cpbmodels.fleet.config import FORMAT
from cpbmodels.fleet.loop import Job, Loop, Progress
from cpbmodels.fleet.member import Member, Report
from cpbmodels.fleet.net import Net
from cpbmodels.fleet.plan import windows_in_flight
from cpbmodels.kernels.support import described


@torch.no_grad()
def export(job: Job, bank: Bank, loop: Loop) -> list[Member]:
    """Members from the best rows, in the order of the tasks."""
    loop.fleet.reorder(torch.tensor([loop.order.index(k) for k in range(len(loop.tasks))]).to(job.device))
    loop.order, loop.validation = list(range(len(loop.tasks))), None
    fleet = loop.fleet
    net = fleet.net_of(len(loop.tasks))
    raw, truth, weight = _validate(net, bank, loop)
    weights = net.layout.views(fleet.best)
    table = net.head.table(weights, _residuals(net, raw, truth, weight) if net.head.needs_residuals else None)
    extra = _classification(net, raw, truth, weight)
    device = {**loop.monitor.summary(), "device_warning": loop.monitor.warning or loop.monitor.note}
    members = []
    for k, (task, progress) in enumerate(zip(loop.tasks, loop.progress, strict=True)):
        members.append(
            Member(
                config=_config(job, task, loop.own_options[k]),
                rows=fleet.best[k : k + 1].cpu().clone(),
                mean=fleet.scaling.mean[k : k + 1].cpu().clone(),
                inverse=fleet.scaling.inverse[k : k + 1].cpu().clone(),
                table=torch.as_tensor(table[k : k + 1]).to(job.dtype),
                history=progress.history,
                report=cast(Report, {**_outcome(progress), **_run(job, loop, task), **device, **extra[k]}),
            )
        )
    return members


def _outcome(progress: Progress) -> dict[str, Any]:
    """How far the member came, and why it stopped."""
    return {
        "epochs_run": len(progress.history),
        "best_epoch": progress.best_epoch,
        "best_val_loss": progress.best,
        "stopped": progress.stopped,
        "reason": progress.reason,
        "diverged": progress.diverged,
    }


def _run(job: Job, loop: Loop, task: Task) -> dict[str, Any]:
    """How it was trained. Speed and seconds are those of its fleet."""
    return {
        "windows_per_s": loop.windows / loop.seconds if loop.seconds else 0.0,
        "train_seconds": loop.seconds,
        "fleet_members": len(loop.tasks),
        "halved_to": job.halved_to,
        "device": str(job.device),
        "compute_dtype": str(job.compute).removeprefix("torch."),
        "kernels": described(job.kernels_off),
        "accumulate": job.options.accumulate,
        "train_windows": len(task.train),
        "validation_windows": len(task.validation),
    }


def _config(job: Job, task: Task, options: Preset) -> dict[str, Any]:
    """Everything needed to rebuild the model, and where it came from."""
    return {
        "format": FORMAT,
        "architecture": job.architecture,
        "symbol": task.symbol,
        "timeframe": task.timeframe,
        "symbols": [job.series[index].symbol for index in task.members],
        "seed": task.seed,
        "known_until": _known_until(job, task),
        "dtype": str(job.dtype).removeprefix("torch."),
        "quantiles": QUANTILES.tolist(),
        **options.as_dict(),
        "versions": {
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def _known_until(job: Job, task: Task) -> str | None:
    """ISO time (UTC) of the close of the last candle in any span of the member's series, None without times."""
    series = [job.series[index] for index in task.members]
    if any(one.times is None for one in series):
        return None
    ends = [one.end_of(stop - 1) for one in series for first, stop in one.spans.values() if stop > first]
    return max(ends).isoformat() if ends else None


def _validate(net: Net, bank: Bank, loop: Loop) -> tuple[Tensor, Tensor, Tensor]:
    """Raw outputs [K, V, H, size], truth [K, V, H, 4] and weights [K, V] of the best rows on the validation windows."""
    origins, weight = loop.validation_windows()
    raws, truths = [], []
    weights = net.layout.views(loop.fleet.best)
    batch = max(windows_in_flight(net.options.context, origins.device) // len(origins), 1)
    for part in origins.split(batch, 1):
        window = net.gather(bank, part, loop.fleet.scaling, future=True)
        raws.append(net.raw(window, weights, None).cpu())
        assert window.truth is not None
        truths.append(window.truth.cpu())
    return torch.cat(raws, 1), torch.cat(truths, 1), weight.cpu()


def _residuals(net: Net, raw: Tensor, truth: Tensor, weight: Tensor) -> np.ndarray:
    """Close minus its median forecast [K, V, H] in volatilities x sqrt(step); NaN where there is no window."""
    error = truth[..., 3] - net.head.median(raw)[..., 3]
    return torch.where(weight.unsqueeze(-1) > 0, error, torch.nan).double().numpy()


def _classification(net: Net, raw: Tensor, truth: Tensor, weight: Tensor) -> list[dict[str, Any]]:
    """Validation accuracy and confusion matrix (rows: truth up, flat, down) of classifiers."""
    if not isinstance(net.head, Classes):
        return [{}] * len(raw)
    out = []
    for own, real, valid in zip(raw[:, :, 0].argmax(-1), net.head.truth(truth), weight > 0, strict=True):
        counts = torch.bincount(real[valid] * 3 + own[valid], minlength=9).view(3, 3)
        total = int(counts.sum())
        accuracy = float(counts.diagonal().sum()) / total if total else float("nan")
        out.append({"accuracy": accuracy, "confusion": counts.tolist()})
    return out
