"""What a fleet gives: records and checkpoints while it trains, then its members with their tables of extremes.

A checkpoint is one safetensors file per epoch, whole or absent; the last two are kept. Its name holds the CRC-32 of its
bytes, so that training never resumes from a damaged file. A background thread writes, so training waits for a copy in
memory only. If the disk is slower than the epochs, or the copies (of gigabytes, from a GPU) would take more than a
fiftieth of the time, epochs in between are skipped. Random draws are functions of (seed, step): there is no generator
state to save.
"""

from __future__ import annotations

import json
import logging
import platform
import re
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from cpbmodels.arch.heads import Classes
from cpbmodels.arch.options import Preset
from cpbmodels.arch.task import Task
from cpbmodels.data import touch
from cpbmodels.data.series import Prediction, Series
from cpbmodels.data.student_t import QUANTILES
from cpbmodels.errors import ModelError
from cpbmodels.fleet.bank import evenly_spread
from cpbmodels.fleet.config import FORMAT, write_whole
from cpbmodels.fleet.kernel_switch import described
from cpbmodels.fleet.member import Member
from cpbmodels.fleet.net import Net, windows_in_flight
from cpbmodels.fleet.predict import predict_each

if TYPE_CHECKING:
    from cpbmodels.fleet.loop import FleetJob, Loop

MAX_TOUCH_ORIGINS = {True: 1_500, False: 4_000}
"""Windows that are forecast for the table of extremes of a model of one series (True), or of several. More of them
scored at most .0005 better on 20 coins at 1h."""

MAX_FILES = 2  # two, in case the newest is damaged
MAX_TIME_SHARE = 0.02  # of the training that copies may take
_NAME = re.compile(r"epoch-\d{6}-[0-9a-f]{8}\.safetensors")


@dataclass(frozen=True)
class EpochRecord:
    """What `on_epoch` is called with, once per fleet and epoch.

    epoch: from 1. epochs: at most as many. lr: learning rate at the end of the epoch, of the first member.
    members: one dict per member that trained in this epoch: index in the returned list, symbol, timeframe, seed,
        train_loss, val_loss, lr, best_val_loss, stopped ("" while it goes on).
    windows_per_s, seconds: of the whole fleet, validation included.
    memory: MB and percent, as `Monitor.latest` gives them.
    architecture: what the fleet trains: in the training of an average, one of its members.
    stage: of how many `stages` this fleet is part, from 1: an average trains its members one after the other.
    of_members: how many the whole call trains, in each stage.
    last: train_loss and val_loss of the last epoch that each member of the fleet trained, by index in the returned
        list: of those that have stopped, too.
    """

    epoch: int
    epochs: int
    lr: float
    members: list[dict[str, Any]]
    windows_per_s: float
    seconds: float
    memory: dict[str, float]
    architecture: str = ""
    stage: int = 1
    stages: int = 1
    of_members: int = 1
    last: dict[int, tuple[float, float]] = field(default_factory=dict)


OnEpoch = Callable[[EpochRecord], Iterable[int] | None]
"""Called after every epoch of a fleet; may return indices of members that shall stop now (of other fleets: ignored)."""


@dataclass(frozen=True)
class StepRecord:
    """What `on_step` is called with: once before a fleet's first step, then about every 0.3 s within an epoch.

    epoch: from 1, of at most `epochs`. step: done of the epoch's `steps` (on a GPU: launched). members: indices in the
    returned list of those that train. of_members: how many the whole call trains.
    device: as in `cpu` or `cuda:0`. data: rows and columns of the candles there, data_mb: their size.
    architecture, stage, stages: as in `EpochRecord`.
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
    architecture: str = ""
    stage: int = 1
    stages: int = 1


OnStep = Callable[[StepRecord], bool | None]
"""May return True: the fleet's members then stop within this epoch, each with the snapshot of its best epoch so far."""


def report_step(loop: Loop, step: int, steps: int) -> bool:
    """Call the job's `on_step` with the steps done of a loop's epoch; whether its members shall stop now."""
    job, rows = loop.job, loop.bank.rows
    if job.on_step is None:
        return False
    record = StepRecord(
        epoch=loop.epoch + 1,
        epochs=max(options.epochs for options in loop.own_options),
        step=step,
        steps=steps,
        members=[loop.tasks[task].index for task in loop.order[: loop.active]],
        of_members=job.of_members,
        device=str(rows.device),
        data=(rows.shape[0], rows.shape[1]),
        data_dtype=str(rows.dtype).removeprefix("torch."),
        data_mb=rows.numel() * rows.element_size() / 1e6,
        architecture=job.architecture,
        stage=job.stage,
        stages=job.stages,
    )
    with job.lock:
        return bool(job.on_step(record))


