"""`train_fleet`: from series to trained members. Plans who learns what, splits into fleets, survives lack of memory."""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cpbmodels.bank import Bank, Scaling, Task, make_task
from cpbmodels.checkpoint import Checkpoints
from cpbmodels.errors import ModelError
from cpbmodels.fleet import Fleet
from cpbmodels.loop import Loop, Measured, memory
from cpbmodels.member import DTYPES, FORMAT, Member
from cpbmodels.net import Net
from cpbmodels.presets import Preset
from cpbmodels.presets import preset as resolve
from cpbmodels.series import Series
from cpbmodels.student_t import QUANTILES

log = logging.getLogger(__name__)
SCOPES = ("per-series", "universal", "both")
UNIVERSAL = "ALL"  # symbol of a member that learnt every series of its timeframe


@dataclass(frozen=True)
class EpochRecord:
    """What `on_epoch` is told. `members`: one dict per member that trained in this epoch (symbol, timeframe, seed,
    index in the returned list, train_loss, val_loss, best_val_loss, stopped)."""

    epoch: int
    epochs: int
    lr: float
    members: list[dict[str, Any]]
    windows_per_s: float
    seconds: float
    memory: dict[str, float]


@dataclass(frozen=True)
class Job:
    """Everything a fleet needs besides its tasks."""

    series: list[Series]
    architecture: str
    options: Preset
    device: torch.device
    dtype: torch.dtype
    compute: torch.dtype
    checkpoint: Path | None
    resume: bool
    warm: list[Member | None] | None
    on_epoch: Callable[[EpochRecord], None] | None


def train_fleet(
    series: Sequence[Series],
    architecture: str = "har",
    preset: str = "default",
    seeds: Sequence[int] | int | None = None,
    device: str = "auto",
    dtype: str = "float32",
    scope: str = "per-series",
    checkpoint: str | Path | None = None,
    resume: bool = False,
    warm_start: Sequence[Member | None] | None = None,
    on_epoch: Callable[[EpochRecord], None] | None = None,
    profile: str | None = None,
    **overrides: Any,
) -> list[Member]:
    """Train one member per series (or, `scope="universal"`, one per timeframe and seed) and return them in order.

    seeds: one per series; for universal members, each seed gives one member per timeframe. Default 0.
    checkpoint: folder for a checkpoint per epoch; `resume` continues from its newest one.
    warm_start: trained members with equal options, one per new member, to continue from; None starts
        that member anew.
    overrides: any field of the preset (`epochs=5`, `batch_size=32` ..).
    Raises ModelError for impossible options or data.
    """
    series = list(series)
    options = resolve(preset, architecture, profile, **overrides)
    place = pick_device(device)
    if dtype not in DTYPES:
        raise ModelError(
            f"dtype {dtype!r} is unknown: choose float32 or float64 (mixed_precision adds bf16)."
        )
    kind = DTYPES[dtype]
    bank = Bank.build(_nonempty(series), options, torch.device("cpu"), torch.float32)  # for its row numbers
    tasks = plan_tasks(bank, series, seeds, scope, options)
    job = Job(
        series=series,
        architecture=architecture,
        options=options,
        device=place,
        dtype=kind,
        compute=compute_dtype(options, architecture, place, kind),
        checkpoint=Path(checkpoint) if checkpoint is not None else None,
        resume=resume,
        warm=list(warm_start) if warm_start is not None else None,
        on_epoch=on_epoch,
    )
    if job.warm is not None and len(job.warm) != len(tasks):
        raise ModelError(f"warm_start needs one member per new member: {len(tasks)}, not {len(job.warm)}.")
    return _train_chunks(job, tasks)


def _nonempty(series: list[Series]) -> list[Series]:
    if not series:
        raise ModelError("train_fleet needs at least one series.")
    return series


def pick_device(name: str) -> torch.device:
    """The torch device for "auto", "cpu", "cuda" or "cuda:1"; ModelError where there is no such device."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ModelError(f"device {name!r} is unknown: choose auto, cpu or cuda.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(
            "device 'cuda' is not available here (see `cpb doctor`): use device='cpu' or 'auto'."
        )
    return device


def compute_dtype(
    options: Preset, architecture: str, device: torch.device, master: torch.dtype
) -> torch.dtype:
    """Dtype of the products: the master's, or bf16 / fp16 in mixed precision."""
    wanted = options.mixed_precision
    if wanted == "off" or master == torch.float64:
        return master
    if wanted in ("bf16", "fp16"):
        return torch.bfloat16 if wanted == "bf16" else torch.float16
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    fast = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)()
    return torch.bfloat16 if fast and architecture in ("transformer", "gru") else master


