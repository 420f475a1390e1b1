"""The only training loop: epochs of a fleet, early stop and best snapshot per member, checkpoints.

A member is active until it stops. The first rows take part in a step (`stepped`): those of the active members
and, on a GPU, of a few stopped members beside them. Those are still updated, but their result is the saved snapshot.
"""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cpbmodels.arch.options import IN_RATE
from cpbmodels.device.monitor import Monitor
from cpbmodels.fleet.bank import epoch_order, steps_per_epoch
from cpbmodels.fleet.checkpoints import Checkpoints, is_same
from cpbmodels.fleet.fleet import Fleet, rate_tensor
from cpbmodels.fleet.graphs import Graphs, StepRunner, ValidationRunner
from cpbmodels.fleet.job import FleetJob, Stopped
from cpbmodels.fleet.member_progress import MemberProgress
from cpbmodels.fleet.net import windows_in_flight
from cpbmodels.fleet.rates import learning_rate, step_rates
from cpbmodels.fleet.records import EpochRecord, StepRecord

REPORT_INTERVAL_S = 0.3
"""Seconds between two reports within an epoch: often enough for a bar, and nothing beside the steps."""


class Loop:
    """Trains one fleet to the end. Row r of the fleet belongs to task `order[r]`."""

    def __init__(self, job: FleetJob, fleet: Fleet, monitor: Monitor) -> None:
        self.job, self.fleet, self.monitor = job, fleet, monitor
        self.bank, self.tasks, self.options = job.bank, job.tasks, job.options
        self.last_report, self.stop_requested = 0.0, False
        self.progress = [MemberProgress() for _ in self.tasks]
        # The micro-batches are the fleet's: they are doubled when memory runs out.
        self.own_options = [replace(task.options, accumulate=self.options.accumulate) for task in self.tasks]
        self.steps = [steps_per_epoch(task, self.options) for task in self.tasks]
        self.order = list(range(len(self.tasks)))
        self.epoch, self.windows, self.seconds = 0, 0, 0.0
        self.planned: dict[tuple[int, int], np.ndarray] = {}  # by epoch and task, what `epoch_order` gives
        device = fleet.flat.device
        self.graphs = Graphs(device) if self.options.cuda_graph and device.type == "cuda" else None
        self.runner = StepRunner(fleet, self.bank, self.graphs)
        in_flight = windows_in_flight(self.options.context, device)
        self.validator = ValidationRunner(fleet, self.bank, self.graphs, in_flight)
        self.validation: tuple[Tensor, Tensor] | None = None
        self.rates_differ = any(
            getattr(options, name) != getattr(self.options, name)
            for options in self.own_options
            for name in IN_RATE
        )
        self.steps_taken = torch.empty(0)  # steps [stepped] of this epoch, on the device
        self.compact()

    @property
    def active(self) -> int:
        """Members still training: the first rows."""
        return sum(not progress.stopped for progress in self.progress)

    @property
    def stepped(self) -> int:
        """Rows that take part in a step: the active rows, on a GPU rounded up so that few graphs are needed."""
        return min(-(-self.active // self.runner.bucket) * self.runner.bucket, len(self.tasks))

    def compact(self) -> None:
        """Move stopped members to the back and, before them, those with fewer steps: a step's rows are a prefix."""
        # Both sorts are stable: rows that are alike keep their order, so that few epochs move anything.
        rows = sorted(range(len(self.order)), key=lambda row: bool(self.progress[self.order[row]].stopped))
        stepped = sorted(rows[: self.stepped], key=lambda row: -self.steps[self.order[row]])
        rank = stepped + rows[self.stepped :]
        if rank != list(range(len(rank))):
            self.fleet.reorder(torch.tensor(rank, device=self.fleet.flat.device))
            self.order = [self.order[row] for row in rank]
            self.validation = None  # its rows lie in the old order

    def run(self, checkpoints: Checkpoints | None) -> None:
        """Epoch after epoch until every member has stopped."""
        self.report_progress(0, max(self.steps))
        while self.active:
            started = time.perf_counter()
            windows = self.train_epoch()
            if self.stop_requested:  # snapshots are of earlier epochs, or the initial weights
                for progress in self.progress:
                    if not progress.stopped:
                        progress.stopped = "on_request"
                        progress.reason = f"stopped on request within epoch {self.epoch + 1}"
                return
            self.validate_epoch()
            if checkpoints is not None and self.active:  # nothing continues from the last epoch
                checkpoints.save(self.epoch, self.tensors(), self.state())
            seconds = time.perf_counter() - started
            self.windows, self.seconds = self.windows + windows, self.seconds + seconds
            self.report_epoch(windows, seconds)
            self.compact()

    def train_epoch(self) -> int:
        """All steps of one epoch, without a copy to the host. Returns the number of windows learnt from."""
        self.fleet.loss_sum.zero_()
        self.validation_windows()  # every copy to the device comes before the steps: it waits for what is queued
        origins, weight, windows = self.plan_epoch()
        steps = [self.steps[task] for task in self.order[: self.stepped]]
        self.steps_taken = self.fleet.loss_sum.new_tensor(steps)  # a copy, so it too comes before the steps
        rates = rate_tensor(self.rates(max(steps)), origins.device)  # [steps] or [steps, stepped]
        self.runner.load(origins, weight, rates, unequal=min(steps) < max(steps))
        for step in range(max(steps)):
            if self.job.stop.is_set():
                raise Stopped("this fleet was stopped with the others; resume continues from its last epoch")
            if self.stop_requested:
                break
            # rows of members with fewer steps come last
            self.runner.step(sum(number > step for number in steps))
            self.report_progress(step + 1, max(steps))
        return windows

    def report_progress(self, step: int, steps: int) -> None:
        """Report the steps done of this epoch, at most every `REPORT_INTERVAL_S`, from the host alone."""
        if (now := time.perf_counter()) - self.last_report >= REPORT_INTERVAL_S:
            self.last_report = now
            self.stop_requested = self.report_step(step, steps)

    def report_step(self, step: int, steps: int) -> bool:
        """Call the job's `on_step` with the steps done of this epoch; whether the members shall stop now."""
        job, rows = self.job, self.bank.rows
        if job.on_step is None:
            return False
        record = StepRecord(
            epoch=self.epoch + 1,
            epochs=max(options.epochs for options in self.own_options),
            step=step,
            steps=steps,
            members=[self.tasks[task].index for task in self.order[: self.active]],
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

    def report_epoch(self, windows: int, seconds: float) -> None:
        """Call the job's `on_epoch` with the members that trained in the last epoch; stop those that it returns."""
        job, pairs = self.job, list(zip(self.tasks, self.progress, strict=True))
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
            if progress.history and progress.history[-1]["epoch"] == self.epoch
        ]
        record = EpochRecord(
            epoch=self.epoch,
            epochs=max(options.epochs for options in self.own_options),
            lr=members[0]["lr"],
            members=members,
            windows_per_s=windows / seconds,
            seconds=seconds,
            memory=self.monitor.latest(),
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
                progress.reason = f"stopped on request after epoch {self.epoch}"

    def rates(self, steps: int) -> np.ndarray:
        """Learning rates of the epoch's steps: [steps], or [steps, rows] if members differ in `IN_RATE`."""
        if not self.rates_differ:
            return step_rates(self.options, self.epoch, steps)
        stepped = self.order[: self.stepped]
        return np.stack([step_rates(self.own_options[task], self.epoch, steps) for task in stepped], 1)

    def plan_epoch(self) -> tuple[Tensor, Tensor, int]:
        """Rows and weights [stepped, steps x B] of the epoch's windows, on the device; how many windows they are.

        Places beyond a member's windows hold its first window with weight 0.
        """
        stepped, windows = self.order[: self.stepped], []
        for task in stepped:
            # shuffled while a GPU validated the epoch before
            ahead = self.planned.pop((self.epoch, task), None)
            windows.append(self._epoch_order(task, self.epoch) if ahead is None else ahead)
        self.planned.clear()  # what is left belongs to members that have stopped
        width = max(self.steps[task] for task in stepped) * self.options.batch_size
        rows, weight = self.padded(windows, [rows[0] for rows in windows], width)
        return rows, weight, sum(map(len, windows))

    def padded(
        self, windows: Sequence[np.ndarray], fillers: Sequence[int], width: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Windows of each member as [members, width or more], on the device, and their weights: 0 for its filler."""
        counts = np.array(list(map(len, windows)))[:, None]
        width = max(width, int(counts.max()))
        rows = np.repeat(np.array(fillers)[:, None], width, 1)
        weight = np.arange(width) < counts
        rows[weight] = np.concatenate(windows)
        flat = self.fleet.flat
        return torch.as_tensor(rows).to(flat.device), torch.as_tensor(weight).to(flat)

    def _epoch_order(self, task: int, epoch: int) -> np.ndarray:
        return epoch_order(self.tasks[task], epoch, self.steps[task], self.options.batch_size)

    def plan_ahead(self) -> None:
        """Shuffle the next epoch's windows of the members that may still train then."""
        following = self.epoch + 1
        for task in self.order[: self.stepped]:
            if following < self.own_options[task].epochs:
                self.planned[following, task] = self._epoch_order(task, following)

    def validate_epoch(self) -> None:
        """Validate, record the losses, save snapshots of the members that improved. The epoch's only sync is here."""
        stepped = self.order[: self.stepped]
        val = self.validator.run(len(stepped))
        # Both losses of all rows as one tensor [2, stepped], so that the host waits for the device once.
        on_device = torch.stack([self.fleet.loss_sum[: len(stepped)] / self.steps_taken, val]).double()
        if self.graphs is not None:
            self.plan_ahead()  # the GPU is still at work: the next line waits for it
        losses = on_device.tolist()
        better = []
        for row, task in enumerate(stepped):
            progress, train_loss, val_loss = self.progress[task], losses[0][row], losses[1][row]
            if progress.stopped:  # stepped beside the others to fill a graph's rows; its snapshot stands
                continue
            options = self.own_options[task]
            rate = learning_rate(options, self.epoch)
            if progress.record(self.epoch, train_loss, val_loss, rate, options):
                better.append(row)
        rows = torch.tensor(better, dtype=torch.long, device=self.fleet.flat.device)
        self.fleet.best[rows] = self.fleet.flat[rows]  # [better, P], the weights that validated best so far
        self.epoch += 1

    def validation_windows(self) -> tuple[Tensor, Tensor]:
        """Rows and weights [K, V] of all members' validation windows; moved to the device once per ordering."""
        if self.validation is None:
            tasks = [self.tasks[task] for task in self.order]
            # Any row of the member's own will do if it has fewer windows: their weight is 0.
            self.validation = self.padded([t.validation for t in tasks], [t.train[0] for t in tasks])
            self.validator.load(*self.validation)
        return self.validation

    def tensors(self) -> dict[str, Tensor]:
        """Everything on the device that a resumed training needs."""
        fleet = self.fleet
        return {
            "flat": fleet.flat,
            "first": fleet.first,
            "second": fleet.second,
            "steps": fleet.steps,
            "best": fleet.best,
            **({"scale": fleet.scale} if fleet.scale is not None else {}),
        }

    def state(self) -> dict[str, Any]:
        """Everything else, as plain values."""
        return {
            "epoch": self.epoch,
            "order": self.order,
            "progress": [asdict(progress) for progress in self.progress],
            "windows": self.windows,
            "seconds": self.seconds,
            "training": self.identity(),
        }

    def identity(self) -> dict[str, Any]:
        """What must be equal for a checkpoint to belong to this training."""
        no_effect = ("fleet_size", "workers", "cuda_graph")  # how it runs, not what it computes
        # Options that all members share are written once; else each member by its place in the list.
        different = list(dict.fromkeys(self.own_options))
        each = [
            repr(sorted((k, v) for k, v in options.as_dict().items() if k not in no_effect))
            for options in different
        ]
        places = [different.index(options) for options in self.own_options]
        options = each[0] if len(each) == 1 else repr((each, places))
        digest = hashlib.sha256()
        for task in self.tasks:
            for part in (task.train, task.validation, task.mean, task.inverse):
                digest.update(np.ascontiguousarray(part).tobytes())
        seeds = [task.seed for task in self.tasks]
        return {"options": options, "seeds": seeds, "windows": digest.hexdigest()}

    def resume(self, checkpoints: Checkpoints) -> bool:
        """Continue from the newest checkpoint; False if there is none for these members."""
        if (checkpoint := checkpoints.latest()) is None:
            return False
        tensors, state = checkpoint
        # Other members of this training start from scratch; a checkpoint of another training is an error.
        if not is_same(state["training"], self.identity(), checkpoints.folder):
            return False
        self.fleet.reorder(
            torch.tensor([self.order.index(task) for task in state["order"]]).to(self.fleet.flat.device)
        )
        for name, tensor in self.tensors().items():
            tensor.copy_(tensors[name])  # in place: prefixes and graphs hold views of these tensors
        self.order, self.epoch = state["order"], state["epoch"]
        self.windows, self.seconds = state["windows"], state["seconds"]
        self.progress = [MemberProgress(**values) for values in state["progress"]]
        self.validation = None
        self.compact()
        return True
