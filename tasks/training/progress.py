"""How far a training is: `progress.json`, which its trainer writes, and what is told of it (`tasks.running.progress`).

Fields: architecture; stage (`training`, then `forecasting`: the spans to be judged, with `forecasts` of `to_forecast`
members done); since, the start of this training (ISO, UTC); device in
words; data, the candles on it; members; share of all members' epochs that is done, and eta_s, the seconds left at the
pace so far (null: not known); epoch of epochs and batch of batches, of the rows that trained last; train_loss and
val_loss, means over the members of the last whole epoch; and what `cpbmodels.EpochRecord` holds (lr, windows_per_s,
seconds, memory, and its members as `last`).
"""

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.handover import FleetPlan, ShardJob
from tasks.running.parallel import usable_cores
from tasks.running.progress import Progress, tell, tell_line, tell_progress
from tasks.training.files import PROGRESS
from tasks.training.plan import job_key

if TYPE_CHECKING:
    import cpbmodels

_EVERY_S = 0.25


class Shares:
    """How much of their epochs the members of one `cpbmodels.train_fleet` have trained."""

    def __init__(self) -> None:
        self._done: dict[int, float] = {}  # by member, from 0 to 1
        self.members = 0

    def on_step(self, record: "cpbmodels.StepRecord") -> float:
        """Take in how far an epoch is; returns the share of all members' epochs."""
        self.members = record.of_members
        done = (record.epoch - 1 + record.step / record.steps) / record.epochs
        self._done |= dict.fromkeys(record.members, done)
        return self._share()

    def on_epoch(self, record: "cpbmodels.EpochRecord") -> float:
        """Take in a whole epoch; returns the share of all members' epochs."""
        for one in record.members:
            self._done[one["index"]] = 1.0 if one["stopped"] else record.epoch / record.epochs
        return self._share()

    def _share(self) -> float:
        return sum(self._done.values()) / max(self.members, len(self._done), 1)


class ProgressFile:
    """Keeps a fleet's `progress.json`: `on_step` and `on_epoch` are what `cpbmodels.train_fleet` calls."""

    def __init__(self, folder: Path, architecture: str) -> None:
        self._path, self._written = folder / PROGRESS, 0.0
        self._shares = Shares()
        self._began: tuple[float, float] | None = None  # time and share of the first report
        self._state: dict[str, Any] = {
            "architecture": architecture, "stage": "training", "since": datetime.now(UTC).isoformat(),
            "device": None, "data": None, "members": 0, "share": 0.0, "eta_s": None,
            "epoch": 0, "epochs": 0, "batch": 0, "batches": 0, "train_loss": None, "val_loss": None,
        }  # fmt: skip

    def on_step(self, record: "cpbmodels.StepRecord") -> None:
        """Take in how far an epoch is."""
        first = self._state["device"] is None
        if first:
            (rows, columns), mb = record.data, record.data_mb
            size = f"{mb:,.1f} MB" if mb >= 1 else f"{mb * 1e3:,.0f} kB"
            self._state |= {
                "device": describe_device(record.device),
                "data": f"Data on {record.device}: [{rows:,}, {columns}] {record.data_dtype}, {size}",
            }
        self._count(self._shares.on_step(record))
        self._state |= {
            "epoch": record.epoch - 1, "epochs": record.epochs, "batch": record.step, "batches": record.steps,
        }  # fmt: skip
        self._write(now=first)

    def on_epoch(self, record: "cpbmodels.EpochRecord") -> None:
        """Take in a whole epoch."""
        self._count(self._shares.on_epoch(record))
        values = plain(asdict(record))
        last = values.pop("members")
        self._state |= values | {
            "last": last,
            "batch": self._state["batches"],
            "train_loss": _mean(last, "train_loss"),
            "val_loss": _mean(last, "val_loss"),
        }
        self._write(now=all(one["stopped"] for one in last))

    def forecasting(self, done: int, total: int) -> None:
        """Tell that the training is over, and how many members have forecast the spans to be judged."""
        self._state |= {
            "stage": "forecasting",
            "share": 1.0,
            "eta_s": None,
            "forecasts": done,
            "to_forecast": total,
        }
        self._write(now=True)

    def _count(self, share: float) -> None:
        now = time.monotonic()
        if self._began is None or share < self._began[1]:  # a universal model of the next fold begins anew
            self._began = (now, share)
        gone, made = now - self._began[0], share - self._began[1]
        eta = gone / made * (1 - share) if made > 0 else None
        self._state |= {"members": self._shares.members, "share": share, "eta_s": eta}

    def _write(self, *, now: bool) -> None:
        """Replace the file, without waiting for the disk: it is worth nothing after a power failure."""
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


