"""`progress.json` of a shard, which its trainer replaces a few times a second, for bars.

A listener may miss what a short training wrote there. Fields: architecture; stage (`training`, then `forecasting` of
the spans to be judged, with `forecasts` of `to_forecast` members done); device in words; data, the candles on it;
members; share of all members' epochs that is done, and eta_s, the estimated seconds left (null: unknown); epoch of
epochs, of the rows trained last; train_loss and val_loss, means over the members of the last complete epoch; trains,
the architecture that is trained, in `trains_stage` of `trains_stages` (an average trains its members one after the
other); and other fields of `cpbmodels.EpochRecord` (lr, windows_per_s, seconds, memory). `digest` covers all others, so
that `cpb verify` finds damage.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cpbmodels
from schemas.errors import counted
from tasks.running.cores import usable_cores
from tasks.storage.files import read_json_or_none
from tasks.storage.records import value_digest
from tasks.training.epochs import mean_losses, plain
from tasks.training.shard import PROGRESS

_EVERY_S = 0.25
_DIGEST = "digest"

_OF_EPOCH = ("epoch", "epochs", "lr", "windows_per_s", "seconds", "memory")


def _stage(record: "cpbmodels.EpochRecord | cpbmodels.StepRecord") -> dict[str, Any]:
    return {
        "trains": record.architecture,
        "trains_stage": record.stage,
        "trains_stages": record.stages,
    }


class ProgressFile:
    """Writes a shard's `progress.json`: `on_step` and `on_epoch` are callbacks of `cpbmodels.train_fleet`."""

    def __init__(self, folder: Path, architecture: str) -> None:
        self._path, self._written = folder / PROGRESS, 0.0
        self._done: dict[int, float] = {}  # by member, the share of its epochs
        self._began = (0.0, time.monotonic())  # the share and time from which the time left is estimated
        self._state: dict[str, Any] = {
            "architecture": architecture,
            "stage": "training",
            "device": None,
            "data": None,
            "members": 0,
            "share": 0.0,
            "eta_s": None,
            "epoch": 0,
            "epochs": 0,
            "train_loss": None,
            "val_loss": None,
            "trains": architecture,
            "trains_stage": 1,
            "trains_stages": 1,
        }

    def on_step(self, record: "cpbmodels.StepRecord") -> None:
        """Record the progress within an epoch."""
        first = self._state["device"] is None
        if first:
            rows, columns = record.data
            name = f"{record.device} ({counted(usable_cores(), 'core')})"
            if record.device != "cpu":
                import torch

                free, total = (size / 1e9 for size in torch.cuda.mem_get_info(record.device))
                chip = torch.cuda.get_device_name(record.device)
                name = f"{record.device} {chip}, {free:.1f} of {total:.1f} GB free"
            self._state["device"] = name
            self._state["data"] = (
                f"{rows:,} candles of {counted(columns, 'column')}, {record.data_mb:,.2f} MB as {record.data_dtype}"
            )
        self._state["members"] = record.of_members
        self._state |= _stage(record)
        done = (record.epoch - 1 + record.step / record.steps) / record.epochs
        self._count(dict.fromkeys(record.members, done))
        self._state |= {"epoch": record.epoch - 1, "epochs": record.epochs}
        self._write(now=first)

    def on_epoch(self, record: "cpbmodels.EpochRecord") -> None:
        """Record a complete epoch."""
        self._state |= _stage(record)
        done = record.epoch / record.epochs
        self._count({m["index"]: 1.0 if m["stopped"] else done for m in record.members})
        values = {name: plain(getattr(record, name)) for name in _OF_EPOCH}
        self._state |= values | {"train_loss": None, "val_loss": None} | mean_losses(record)
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
        """Record the share of this stage that each of some members has done."""
        now, before = time.monotonic(), self._state["trains_stage"] - 1
        self._done |= {index: (before + part) / self._state["trains_stages"] for index, part in done.items()}
        share = sum(self._done.values()) / max(self._state["members"], len(self._done))
        if share < self.share or not self.share:  # the next fold's universal model restarts at 0 %
            self._began = (share, now)
        first, since = self._began
        # At the pace since the start of this training alone: a resumed one begins at the share that it found.
        left = (now - since) / (share - first) * (1 - share) if share > first else None
        self._state |= {"share": share, "eta_s": left}

    def _write(self, *, now: bool) -> None:
        """Replace the file without fsync: it is not needed after a power failure."""
        if not now and time.monotonic() - self._written < _EVERY_S:
            return
        self._written = time.monotonic()
        # Replaced, so that no reader sees half of it.
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
