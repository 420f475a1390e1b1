"""Progress of a training: what its trainer writes, and the reports made from it.

`progress.json` is replaced a few times a second, for bars: a listener may miss what a short training wrote there.
Fields: architecture; stage (`training`, then `forecasting` of the spans to be judged, with `forecasts` of `to_forecast`
members done); device in words; data, the candles on it; members; share of all members' epochs that is done, and eta_s,
the estimated seconds left (null: unknown); epoch of epochs, of the rows trained last; train_loss and val_loss, means
over the members of the last complete epoch; trains, the architecture that is trained, in `trains_stage` of
`trains_stages` (an average trains its members one after the other); and other fields of `cpbmodels.EpochRecord` (lr,
windows_per_s, seconds, memory). `digest` covers all others, so that `cpb verify` finds damage.

`epochs.jsonl` has a line per epoch (`Epoch`), beside the checkpoints, so that a resumed training keeps all of them; the
shard's result contains them. `FleetProgress` reads each of them once, from the file while it trains and the rest from
the result, so that the lines that it reports miss none: also of a shard that is over within a poll, or that another
node trained.
"""

import json
import math
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

import cpbmodels
from cpbmodels.files import read_regular
from schemas.errors import counted
from schemas.fleets import is_universal
from schemas.handover import DeviceWork, Epoch, FleetPlan, ShardJob, ShardResult
from tasks.running.cores import usable_cores
from tasks.running.progress import NOT_ENDED, report_line, report_progress
from tasks.storage.files import read_json_or_none
from tasks.storage.records import find_record, value_digest
from tasks.training.plan import job_key
from tasks.training.shard import EPOCHS, PROGRESS, RESULT

_EVERY_S = 0.25
_DIGEST = "digest"

_OF_EPOCH = ("epoch", "epochs", "lr", "windows_per_s", "seconds", "memory")
EPOCHS_PER_LINE = 20
"""Epochs between two lines about a fleet in training."""