def plan_tasks(
    bank: Bank, series: list[Series], seeds: Sequence[int] | int | None, scope: str, options: Preset
) -> list[Task]:
    """Who learns what: one task per series, and / or one per timeframe and seed."""
    if scope not in SCOPES:
        raise ModelError(f"scope {scope!r} is unknown: choose one of {', '.join(SCOPES)}.")
    tasks = []
    if scope in ("per-series", "both"):
        for index, seed in enumerate(_seed_per_series(seeds, len(series))):
            tasks.append(make_task(bank, series, (index,), seed, series[index].symbol, options))
    if scope in ("universal", "both"):
        wanted = [0] if seeds is None else [seeds] if isinstance(seeds, int) else list(dict.fromkeys(seeds))
        for timeframe in dict.fromkeys(one.timeframe for one in series):
            own = tuple(i for i, one in enumerate(series) if one.timeframe == timeframe)
            tasks += [make_task(bank, series, own, seed, UNIVERSAL, options) for seed in wanted]
    return tasks


def _seed_per_series(seeds: Sequence[int] | int | None, count: int) -> list[int]:
    own = [0 if seeds is None else seeds] * count if seeds is None or isinstance(seeds, int) else list(seeds)
    if len(own) != count:
        raise ModelError(f"seeds needs one number per series: {count}, not {len(own)}.")
    if any(seed < 0 for seed in own):
        raise ModelError("seeds must be whole numbers from 0.")
    return own


def _train_chunks(job: Job, tasks: list[Task]) -> list[Member]:
    """Fleet after fleet; out of memory halves the fleet, then the micro-batch (same batch, in two parts)."""
    members: list[Member] = []
    size, start = job.options.fleet_size, 0
    while start < len(tasks):
        chunk = tasks[start : start + size]
        try:
            members += _train_one(job, chunk, start)
            start += len(chunk)
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not _out_of_memory(error):
                raise
            size, job = _shrink(job, len(chunk))
    return members


def _out_of_memory(error: BaseException) -> bool:
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)


