"""Progress of a training: `progress.json`, written by its trainer, and the reports made from it.

Fields: architecture; stage (`training`, then `forecasting` of the spans to be judged, with `forecasts` of `to_forecast`
members done); device in words; data, the candles on it; members; share of all members' epochs that is done, and eta_s,
the estimated seconds left (null: unknown); epoch of epochs, of the rows trained last; train_loss and val_loss, means
over the members of the last complete epoch; and other fields of `cpbmodels.EpochRecord` (lr, windows_per_s, seconds,
memory). `digest` covers all others, so that `cpb verify` finds damage.

The cost of every epoch is stored beside the checkpoints (`epochs.jsonl`), so that a resumed training keeps all of
them.
"""

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import cpbmodels
from cpbmodels.files import read_regular
from schemas.errors import count
from schemas.handover import DeviceWork, FleetPlan, ShardJob
from tasks.running.parallel import report_line, report_progress, usable_cores
from tasks.storage.files import read_json_or_none
from tasks.storage.records import value_digest
from tasks.training.plan import job_key
from tasks.training.shard import PROGRESS

_EVERY_S = 0.25
_DIGEST = "digest"


def add_cost(path: Path, record: "cpbmodels.EpochRecord") -> None:
    """Append the cost of a shard's epoch as a line of JSON; members that train apart have epochs of their own.

    `epoch` from 1; `train_loss`, `val_loss` means over the `members_training`; `lr`; `epoch_seconds` and
    `epoch_windows_per_s`; memory in MB, utilisation in percent: their names in MLflow.
    """
    cost = {
        "epoch": record.epoch, "members_training": len(record.members), "lr": record.lr,
        "epoch_seconds": record.seconds, "epoch_windows_per_s": record.windows_per_s, **record.memory,
    } | _losses(record)  # fmt: skip
    with path.open("a") as file:
        file.write(f"{json.dumps(plain(cost))}\n")


def read_costs(path: Path) -> Iterator[dict[str, float]]:
    """Yield the costs of a shard's epochs; a line that a killed process has left unfinished is passed over."""
    for line in read_regular(path).decode().splitlines() if path.exists() else ():
        with suppress(ValueError):
            yield json.loads(line)


def _losses(record: "cpbmodels.EpochRecord") -> dict[str, float]:
    """Return the means of the members' finite losses, by name."""
    losses = {}
    for name in ("train_loss", "val_loss"):
        finite = [member[name] for member in record.members if math.isfinite(member.get(name, math.nan))]
        if finite:
            losses[name] = fmean(finite)
    return losses


def busy_share(work: Sequence[DeviceWork], cores: int) -> dict[str, float]:
    """Return `device_busy_share`: the share of time from the first shard's start to the last's end with devices busy.

    For GPUs, the seconds in which a kernel ran, averaged over the GPUs that trained; nothing if a driver does not say
    it. For a CPU, the trainers' CPU time divided by its cores.
    """
    span = max(shard.end for shard in work) - min(shard.begin for shard in work)
    gpus = {shard.device for shard in work if shard.device}
    seconds = [shard.busy_s if shard.device else shard.cpu_s for shard in work]
    if span <= 0 or None in seconds:
        return {}
    return {"device_busy_share": sum(filter(None, seconds)) / (span * (len(gpus) or cores))}