class EpochFile:
    """Writes the epochs of a shard in training: `add` is called with each record of `cpbmodels.train_fleet`.

    Models that train apart report epochs of their own; a line says where the shard as a whole stands.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._stage = path, 0
        if path.exists() and not read_regular(path).endswith(b"\n"):
            with path.open("a") as file:
                file.write("\n")  # after a line that a killed process has left unfinished
        self._epochs: dict[int, int] = {}  # by model, the epoch of the models that it trains with
        self._last: dict[int, tuple[float, float]] = {}
        self._active: set[int] = set()

    def add(self, record: "cpbmodels.EpochRecord") -> None:
        """Append an epoch as a line of JSON."""
        if record.stage != self._stage:
            self._stage, self._epochs, self._last, self._active = record.stage, {}, {}, set()
        for model, losses in record.last.items():
            self._epochs[model], self._last[model] = record.epoch, losses
        self._active -= {*record.last}
        self._active |= {member["index"] for member in record.members if not member["stopped"]}
        without_epochs = all(member["stopped"] == "closed_form" for member in record.members)
        models = max(record.of_members, len(self._epochs))
        train_loss, val_loss = (_mean(losses[i] for losses in self._last.values()) for i in (0, 1))
        epoch = Epoch(
            metrics=plain(
                {
                    "epoch": record.epoch,
                    "members_training": len(record.members),
                    "lr": record.lr,
                    "epoch_seconds": record.seconds,
                    "epoch_windows_per_s": record.windows_per_s,
                    **record.memory,
                }
                | _losses(record)
            ),
            architecture=record.architecture,
            stage=record.stage,
            stages=record.stages,
            epoch=sum(self._epochs.values()) / models,
            epochs=0 if without_epochs else record.epochs,
            models=models,
            begun=len(self._epochs),
            train_loss=train_loss,
            val_loss=val_loss,
            ended=not self._active and len(self._epochs) == models,
            cores=usable_cores(),
        )
        with self._path.open("a") as file:
            file.write(f"{epoch.model_dump_json()}\n")


def read_epochs(path: Path) -> tuple[Epoch, ...]:
    """Return the epochs of a shard; a line that a killed process has left unfinished is passed over."""
    return tuple(_epochs_in(read_regular(path))) if path.exists() else ()


def _epochs_in(content: bytes) -> Iterator[Epoch]:
    for line in content.splitlines():
        with suppress(ValueError):
            yield Epoch.model_validate_json(line)


def _losses(record: "cpbmodels.EpochRecord") -> dict[str, float]:
    """Return the means of the finite losses, by name, of the members that trained in an epoch."""
    means = {
        name: _mean(member.get(name, math.nan) for member in record.members)
        for name in ("train_loss", "val_loss")
    }
    return {name: mean for name, mean in means.items() if mean is not None}


def _mean(values: Iterable[float]) -> float | None:
    """Return the mean of the finite values, None without any."""
    finite = [value for value in values if math.isfinite(value)]
    return fmean(finite) if finite else None


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
            text = f"[{rows:,}, {columns}] {record.data_dtype}, {record.data_mb:,.2f} MB"
            name = f"{record.device} ({counted(usable_cores(), 'core')})"
            if record.device != "cpu":
                import torch

                free, total = (size / 1e9 for size in torch.cuda.mem_get_info(record.device))
                chip = torch.cuda.get_device_name(record.device)
                name = f"{record.device} {chip}, {free:.1f} of {total:.1f} GB free"
            self._state["device"] = name
            self._state["data"] = f"Data on {record.device}: {text}"
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
        """Record the share of this stage that each of some members has done."""
        now, before = time.monotonic(), self._state["trains_stage"] - 1
        self._done |= {index: (before + part) / self._state["trains_stages"] for index, part in done.items()}
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


class _Shard:
    """What is known of a shard of a fleet in training.

    `read`: bytes read of its file of epochs, `known` epochs in there or of an earlier run; `newest`: the newest epoch
    of each stage; `is_over`: it has ended, whatever its outcome.
    """

    def __init__(self, job: ShardJob) -> None:
        parts = {(member.fold, member.model.series.timeframe) for member in job.members}
        self.models = len(parts if is_universal(job.architecture) else job.members) * job.seeds
        self.share, self.is_over = 0.0, False
        self.path: Path | None = None
        self.read = self.known = 0
        self.newest: dict[int, Epoch] = {}

    def unread(self) -> list[Epoch]:
        """Return the epochs in the file that were not returned before: whole lines alone."""
        try:
            assert self.path is not None
            with self.path.open("rb") as file:
                file.seek(self.read)
                content, newline, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:  # not begun, or ended: the result contains them
            return []
        self.read += len(content) + len(newline)
        epochs = list(_epochs_in(content))
        self.known += len(epochs)
        return epochs


class FleetProgress:
    """Reports a fleet's shards as one piece of work; its methods are called from the shards' threads.

    A line is reported every `EPOCHS_PER_LINE` epochs, and at the end of each stage of the fleet. Of a fleet in several
    shards, which train one after the other where devices are few, it says where the fleet as a whole stands, so that
    there are as many lines as of a fleet in one: its epoch is the mean over all its models, of those that have not
    begun 0; its losses are the means over the models that have begun; rate, seconds and memory are those of the shard
    that reported last.
    """

    def __init__(self, plan: FleetPlan) -> None:
        self.name, self._step = plan.name, f"train {plan.name}"
        self._shards = {job_key(job): _Shard(job) for job in plan.shards}
        self._devices: set[str] = set()
        self._lines: dict[int, int] = {}  # by stage, the lines' worth of epochs that was reported
        self._open: set[int] = set()  # stages with epochs of this run, and without their last line
        self._lock = threading.Lock()

    def waiting(self, what: str) -> None:
        """Report what a shard waits for, unless other shards are running and shown instead."""
        if not any(shard.share for shard in self._shards.values()):
            report_progress(self._step, 0, 0, "shards", what)

    def begin(self, job: ShardJob, folder: Path) -> None:
        """Read what an earlier run has trained of a shard: no line tells of it again."""
        shard = self._shards[job_key(job)]
        if shard.path is None:
            shard.path = folder / EPOCHS
            with self._lock:
                earlier = find_record(folder / RESULT, ShardResult, of=folder.name)
                epochs = shard.unread() if earlier is None else earlier.reported
                shard.known = len(epochs)
                for epoch in epochs:
                    shard.newest[epoch.stage] = epoch
                    self._lines[epoch.stage] = self._due(epoch.stage)

    def look(self, job: ShardJob) -> None:
        """Read the epochs that a shard's trainer has written since the last call; reports a line where one is due."""
        shard = self._shards[job_key(job)]
        with self._lock:
            for epoch in shard.unread():
                self._take(shard, epoch)

    def trained(self, job: ShardJob, result: ShardResult) -> None:
        """Read the epochs of a shard's result that were not read while it trained."""
        shard = self._shards[job_key(job)]
        with self._lock:
            missed = result.reported[shard.known :]
            shard.known += len(missed)
            for epoch in missed:
                self._take(shard, epoch)

    def ended(self, job: ShardJob) -> None:
        """Record the end of a shard, whatever its outcome."""
        shard = self._shards[job_key(job)]
        with self._lock:
            shard.share, shard.is_over = 1.0, True
            for stage in sorted(self._open):  # a shard that failed has left it
                self._close(stage, shard.newest.get(stage))
        report_progress(self._step, self._share(), len(self._shards), "shards")

    def _share(self) -> float:
        return sum(shard.share for shard in self._shards.values())

    def _take(self, shard: _Shard, epoch: Epoch) -> None:
        """Record a new epoch; report a line if it ends the fleet's stage, or another `EPOCHS_PER_LINE` epochs."""
        shard.newest[epoch.stage] = epoch
        self._open.add(epoch.stage)
        due = self._due(epoch.stage)
        if not self._close(epoch.stage, epoch) and due > self._lines.get(epoch.stage, 0):
            self._lines[epoch.stage] = due
            self._report(epoch)

    def _close(self, stage: int, newest: Epoch | None) -> bool:
        """Report a stage's last line if no shard goes on in it; whether it is reported."""
        left = [
            shard
            for shard in self._shards.values()
            if not (shard.is_over or (stage in shard.newest and shard.newest[stage].ended))
        ]
        if left:
            return False
        self._open.discard(stage)
        newest = newest or next(
            shard.newest[stage] for shard in self._shards.values() if stage in shard.newest
        )
        self._report(newest)
        return True

    def _due(self, stage: int) -> int:
        return int(self._standing(stage)[0]) // EPOCHS_PER_LINE

    def _standing(self, stage: int) -> tuple[float, int, int]:
        """Return a stage's mean epoch over the fleet's models, how many have begun it, and how many there are."""
        epochs, begun, models = 0.0, 0, 0
        for shard in self._shards.values():
            newest = shard.newest.get(stage)
            if newest:
                epochs += newest.models * newest.epoch
                begun, models = begun + newest.begun, models + newest.models
            elif not shard.is_over:  # else it has failed
                models += shard.models
        return epochs / max(models, 1), begun, models

    def _report(self, newest: Epoch) -> None:
        epoch, begun, models = self._standing(newest.stage)
        parts = [self.name]
        if newest.stages > 1:
            parts.append(f"stage {newest.stage} of {newest.stages}: {newest.architecture}")
        parts.append(f"epoch {epoch:.0f}/{newest.epochs}" if newest.epochs else "fitted without epochs")
        for name in ("train_loss", "val_loss"):
            losses = [
                (loss, shard.newest[newest.stage].begun)
                for shard in self._shards.values()
                if newest.stage in shard.newest
                and (loss := getattr(shard.newest[newest.stage], name)) is not None
            ]
            weight = sum(number for _, number in losses)
            mean = sum(loss * number for loss, number in losses) / weight if weight else None
            parts.append(f"{name.removesuffix('_loss')} {'-' if mean is None else f'{mean:.4f}'}")
        cost = newest.metrics
        if newest.epochs:
            parts += [f"lr {cost['lr']:.1e}", f"{cost['epoch_seconds']:.1f} s"]
        parts.append(device_figures(cost, newest.cores))
        if begun < models:
            parts.append(f"{begun:,} of {counted(models, 'model')} begun")
        report_line("  ".join(parts))

    def update(self, job: ShardJob, state: Mapping[str, Any]) -> None:
        """Record a shard's changed `progress.json`: report each device once, then every change."""
        device, shard = state["device"], self._shards[job_key(job)]
        if device and device not in self._devices:
            self._devices.add(device)
            report_line(f"training {self.name} on {device}")
            shards = len(self._shards)
            report_line(state["data"] + (f", the first of {shards:,} shards" if shards > 1 else ""))
        shard.share = min(state["share"], 1 - NOT_ENDED)
        facts, stages = [], state["trains_stages"]  # facts: the most important first
        if stages > 1 and state["stage"] == "training":
            facts.append(f"stage {state['trains_stage']} of {stages}: {state['trains']}")
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
            facts.append(f"lr {state['lr']:.1e}")
        if len(self._shards) == 1 and state["epochs"] and stages == 1:
            report_progress(self._step, shard.share * state["epochs"], state["epochs"], "epochs", *facts)
        elif len(self._shards) == 1 and stages > 1:
            report_progress(self._step, shard.share * stages, stages, "stages", *facts)
        else:
            report_progress(self._step, self._share(), len(self._shards), "shards", *facts)


