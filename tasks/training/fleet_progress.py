"""The progress of a fleet in training: bars from its shards' `progress.json`, lines from their epochs.

Each epoch is read once, from the shard's file while it trains and the rest from its result, so that the lines that are
reported miss none: also of a shard that is over within a poll, or that another node trained.
"""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schemas.errors import counted
from schemas.fleets import is_universal
from schemas.handover import Epoch, FleetPlan, ShardJob, ShardResult
from tasks.running.progress import NOT_ENDED, report_line, report_progress
from tasks.storage.records import find_record
from tasks.training.cost import device_figures
from tasks.training.epochs import epochs_in
from tasks.training.plan import job_key
from tasks.training.shard import EPOCHS, RESULT

EPOCHS_PER_LINE = 20
"""Epochs between two lines about a fleet in training."""


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
        epochs = list(epochs_in(content))
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

    def name_of(self, job: ShardJob) -> str:
        """Return the name of a shard: `gru 1h`, of several `gru 1h 3 of 5`."""
        timeframes = dict.fromkeys(member.model.series.timeframe for member in job.members)
        number = [*self._shards].index(job_key(job)) + 1
        which = f" {number} of {len(self._shards)}" if len(self._shards) > 1 else ""
        return f"{self.name} {','.join(timeframes)}{which}"

    def waiting(self, what: str) -> None:
        """Report what a shard waits for, unless other shards are running and shown instead."""
        if not any(shard.share for shard in self._shards.values()):
            report_progress(self._step, 0, 0, "parts", what)

    def begin(self, job: ShardJob, folder: Path) -> None:
        """Read what an earlier run has trained of a shard: no line tells of it again."""
        shard = self._shards[job_key(job)]
        if shard.path is None:
            shard.path = folder / EPOCHS
            with self._lock:
                earlier = find_record(folder / RESULT, ShardResult)
                epochs = shard.unread() if earlier is None else earlier.reported
                shard.known = len(epochs)
                for epoch in epochs:
                    shard.newest[epoch.stage] = epoch
                    self._lines[epoch.stage] = self._due(epoch.stage)

    def read_written(self, job: ShardJob) -> None:
        """Read the epochs that a shard's trainer has written since the last call; reports a line where one is due."""
        shard = self._shards[job_key(job)]
        with self._lock:
            for epoch in shard.unread():
                self._record(shard, epoch)

    def trained(self, job: ShardJob, result: ShardResult) -> None:
        """Read the epochs of a shard's result that were not read while it trained."""
        shard = self._shards[job_key(job)]
        with self._lock:
            # An epoch that was read from the file is in the result too: only the rest is new.
            missed = result.reported[shard.known :]
            shard.known += len(missed)
            for epoch in missed:
                self._record(shard, epoch)

    def ended(self, job: ShardJob) -> None:
        """Record the end of a shard, whatever its outcome."""
        shard = self._shards[job_key(job)]
        with self._lock:
            shard.share, shard.is_over = 1.0, True
            # The others may have ended the stage before: then nobody else reports its last line.
            for stage in sorted(self._open):  # a shard that failed has left it
                self._close(stage, shard.newest.get(stage))
        report_progress(self._step, self._share(), len(self._shards), "parts")

    def _share(self) -> float:
        return sum(shard.share for shard in self._shards.values())

    def _record(self, shard: _Shard, epoch: Epoch) -> None:
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
        # Each device once, however many shards train there.
        device, shard = state["device"], self._shards[job_key(job)]
        if device and device not in self._devices:
            self._devices.add(device)
            parts = len(self._shards)
            data = f"in {parts:,} parts, the first with {state['data']}" if parts > 1 else state["data"]
            report_line(f"training {self.name} on {device}: {data}")
        # Trained is not ended: forecasts and files are still to come, and a bar at its end would vanish.
        shard.share = min(state["share"], 1 - NOT_ENDED)
        facts, stages = [], state["trains_stages"]  # facts: the most important first
        if stages > 1 and state["stage"] == "training":
            facts.append(f"stage {state['trains_stage']} of {stages}: {state['trains']}")
        if state["stage"] != "training":
            facts.append(
                f"forecasts the spans to be judged: {state['forecasts']:,}/{state['to_forecast']:,} models"
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
            report_progress(self._step, self._share(), len(self._shards), "parts", *facts)
