"""`progress.json` of a fleet in training, or of a search's batch: written by its trainer, read by terminal and page.

Fields: architecture; stage (`training`, then `forecasting`: the spans to be judged, with `forecasts` of `to_forecast`
members done, then `judging`, with `judged` of `to_judge`); since, the start of this training (ISO, UTC); device in
words; data, the candles on it; members; share of all members' epochs that is done, and eta_s, the seconds left at the
pace so far (null: not known); epoch of epochs and batch of batches, of the rows that trained last; train_loss and
val_loss, means over the members of the last whole epoch; and what `cpbmodels.EpochRecord` holds (lr, windows_per_s,
seconds, memory, and its members as `last`).
"""

import json
import os
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import cpbmodels
from tasks.training.process import PROGRESS

_EVERY_S = 0.25


class Shares:
    """How much of their epochs the members of one `cpbmodels.train_fleet` have trained."""

    def __init__(self) -> None:
        self._done: dict[int, float] = {}  # by member, from 0 to 1
        self.members = 0

    def on_step(self, record: cpbmodels.StepRecord) -> float:
        """Take in how far an epoch is; returns the share of all members' epochs."""
        self.members = record.of_members
        done = (record.epoch - 1 + record.step / record.steps) / record.epochs
        self._done |= dict.fromkeys(record.members, done)
        return self._share()

    def on_epoch(self, record: cpbmodels.EpochRecord) -> float:
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

    def on_step(self, record: cpbmodels.StepRecord) -> None:
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

    def on_epoch(self, record: cpbmodels.EpochRecord) -> None:
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

    def judging(self, done: int, total: int) -> None:
        """Tell how many members have been judged."""
        self._state |= {"stage": "judging", "share": 1.0, "eta_s": None, "judged": done, "to_judge": total}
        self._write(now=done in (0, total))  # also the last one: the file stays

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
    device = torch.device(name)
    if device.type != "cuda":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
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
