"""Progress of a training: `progress.json`, written by its trainer, and the reports made from it.

Fields: architecture; stage (`training`, then `forecasting` of the spans to be judged, with `forecasts` of `to_forecast`
members done); since, the start of this training (ISO, UTC); device in words; data, the candles on it; members; share of
all members' epochs that is done, and eta_s, the estimated seconds left (null: unknown); epoch of epochs and batch of
batches, of the rows trained last; train_loss and val_loss, means over the members of the last complete epoch; and the
fields of `cpbmodels.EpochRecord` (lr, windows_per_s, seconds, memory, and its members as `last`).

Also the cost of every epoch, stored beside the checkpoints (`epochs.jsonl`) so that a resumed training keeps all
epochs. On a CPU a job's members train in several fleets concurrently, on a GPU possibly one after another: each fleet
reports its own epochs, and `epoch_costs` joins the reports of the same epoch.
"""

import json
import math
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import cpbmodels
from schemas.handover import DeviceWork, FleetPlan, ShardJob
from tasks.running.parallel import usable_cores
from tasks.running.progress import Pace, tell, tell_line
from tasks.storage.files import write_bytes
from tasks.training.files import PROGRESS
from tasks.training.plan import job_key

_LOSSES = ("train_loss", "val_loss")
_SUMMED = ("epoch", "members_training", "lr", "epoch_seconds", "epoch_windows_per_s")


class EpochReports:
    """The reports of a job's epochs, one JSON object per line; a partial line of a killed process is dropped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        whole = [line for line in lines if line.endswith(b"\n")]
        if len(whole) < len(lines):
            write_bytes(path, b"".join(whole))
        self._found = [json.loads(line) for line in whole]

    def add(self, record: "cpbmodels.EpochRecord") -> None:
        """Store the cost of an epoch of one fleet."""
        report = _report(record, time.time())
        self._found.append(report)
        with self._path.open("a") as file:
            file.write(json.dumps(report) + "\n")

    def costs(self) -> list[dict[str, float]]:
        """Return the cost of each epoch over all fleets; see `epoch_costs`."""
        return epoch_costs(self._found)


def epoch_costs(reports: Iterable[dict[str, Any]]) -> list[dict[str, float]]:
    """Return one dict per epoch, with its metrics' names in MLflow.

    `epoch` from 1; `train_loss`, `val_loss` means over the `members_training`; `epoch_seconds` in which any fleet
    trained it, and `epoch_windows_per_s` over those seconds; peak memory in MB, mean utilisation in percent.
    """
    by_epoch: dict[int, dict[int, dict[str, Any]]] = defaultdict(dict)
    for one in reports:
        by_epoch[one["epoch"]][one["first"]] = one  # an epoch repeated after a kill counts once
    return [_joined([found[first] for first in sorted(found)]) for _, found in sorted(by_epoch.items())]


def fleet_epochs(shards: Iterable[Sequence[dict[str, float]]]) -> list[dict[str, float]]:
    """Join the epoch costs of a fleet's shards, which trained at different times and on different devices.

    Seconds are summed, and windows/s computed over that sum; losses are means over all members, memory in MB the
    maximum over devices, utilisation in percent the mean over the shards.
    """
    by_epoch: dict[float, list[dict[str, Any]]] = defaultdict(list)
    for shard in shards:
        for one in shard:
            by_epoch[one["epoch"]].append(one)
    return [found[0] if len(found) == 1 else _added(found) for _, found in sorted(by_epoch.items())]


def busy_share(work: Sequence[DeviceWork], cores: int) -> dict[str, float]:
    """Return `device_busy_share`: the share of time from the first shard's start to the last's end with devices busy.

    For GPUs, the seconds in which a kernel ran, averaged over the GPUs that trained; nothing if a driver does not say
    it. For a CPU, the trainers' CPU time divided by its cores.
    """
    span = max(one.end for one in work) - min(one.begin for one in work)
    gpus = {one.device for one in work if one.device}
    seconds = [one.busy_s if one.device else one.cpu_s for one in work]
    if span <= 0 or None in seconds:
        return {}
    return {"device_busy_share": sum(one or 0.0 for one in seconds) / (span * (len(gpus) or cores))}


def _added(found: Sequence[dict[str, float]]) -> dict[str, float]:
    return _summed(
        found[0],
        seconds=sum(one["epoch_seconds"] for one in found),
        windows=sum(one["epoch_windows_per_s"] * one["epoch_seconds"] for one in found),
        members=[one["members_training"] for one in found],
        losses=found,
        usage=[{name: one[name] for name in one if name not in (*_SUMMED, *_LOSSES)} for one in found],
    )


def _summed(
    first: Mapping[str, Any],
    *,
    seconds: float,
    windows: float,
    members: Sequence[float],
    losses: Sequence[Mapping[str, Any]],
    usage: Sequence[Mapping[str, float]],
) -> dict[str, float]:
    """Join the parts of an epoch; `first` has its number and learning rate, `members` weights the losses."""
    joined: dict[str, float] = {
        "epoch": first["epoch"],
        "members_training": sum(members),
        "lr": first["lr"],
        "epoch_seconds": seconds,
        "epoch_windows_per_s": windows / seconds if seconds else 0.0,
    }
    for name in _LOSSES:
        known = [(one[name], n) for one, n in zip(losses, members, strict=True) if one.get(name) is not None]
        if known:
            joined[name] = sum(loss * n for loss, n in known) / sum(n for _, n in known)
    for name in dict.fromkeys(name for one in usage for name in one):
        values = [one[name] for one in usage if name in one]
        joined[name] = max(values) if name.endswith("_mb") else fmean(values)
    return joined


def _report(record: "cpbmodels.EpochRecord", ended: float) -> dict[str, Any]:
    """Return an epoch's figures. `first` identifies the fleet within the job; `ended` in seconds since 1970."""
    losses = {name: _mean([one[name] for one in record.members]) for name in _LOSSES}
    return {
        "epoch": record.epoch,
        "first": min(one["index"] for one in record.members),
        "members": len(record.members),
        "lr": float(record.lr),
        "windows_per_s": float(record.windows_per_s),
        "seconds": float(record.seconds),
        "ended": ended,
        **losses,
        "usage": {name: float(value) for name, value in record.memory.items()},
    }


