"""The cost of every epoch of a fleet, stored beside its checkpoints so that a resumed training keeps all epochs.

On a CPU a job's members train in several fleets concurrently, on a GPU possibly one after another: each fleet reports
its own epochs, and `epoch_costs` joins the reports of the same epoch.
"""

import json
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import cpbmodels
from schemas.handover import DeviceWork
from tasks.storage.files import write_bytes

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

    def add(self, record: cpbmodels.EpochRecord) -> None:
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
    """Return `device_busy_share`: the share of time from the first batch to the last in which devices were busy.

    For GPUs, the seconds with a batch in flight, averaged over the GPUs that trained; for a CPU, the trainers' CPU
    time divided by its cores.
    """
    span = max(one.end for one in work) - min(one.begin for one in work)
    gpus = {one.device for one in work if one.device}
    seconds = sum(one.busy_s if one.device else one.cpu_s for one in work)
    return {"device_busy_share": seconds / (span * (len(gpus) or cores))} if span > 0 else {}


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


def _report(record: cpbmodels.EpochRecord, ended: float) -> dict[str, Any]:
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


def _mean(values: Iterable[float]) -> float | None:
    """Return the mean of the finite values."""
    finite = [value for value in values if math.isfinite(value)]
    return fmean(finite) if finite else None