def device_figures(cost: Mapping[str, float], cores: int) -> str:
    """Return the memory and the use of a device in an epoch: of a GPU if one was used, else of the process.

    Args:
        cost: figures of `cpbmodels.device.monitor.Monitor.latest`.
        cores: those that the process may use.
    """
    if "gpu_mem_allocated_mb" in cost:
        names = {
            "allocated": "gpu_mem_allocated_mb",
            "reserved": "gpu_mem_reserved_mb",
            "peak": "gpu_mem_allocated_peak_mb",
        }
        first, *others = (f"{gigabytes(cost[name])} {word}" for word, name in names.items())
        first = first.replace(" ", " GB ", 1)
        use = f"{cost['gpu_util']:.0f} %" if "gpu_util" in cost else "use not measured"
        return ", ".join([f"GPU {first}", *others, use])
    memory = (
        f"{cost['rss_mb']:,.0f} MB, {cost['rss_peak_mb']:,.0f} peak"
        if cost.get("rss_peak_mb")
        else "memory not measured"
    )
    used = cost.get("cpu_util", 0.0) / 100 * cores
    return f"CPU {memory}, {used:.1f} of {counted(cores, 'core')}"


def gigabytes(megabytes: float) -> str:
    """Return MB as `Monitor` counts them (2^20 bytes) in GB (10^9 bytes), as in `2.34`."""
    return f"{megabytes * 2**20 / 1e9:.2f}"