def _shrink(job: Job, size: int) -> tuple[int, Job]:
    """Half the fleet; a single member gets half the micro-batch."""
    if job.device.type == "cuda":
        torch.cuda.empty_cache()
    if size > 1:
        log.warning("Out of memory with %d members at once: going on with %d.", size, size // 2)
        return size // 2, job
    parts = job.options.accumulate * 2
    if job.options.batch_size % parts:
        raise ModelError(
            f"Not enough memory for one member with batch_size {job.options.batch_size} in {job.options.accumulate} "
            "parts: choose a smaller batch_size or hidden_dim."
        )
    log.warning(
        "Out of memory with one member: its batch of %d now goes in %d parts.", job.options.batch_size, parts
    )
    return 1, replace(job, options=replace(job.options, accumulate=parts))


def _train_one(job: Job, tasks: list[Task], start: int) -> list[Member]:
    """One fleet, from initial weights (or checkpoint) to finished members."""
    net = Net(job.architecture, job.options, job.device, job.dtype)
    bank = Bank.build(job.series, job.options, job.device, job.dtype)
    loop = Loop(make_fleet(job, net, tasks, start), bank, tasks, job.options)
    store = Checkpoints(job.checkpoint / f"fleet-{start:04d}") if job.checkpoint is not None else None
    if store is not None and not (job.resume and loop.resume(store)):
        store.clear()
    try:
        loop.run(store, _reporter(job, start) if job.on_epoch is not None else None)
    finally:
        if store is not None:
            store.close()
    return export(job, net, bank, loop)


def make_fleet(job: Job, net: Net, tasks: list[Task], start: int) -> Fleet:
    """Initial (or warm) weights and scaling of the tasks, on the device."""
    warm = job.warm[start : start + len(tasks)] if job.warm is not None else [None] * len(tasks)
    rows = [
        _warm_row(net, old) if old else _new_row(net, task) for task, old in zip(tasks, warm, strict=True)
    ]
    flat = torch.cat(rows)
    scaling = Scaling(*(_stack(tasks, name, job) for name in ("mean", "inverse")))
    seeds = torch.tensor([task.seed for task in tasks], device=job.device)
    return Fleet(net, flat.to(job.device, job.dtype), seeds, scaling, job.compute)


def _stack(tasks: list[Task], name: str, job: Job) -> Tensor:
    return torch.as_tensor(np.stack([getattr(task, name) for task in tasks])).to(job.device, job.dtype)


def _new_row(net: Net, task: Task) -> Tensor:
    return torch.as_tensor(net.layout.initial(task.seed))[None]


def _warm_row(net: Net, member: Member) -> Tensor:
    if member.rows.shape != (1, net.layout.size):
        raise ModelError(
            f"warm_start: {member.config.get('symbol')} has other dimensions than the new model (or is an ensemble): "
            "start without it, or with its options."
        )
    return member.rows


def _reporter(job: Job, start: int) -> Callable[[Loop, Measured], None]:
    def report(loop: Loop, measured: Measured) -> None:
        told = [
            {
                "index": start + task,
                "symbol": loop.tasks[task].symbol,
                "timeframe": loop.tasks[task].timeframe,
                "seed": loop.tasks[task].seed,
                "best_val_loss": progress.best,
                "stopped": progress.stopped,
                **progress.history[-1],
            }
            for task, progress in enumerate(loop.progress)
            if progress.history and progress.history[-1]["epoch"] == loop.epoch
        ]
        assert job.on_epoch is not None
        record = EpochRecord(
            epoch=loop.epoch,
            epochs=job.options.epochs,
            lr=told[0]["lr"],
            members=told,
            windows_per_s=measured.windows_per_s,
            seconds=measured.seconds,
            memory=measured.memory,
        )
        job.on_epoch(record)

    return report


@torch.no_grad()
def export(job: Job, net: Net, bank: Bank, loop: Loop) -> list[Member]:
    """Members from the best rows, in the order of the tasks."""
    loop.fleet.reorder(torch.tensor([loop.order.index(k) for k in range(len(loop.tasks))]).to(job.device))
    loop.order, loop.validation = list(range(len(loop.tasks))), None
    fleet = loop.fleet
    raw, truth, weight = _validate(net, bank, loop)
    weights = net.layout.views(fleet.best)
    table = net.head.table(weights, _residuals(net, raw, truth, weight) if net.head.needs_residuals else None)
    extra = _classification(net, raw, truth, weight)
    used = memory(job.device)
    members = []
    for k, (task, progress) in enumerate(zip(loop.tasks, loop.progress, strict=True)):
        members.append(
            Member(
                config=_config(job, task),
                rows=fleet.best[k : k + 1].cpu().clone(),
                mean=fleet.scaling.mean[k : k + 1].cpu().clone(),
                inverse=fleet.scaling.inverse[k : k + 1].cpu().clone(),
                table=torch.as_tensor(table[k : k + 1]).to(job.dtype),
                history=progress.history,
                report={
                    "epochs_run": len(progress.history),
                    "best_epoch": progress.best_epoch,
                    "best_val_loss": progress.best,
                    "stopped": progress.stopped,
                    "reason": progress.reason,
                    "windows_per_s": loop.windows / loop.seconds if loop.seconds else 0.0,
                    "train_seconds": loop.seconds,
                    "fleet_members": len(loop.tasks),
                    "device": str(job.device),
                    "compute_dtype": str(job.compute).removeprefix("torch."),
                    "accumulate": job.options.accumulate,
                    "train_windows": len(task.train),
                    "validation_windows": len(task.validation),
                    "gpu_mem_allocated_peak_mb": used.get("gpu_mem_allocated_peak_mb", 0.0),
                    "gpu_mem_reserved_peak_mb": used.get("gpu_mem_reserved_peak_mb", 0.0),
                    "gpu_util_mean": 0.0,
                    "rss_peak_mb": used["rss_peak_mb"],
                    **extra[k],
                },
            )
        )
    return members


def _config(job: Job, task: Task) -> dict[str, Any]:
    """Everything needed to rebuild the model, and where it came from."""
    return {
        "format": FORMAT,
        "architecture": job.architecture,
        "symbol": task.symbol,
        "timeframe": task.timeframe,
        "symbols": [job.series[index].symbol for index in task.members],
        "seed": task.seed,
        "dtype": str(job.dtype).removeprefix("torch."),
        "quantiles": QUANTILES.tolist(),
        **job.options.as_dict(),
        "versions": {
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def _validate(net: Net, bank: Bank, loop: Loop) -> tuple[Tensor, Tensor, Tensor]:
    """Raw outputs [K, V, H, size], truth [K, V, H, 4] and weights [K, V] of the best rows on the validation windows."""
    origins, weight = loop.validation_windows()
    raws, truths = [], []
    weights = net.layout.views(loop.fleet.best)
    for part in origins.split(max(16_384 // len(origins), 1), 1):
        window = net.gather(bank, part, loop.fleet.scaling, future=True)
        raws.append(net.raw(window, weights, None).cpu())
        assert window.truth is not None
        truths.append(window.truth.cpu())
    return torch.cat(raws, 1), torch.cat(truths, 1), weight.cpu()


def _residuals(net: Net, raw: Tensor, truth: Tensor, weight: Tensor) -> np.ndarray:
    error = truth[..., 3] - net.head.median(raw)[..., 3]
    return torch.where(weight.unsqueeze(-1) > 0, error, torch.nan).double().numpy()


def _classification(net: Net, raw: Tensor, truth: Tensor, weight: Tensor) -> list[dict[str, Any]]:
    """Validation accuracy and confusion matrix (rows: truth up, flat, down) of classifiers."""
    from cpbmodels.heads import Classes

    if not isinstance(net.head, Classes):
        return [{}] * len(raw)
    out = []
    for own, real, valid in zip(raw[:, :, 0].argmax(-1), net.head.truth(truth), weight > 0, strict=True):
        counts = torch.bincount(real[valid] * 3 + own[valid], minlength=9).view(3, 3)
        total = int(counts.sum())
        accuracy = float(counts.diagonal().sum()) / total if total else float("nan")
        out.append({"accuracy": accuracy, "confusion": counts.tolist()})
    return out