def _mean(members: list[dict[str, Any]], key: str) -> float | None:
    """Return the mean loss of the members that have a finite one."""
    values = [one[key] for one in members if one.get(key) is not None and abs(one[key]) < float("inf")]
    return sum(values) / len(values) if values else None


def plain(value: Any) -> Any:
    """Return numbers of numpy and torch as Python's."""
    return json.loads(json.dumps(value, default=float))


class FleetProgress:
    """How far a fleet's shards have come, all together; its methods are called from the shards' threads."""

    def __init__(self, plan: FleetPlan) -> None:
        self.name = plan.architecture
        self._members = {job_key(shard): len(shard.members) for shard in plan.shards}
        self._shares = dict.fromkeys(self._members, 0.0)
        self._ended: set[str] = set()
        self._devices: set[str] = set()
        self._lock = threading.Lock()

    @contextmanager
    def shard(self, job: ShardJob) -> Iterator["ShardProgress"]:
        """Take in what becomes of one shard; its end however the block ends, and the fleet's with the last one."""
        key = job_key(job)
        try:
            yield ShardProgress(self, key)
        finally:
            with self._lock:
                self._shares[key] = 1.0
                self._ended.add(key)
                over = len(self._ended) == len(self._members)
            if over:
                for step in (self.training, self.predicting):
                    tell(step, 1, 1, "epochs")

    @property
    def training(self) -> str:
        """Name of the work while any shard trains."""
        return f"train {self.name}"

    @property
    def predicting(self) -> str:
        """Name of the work while a shard's models forecast the spans to be judged."""
        return f"predict the test span with {self.name}"

    @property
    def is_whole(self) -> bool:
        """Whether the fleet is one shard."""
        return len(self._members) == 1

    def idle(self, what: str) -> None:
        """Tell what a shard waits for, unless others are at work: then those are what is shown."""
        if not any(self._shares.values()):
            tell(self.training, 0, 0, "epochs", what)

    def is_new_device(self, device: str) -> bool:
        """Whether no shard has named this device before."""
        with self._lock:
            new = device not in self._devices
            self._devices.add(device)
        return new

    def share(self, key: str, share: float) -> float:
        """Take in the share of a shard's epochs that is done; return that of the fleet's."""
        with self._lock:
            self._shares[key] = share
            done = sum(self._shares[k] * n for k, n in self._members.items())
        return done / max(sum(self._members.values()), 1)

    def shards_done(self) -> str:
        """Return how many shards are done, as `3/10 shards`."""
        return f"{len(self._ended)}/{len(self._members)} shards"


class ShardProgress:
    """Receives the contents of one shard's `progress.json` whenever it has changed."""

    def __init__(self, fleet: FleetProgress, key: str) -> None:
        self._fleet, self._key = fleet, key

    def waiting(self, place: str) -> None:
        """Tell that the shard waits for a place to train in."""
        self._fleet.idle(f"waiting for a free {place}")

    def starting(self) -> None:
        """Tell that the trainer has a place to train in; until it has loaded its libraries it says nothing itself."""
        self._fleet.idle("starting its trainer")

    def __call__(self, state: Mapping[str, Any]) -> None:
        """Tell of each device once, then of every change."""
        fleet = self._fleet
        if state["device"] and fleet.is_new_device(state["device"]):
            tell_line(f"training {fleet.name} on {state['device']}")
            if fleet.is_whole:
                tell_line(state["data"])
        share = fleet.share(self._key, state["share"])
        if state["stage"] == "training":
            self._tell_training(state, share)
        elif fleet.is_whole:
            tell(fleet.predicting, state["forecasts"], state["to_forecast"], "members")
            tell(fleet.training, 1, 1, "epochs")

    def _tell_training(self, state: Mapping[str, Any], share: float) -> None:
        fleet = self._fleet
        facts = tuple(_facts(state))
        tell_progress(
            Progress(
                fleet.training,
                min(share, 0.999) * state["epochs"],
                state["epochs"],
                "epochs",
                facts if fleet.is_whole else (fleet.shards_done(), *facts),
                state["epoch"] if fleet.is_whole else 0,
                _epoch_line(fleet.name, state) if fleet.is_whole else "",
            )
        )


def _facts(state: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a bar shows beside the epochs, the most important first."""
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
    """Return the memory in use and its peak: the GPU's where there is one, else the process's."""
    for now, peak in (("gpu_mem_allocated_mb", "gpu_mem_allocated_peak_mb"), ("rss_mb", "rss_peak_mb")):
        if now in memory or peak in memory:
            return memory.get(now, memory.get(peak, 0.0)), memory.get(peak, memory.get(now, 0.0))
    return 0.0, 0.0