def _joined(reports: Sequence[dict[str, Any]]) -> dict[str, float]:
    return _summed(
        reports[0],
        seconds=_covered([(one["ended"] - one["seconds"], one["ended"]) for one in reports]),
        windows=sum(one["windows_per_s"] * one["seconds"] for one in reports),
        members=[one["members"] for one in reports],
        losses=reports,
        usage=[one["usage"] for one in reports],
    )


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of time spans."""
    total, reached = 0.0, -math.inf
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the known finite values."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return fmean(finite) if finite else None


_EVERY_S = 0.25


class ProgressFile:
    """Writes a shard's `progress.json`: `on_step` and `on_epoch` are callbacks of `cpbmodels.train_fleet`."""

    def __init__(self, folder: Path, architecture: str) -> None:
        self._path, self._written = folder / PROGRESS, 0.0
        self._done: dict[int, float] = {}  # by member, the share of its epochs
        self._pace = Pace()
        self._state: dict[str, Any] = {
            "architecture": architecture, "stage": "training", "since": datetime.now(UTC).isoformat(),
            "device": None, "data": None, "members": 0, "share": 0.0, "eta_s": None,
            "epoch": 0, "epochs": 0, "batch": 0, "batches": 0, "train_loss": None, "val_loss": None,
        }  # fmt: skip

    def on_step(self, record: "cpbmodels.StepRecord") -> None:
        """Record the progress within an epoch."""
        first = self._state["device"] is None
        if first:
            (rows, columns), mb = record.data, record.data_mb
            size = f"{mb:,.1f} MB" if mb >= 1 else f"{mb * 1e3:,.0f} kB"
            self._state |= {
                "device": describe_device(record.device),
                "data": f"Data on {record.device}: [{rows:,}, {columns}] {record.data_dtype}, {size}",
            }
        done = (record.epoch - 1 + record.step / record.steps) / record.epochs
        self._count(dict.fromkeys(record.members, done), record.of_members)
        self._state |= {
            "epoch": record.epoch - 1, "epochs": record.epochs, "batch": record.step, "batches": record.steps,
        }  # fmt: skip
        self._write(now=first)

    def on_epoch(self, record: "cpbmodels.EpochRecord") -> None:
        """Record a complete epoch."""
        self._count(
            {one["index"]: 1.0 if one["stopped"] else record.epoch / record.epochs for one in record.members}
        )
        values = plain(asdict(record))
        last = values.pop("members")
        self._state |= values | {
            "last": last,
            "batch": self._state["batches"],
            "train_loss": _mean(one.get("train_loss") for one in last),
            "val_loss": _mean(one.get("val_loss") for one in last),
        }
        self._write(now=all(one["stopped"] for one in last))

    def forecasting(self, done: int, total: int) -> None:
        """Record the end of training, and the number of members with forecasts of the spans to be judged."""
        self._state |= {
            "stage": "forecasting",
            "share": 1.0,
            "eta_s": None,
            "forecasts": done,
            "to_forecast": total,
        }
        self._write(now=True)

    @property
    def share(self) -> float:
        """The share of all members' epochs that is done."""
        return float(self._state["share"])

    def _count(self, done: Mapping[int, float], members: int = 0) -> None:
        now = time.monotonic()
        self._done |= done
        members = members or self._state["members"]
        share = sum(self._done.values()) / max(members, len(self._done), 1)
        self._pace.take(share, 1, now)  # the next fold's universal model restarts at 0 %
        self._state |= {"members": members, "share": share, "eta_s": self._pace.left(now)}

    def _write(self, *, now: bool) -> None:
        """Replace the file without fsync: it is not needed after a power failure."""
        if not now and time.monotonic() - self._written < _EVERY_S:
            return
        self._written = time.monotonic()
        draft = self._path.with_suffix(".tmp")
        draft.write_text(json.dumps(self._state))
        draft.replace(self._path)