def report_epoch(loop: Loop, windows: int, seconds: float) -> None:
    """Call the job's `on_epoch` with the members that trained in a loop's last epoch; stop those that it returns."""
    job, pairs = loop.job, list(zip(loop.tasks, loop.progress, strict=True))
    if job.on_epoch is None:
        return
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
        for task, progress in pairs
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
        architecture=job.architecture,
        stage=job.stage,
        stages=job.stages,
        of_members=job.of_members,
        last={
            task.index: (progress.history[-1]["train_loss"], progress.history[-1]["val_loss"])
            for task, progress in pairs
            if progress.history
        },
    )
    with job.lock:
        unwanted = set(job.on_epoch(record) or ())
    for task, progress in pairs:
        if task.index in unwanted and not progress.stopped:
            progress.stopped = "on_request"
            progress.reason = f"stopped on request after epoch {loop.epoch}"


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


def with_touch(member: Member, learned: Sequence[Series], device: str) -> Member:
    """The member with the table of extremes over training and validation windows of the series that it learned.

    Forecasts of the windows that its weights have learned are about as wide as others: tables of the validation span
    alone, 60 days of one kind of market, scored .002 worse and stated up to two points too little.
    """
    reached, most = [], MAX_TOUCH_ORIGINS[len(learned) == 1]
    for series in learned:
        spans = [series.origins(split, member.context, member.horizon) for split in ("train", "validation")]
        origins = evenly_spread(np.concatenate(spans), max(most // len(learned), 1))
        (forecast,) = predict_each([member], [series], [origins], device)
        if isinstance(forecast, Prediction) and forecast.quantiles.size:
            reached.append(touch.ratios(series, forecast))
    if not reached:  # a classifier, or a training that diverged
        return member
    return replace(member, touch=torch.as_tensor(touch.fit(np.concatenate(reached, 1)), dtype=torch.float32))


log = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of one fleet in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self.pending: Future[None] | None = None
        self.next_due = 0.0  # on time.monotonic's clock: an earlier copy would take more than MAX_TIME_SHARE

    def save(self, epoch: int, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Write the state after `epoch` in the background.

        Skipped while the last checkpoint is still being written, and while its copy is more than `MAX_TIME_SHARE` of
        the time since it began.
        """
        started = time.monotonic()
        if self.pending is not None:
            if not self.pending.done() or started < self.next_due:
                return
            self.pending.result()  # raises the writer's error, such as a full disk
        copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        self.pending = self.pool.submit(self._write, epoch, copies, json.dumps(state))
        ended = time.monotonic()
        self.next_due = ended + (ended - started) / MAX_TIME_SHARE

    def _write(self, epoch: int, tensors: dict[str, Tensor], state: str) -> None:
        from safetensors.torch import save as to_bytes

        self.folder.mkdir(parents=True, exist_ok=True)
        content = to_bytes(tensors, {"state": state})
        write_whole(self.folder / f"epoch-{epoch:06d}-{zlib.crc32(content):08x}.safetensors", content)
        for old in self.files()[:-MAX_FILES]:
            old.unlink(missing_ok=True)

    def files(self) -> list[Path]:
        """Checkpoints, oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(path for path in self.folder.iterdir() if _NAME.fullmatch(path.name))

    def latest(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Tensors and state of the newest readable checkpoint, or None."""
        from safetensors import safe_open

        for path in reversed(self.files()):
            # damaged: try the previous checkpoint
            if f"{zlib.crc32(path.read_bytes()):08x}" not in path.name:
                continue
            with safe_open(str(path), "pt") as file:
                names = file.keys()
                return {name: file.get_tensor(name) for name in names}, json.loads(file.metadata()["state"])
        return None

    def clear(self) -> None:
        """Remove the checkpoints of earlier trainings: this training starts from scratch."""
        for path in self.files():
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Wait for the last write."""
        self.pool.shutdown(wait=True)
        if self.pending is not None:
            self.pending.result()


def is_same(saved: dict[str, Any], wanted: dict[str, Any], folder: Path) -> bool:
    """Whether training continues from a checkpoint here: False for other members of the same training (another cut).

    A fleet is cut by the number of cores, and again where memory runs out: such a part starts from scratch.

    Raises:
        ModelError: it belongs to a different training.
    """
    differing = sorted(key for key in wanted if saved.get(key) != wanted[key])
    if not differing:
        return True
    before, seeds = saved.get("seeds", []), wanted["seeds"]
    if "options" not in differing and before != seeds and not set(before).isdisjoint(seeds):
        log.warning(
            "%s belongs to a fleet that was split differently (%d members, here %d), as with other cores "
            "or too little memory: these members start from new weights.",
            folder,
            len(before),
            len(seeds),
        )
        return False
    raise ModelError(
        f"{folder} holds a checkpoint of a different training ({', '.join(differing)} differ): "
        "resume with the same data and options, or start without resume."
    )