class ProgressFile:
    """Writes a shard's `progress.json`: `on_step` and `on_epoch` are callbacks of `cpbmodels.train_fleet`."""

    def __init__(self, folder: Path, architecture: str) -> None:
        self._path, self._written = folder / PROGRESS, 0.0
        self._done: dict[int, float] = {}  # by member, the share of its epochs
        self._began = (0.0, time.monotonic())  # the share and time from which the time left is estimated
        self._state: dict[str, Any] = {
            "architecture": architecture, "stage": "training", "device": None, "data": None, "members": 0,
            "share": 0.0, "eta_s": None, "epoch": 0, "epochs": 0, "train_loss": None, "val_loss": None,
        }  # fmt: skip

    def on_step(self, record: "cpbmodels.StepRecord") -> None:
        """Record the progress within an epoch."""
        first = self._state["device"] is None
        if first:
            rows, columns = record.data
            text = f"[{rows:,}, {columns}] {record.data_dtype}, {record.data_mb:,.2f} MB"
            name = f"{record.device} ({count(usable_cores(), 'core')})"
            if record.device != "cpu":
                import torch

                free, total = (size / 1e9 for size in torch.cuda.mem_get_info(record.device))
                chip = torch.cuda.get_device_name(record.device)
                name = f"{record.device} {chip}, {free:.1f} of {total:.1f} GB free"
            self._state["device"] = name
            self._state["data"] = f"Data on {record.device}: {text}"
        self._state["members"] = record.of_members
        done = (record.epoch - 1 + record.step / record.steps) / record.epochs
        self._count(dict.fromkeys(record.members, done))
        self._state |= {"epoch": record.epoch - 1, "epochs": record.epochs}
        self._write(now=first)

    def on_epoch(self, record: "cpbmodels.EpochRecord") -> None:
        """Record a complete epoch."""
        done = record.epoch / record.epochs
        self._count({m["index"]: 1.0 if m["stopped"] else done for m in record.members})
        values = plain(asdict(record))
        del values["members"]
        self._state |= values | {"train_loss": None, "val_loss": None} | _losses(record)
        self._write(now=all(member["stopped"] for member in record.members))

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

    def _count(self, done: Mapping[int, float]) -> None:
        now = time.monotonic()
        self._done |= done
        share = sum(self._done.values()) / max(self._state["members"], len(self._done))
        if share < self.share or not self.share:  # the next fold's universal model restarts at 0 %
            self._began = (share, now)
        first, since = self._began
        left = (now - since) / (share - first) * (1 - share) if share > first else None
        self._state |= {"share": share, "eta_s": left}

    def _write(self, *, now: bool) -> None:
        """Replace the file without fsync: it is not needed after a power failure."""
        if not now and time.monotonic() - self._written < _EVERY_S:
            return
        self._written = time.monotonic()
        draft = self._path.with_suffix(".tmp")
        state = plain(self._state)
        draft.write_text(json.dumps(state | {_DIGEST: value_digest(state)}))
        draft.replace(self._path)


def progress_fault(path: Path) -> str:
    """Return the fault of a `progress.json`, "" for none."""
    state = read_json_or_none(path)
    if not isinstance(state, dict):
        return "it is not the JSON of a training's progress"
    digest = state.pop(_DIGEST, "")
    return (
        ""
        if digest == value_digest(state)
        else "it is not the progress that was written (its digest differs)"
    )


def plain(value: Any) -> Any:
    """Convert numbers of numpy and torch to Python's."""
    return json.loads(json.dumps(value, default=float))


class FleetProgress:
    """Reports a fleet's shards as one piece of work; its methods are called from the shards' threads."""

    def __init__(self, plan: FleetPlan) -> None:
        self.name, self._step = plan.name, f"train {plan.name}"
        self._shares = dict.fromkeys(map(job_key, plan.shards), 0.0)
        self._devices: set[str] = set()

    def waiting(self, what: str) -> None:
        """Report what a shard waits for, unless other shards are running and shown instead."""
        if not any(self._shares.values()):
            report_progress(self._step, 0, 0, "shards", what)

    def ended(self, job: ShardJob) -> None:
        """Record the end of a shard, whatever its outcome."""
        self._shares[job_key(job)] = 1.0
        report_progress(self._step, sum(self._shares.values()), len(self._shares), "shards")

    def update(self, job: ShardJob, state: Mapping[str, Any]) -> None:
        """Record a shard's changed `progress.json`: report each device once, then every change."""
        device = state["device"]
        if device and device not in self._devices:
            self._devices.add(device)
            report_line(f"training {self.name} on {device}")
            if len(self._shares) == 1:
                report_line(state["data"])
        self._shares[job_key(job)] = min(state["share"], 0.999)  # until the shard has ended
        facts = []  # the most important first
        if state["stage"] != "training":
            facts.append(
                f"forecasts the spans to be judged: {state['forecasts']:,}/{state['to_forecast']:,} members"
            )
        elif "windows_per_s" in state:
            losses = [state["train_loss"], state["val_loss"]]
            facts.append("loss " + " / ".join("-" if loss is None else f"{loss:.4f}" for loss in losses))
            facts.append(f"{state['windows_per_s']:,.0f} windows/s")
            memory = state["memory"]
            facts.append(f"{memory.get('gpu_mem_allocated_peak_mb', memory.get('rss_peak_mb', 0.0)):,.0f} MB")
        if len(self._shares) == 1 and state["epochs"]:
            report_progress(
                self._step, self._shares[job_key(job)] * state["epochs"], state["epochs"], "epochs", *facts
            )
        else:
            report_progress(self._step, sum(self._shares.values()), len(self._shares), "shards", *facts)
