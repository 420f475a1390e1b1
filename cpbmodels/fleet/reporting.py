"""What a training tells while it runs: `on_step` how far an epoch has come, `on_epoch` what it cost and reached."""

from __future__ import annotations

from collections.abc import Callable

from cpbmodels.fleet.bank import Bank
from cpbmodels.fleet.job import EpochRecord, Job, StepRecord
from cpbmodels.fleet.loop import EpochCost, Loop


def step_reporter(job: Job, bank: Bank) -> Callable[[Loop, int, int], bool]:
    """Calls `on_step` with the loop's progress within its epoch; whether the members must stop now."""
    rows = bank.rows

    def report(loop: Loop, step: int, steps: int) -> bool:
        record = StepRecord(
            epoch=loop.epoch + 1,
            epochs=max(own.epochs for own in loop.own_options),
            step=step,
            steps=steps,
            members=[loop.tasks[task].index for task in loop.order[: loop.active]],
            of_members=job.of_members,
            device=str(rows.device),
            data=(rows.shape[0], rows.shape[1]),
            data_dtype=str(rows.dtype).removeprefix("torch."),
            data_mb=rows.numel() * rows.element_size() / 1e6,
        )
        assert job.on_step is not None
        with job.lock:  # fleets side by side report one at a time
            return bool(job.on_step(record))

    return report


def epoch_reporter(job: Job) -> Callable[[Loop, EpochCost], None]:
    """Calls `on_epoch` with the members that trained in the loop's last epoch, and stops those it returns."""

    def report(loop: Loop, cost: EpochCost) -> None:
        members = [
            {
                "index": loop.tasks[task].index,
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
            epochs=max(own.epochs for own in loop.own_options),
            lr=members[0]["lr"],
            members=members,
            windows_per_s=cost.windows_per_s,
            seconds=cost.seconds,
            memory=cost.memory,
        )
        with job.lock:  # fleets side by side report one at a time
            unwanted = set(job.on_epoch(record) or ())
        for task, progress in zip(loop.tasks, loop.progress, strict=True):
            if task.index in unwanted and not progress.stopped:
                progress.stopped, progress.reason = (
                    "on_request",
                    f"stopped on request after epoch {loop.epoch}",
                )

    return report