def describe_device(name: str) -> str:
    """Return a device in words: `cpu (2 cores)`, or `cuda:0 NVIDIA H100, 77.1 of 79.1 GB free`."""
    import torch

    device = torch.device(name)
    if device.type != "cuda":
        cores = usable_cores()
        return f"{name} ({cores} {'core' if cores == 1 else 'cores'})"
    free, total = (size / 1e9 for size in torch.cuda.mem_get_info(device))
    return f"{name} {torch.cuda.get_device_name(device)}, {free:.1f} of {total:.1f} GB free"


def plain(value: Any) -> Any:
    """Convert numbers of numpy and torch to Python's."""
    return json.loads(json.dumps(value, default=float))


class FleetProgress:
    """Sums up and reports the progress of a fleet's shards; its methods are called from the shards' threads."""

    def __init__(self, plan: FleetPlan) -> None:
        self._name = plan.architecture
        self._training, self._predicting = f"train {self._name}", f"predict the test span with {self._name}"
        self._members = {job_key(shard): len(shard.members) for shard in plan.shards}
        self._shares = dict.fromkeys(self._members, 0.0)
        self._ended: set[str] = set()
        self._devices: set[str] = set()
        self._lock = threading.Lock()

    def waiting(self, what: str) -> None:
        """Report what a shard waits for, unless other shards are running and shown instead."""
        if not any(self._shares.values()):
            tell(self._training, 0, 0, "epochs", what)

    def starting(self) -> None:
        """Report that the trainer is starting; it reports nothing itself until its libraries are loaded."""
        self.waiting("starting its trainer")

    def ended(self, job: ShardJob) -> None:
        """Record the end of a shard, whatever its outcome; with the last shard, report the fleet's end."""
        with self._lock:
            self._shares[job_key(job)] = 1.0
            self._ended.add(job_key(job))
            over = len(self._ended) == len(self._members)
        if over:
            for step in (self._training, self._predicting):
                tell(step, 1, 1, "epochs")

    def take(self, job: ShardJob, state: Mapping[str, Any]) -> None:
        """Record a shard's changed `progress.json`: report each device once, then every change."""
        device, whole = state["device"], len(self._members) == 1
        with self._lock:
            is_new = bool(device) and device not in self._devices
            self._devices |= {device} if device else set()
            self._shares[job_key(job)] = state["share"]
            done = sum(self._shares[key] * number for key, number in self._members.items())
            shards = f"{len(self._ended)}/{len(self._members)} shards"
        if is_new:
            tell_line(f"training {self._name} on {device}")
            if whole:
                tell_line(state["data"])
        if state["stage"] == "training":
            tell(
                self._training,
                min(done / max(sum(self._members.values()), 1), 0.999) * state["epochs"],
                state["epochs"],
                "epochs",
                *([] if whole else [shards]),
                *_facts(state),
                epoch=state["epoch"] if whole else 0,
                epoch_line=_epoch_line(self._name, state) if whole else "",
            )
        elif whole:
            tell(self._predicting, state["forecasts"], state["to_forecast"], "members")
            tell(self._training, 1, 1, "epochs")


def _facts(state: Mapping[str, Any]) -> Iterator[str]:
    """Yield the facts that a bar shows beside the epochs, most important first."""
    if state["train_loss"] is not None:
        yield _losses("loss {} / {}", state)
    if state["batches"] > 1:
        yield f"batch {state['batch']:,}/{state['batches']:,}"
    if "windows_per_s" in state:
        yield f"{state['windows_per_s']:,.0f} windows/s"
        yield f"{_megabytes(state['memory'])[0]:,.0f} MB"
        yield f"lr {state['lr']:.1e}"


def _epoch_line(name: str, state: Mapping[str, Any]) -> str:
    if state["train_loss"] is None and state["val_loss"] is None:
        return ""
    now, peak = _megabytes(state["memory"])
    return (
        f"{name}: epoch {state['epoch']}/{state['epochs']}  {_losses('train loss {}  validation loss {}', state)}  "
        f"memory {now:,.0f} MB, peak {peak:,.0f} MB"
    )


def _losses(form: str, state: Mapping[str, Any]) -> str:
    values = (state["train_loss"], state["val_loss"])
    return form.format(*("-" if one is None else f"{one:.4f}" for one in values))


def _megabytes(memory: Mapping[str, float]) -> tuple[float, float]:
    """Return the memory in use and its peak: of the GPU if used, else of the process."""
    for now, peak in (("gpu_mem_allocated_mb", "gpu_mem_allocated_peak_mb"), ("rss_mb", "rss_peak_mb")):
        if now in memory or peak in memory:
            return memory.get(now, memory.get(peak, 0.0)), memory.get(peak, memory.get(now, 0.0))
    return 0.0, 0.0
