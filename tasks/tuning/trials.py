"""A batch of trials: each trial on all series and folds as rows of fleets, scored on the folds' own test spans.

The folds are those of a backtest with one more fold: the newest fold, whose test span no trial sees, is for the winner.
"""

import time
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import cpbmodels
from cpbmodels.fleet.predict import predict_each
from tasks.backtesting.folds import FoldSeries
from tasks.judging.baselines import reference
from tasks.judging.inference import block_ids, block_length
from tasks.judging.member import step_us, times_of
from tasks.judging.scores import crps, realised
from tasks.running.progress import report_progress
from tasks.training.plan import member_seed

_TRAINING = "train trials"

Array = NDArray[np.float64]
Prune = Callable[[int, int, float], bool]
"""(trial of the batch, epoch from 1, mean loss of its members) -> whether to prune the trial."""


@dataclass(frozen=True)
class Scored:
    """One fold of a series: the scored origins, and the reference's losses there.

    origins: every horizon-th origin of the fold's test span, so that targets do not overlap.
    truth: [N, H]. mean: the reference's mean CRPS, the unit of all losses. blocks: block of time of each origin.
    losses: the reference's CRPS [N] in that unit.
    """

    fold: FoldSeries
    origins: NDArray[np.int64]
    truth: Array
    mean: float
    blocks: NDArray[np.int64]
    losses: Array


@dataclass(frozen=True)
class TrialResult:
    """ratio: mean CRPS over the reference's, None if a member diverged. losses: sums per block of time.

    epochs: maximum trained by any of its members.
    """

    ratio: float | None
    losses: list[float]
    pruned: bool
    epochs: int


def prepare(folds: Sequence[FoldSeries], options: cpbmodels.Preset) -> list[Scored]:
    """Return each fold with its reference and its blocks of calendar time, shared by all series."""
    horizon, context = options.horizon, options.context
    prepared, start = [], None
    for fold in folds:
        series = fold.series
        # Every horizon-th: sums of losses per block are then sums over targets that do not overlap, and a batch of
        # 64 trials is scored in a tenth of the time.
        origins = series.origins("test", context, horizon)[::horizon]
        fitted = series.origins("train", context, horizon)
        truth = realised(series, origins, horizon)
        loss = crps(reference(series, fitted, origins, horizon), truth).mean(1)
        prepared.append((fold, origins, truth, loss, times_of(series, origins)))
        start = min(int(prepared[-1][4].min()), start) if start is not None else int(prepared[-1][4].min())
    # Blocks as long as the longest fold asks for, counted from the oldest origin: the same for all series and folds.
    longest = max(len(series_times) for *_, series_times in prepared)
    length = block_length(horizon, longest * horizon)
    return [
        Scored(
            fold=fold,
            origins=origins,
            truth=truth,
            mean=float(loss.mean()),
            blocks=block_ids(times, length * step_us(fold.series), start),
            # In units of the reference's own mean on this fold: a wild coin does not outweigh a calm one.
            losses=loss / loss.mean(),
        )
        for fold, origins, truth, loss, times in prepared
    ]


def losses_by_block(scored: Sequence[Scored], losses: Sequence[Array]) -> Array:
    """Return the sums of the losses per block [blocks], every series and fold with the same weight."""
    total = np.zeros(1 + max(int(fold.blocks.max()) for fold in scored))
    for fold, fold_losses in zip(scored, losses, strict=True):
        total += np.bincount(fold.blocks, fold_losses / len(fold_losses), minlength=len(total))
    return total / len(scored)


def train_batch(
    trials: Sequence[dict[str, Any]],
    scored: Sequence[Scored],
    *,
    architecture: str,
    preset: str,
    overrides: dict[str, Any],
    seed: int,
    prune: Prune,
    deadline: float | None,
    **how: Any,
) -> list[TrialResult | None]:
    """Train all trials on all folds together and score them; None for a trial without a complete epoch at the deadline.

    All trials have the same seeds: they start from the same weights and see the same windows.

    Args:
        trials: the options of each trial, with the same names in all trials.
        prune: called after epochs 1, 2, 4, 8 … once all members of a trial have reported.
        deadline: in `time.monotonic`'s clock: members still training then stop immediately, keeping their best epoch.
    """
    width = len(scored)
    # Trial by trial, and within a trial fold by fold: row k belongs to trial k // width, as `_Watch` counts.
    series = [fold.fold.series for _ in trials for fold in scored]
    seeds = [member_seed(seed, architecture, fold.fold.id, fold.fold.fold) for fold in scored] * len(trials)
    vectors = {name: [trial[name] for trial in trials for _ in scored] for name in trials[0]}
    watch = _Watch(len(trials), width, prune, deadline)
    members = cpbmodels.train_fleet(
        series,
        architecture,
        preset,
        seeds=seeds,
        on_epoch=watch,
        on_step=watch.on_step,
        **how,
        **overrides | vectors,
    )
    report_progress(_TRAINING, 1, 1, "epochs")
    # A trial is whole or absent: one member without an epoch would leave its ratio a mean over fewer folds.
    usable = [k for k in range(len(trials)) if all(m.history for m in members[k * width : (k + 1) * width])]
    rows = [k * width + place for k in usable for place in range(width)]
    origins = [fold.origins for fold in scored] * len(usable)
    forecasts = predict_each([members[row] for row in rows], [series[row] for row in rows], origins)
    results: list[TrialResult | None] = [None] * len(trials)
    for place, k in enumerate(usable):
        trial_members = members[k * width : (k + 1) * width]
        trial_forecasts = forecasts[place * width : (place + 1) * width]
        valid = [fold for fold in trial_forecasts if isinstance(fold, cpbmodels.Prediction)]
        good = len(valid) == width and not any(m.report.get("diverged") for m in trial_members)
        losses = (
            [crps(f.quantiles, fold.truth).mean(1) / fold.mean for f, fold in zip(valid, scored, strict=True)]
            if good
            else [np.zeros(len(fold.origins)) for fold in scored]
        )
        results[k] = TrialResult(
            ratio=float(np.mean([loss.mean() for loss in losses])) if good else None,
            losses=losses_by_block(scored, losses).tolist(),
            pruned=k in watch.pruned,
            epochs=max(len(m.history) for m in trial_members),
        )
    return results


class _Watch:
    """Watches a batch epoch by epoch: prunes trials whose members have all reached a comparison epoch."""

    def __init__(self, trials: int, width: int, prune: Prune, deadline: float | None) -> None:
        self.width, self.prune, self.deadline = width, prune, deadline
        self.epochs = np.zeros((trials, width), np.int64)
        self.done = np.zeros((trials, width), bool)
        self.best = np.full((trials, width), np.inf)
        self.checked = np.zeros(trials, np.int64)
        self.pruned: set[int] = set()
        self.context = copy_context()  # concurrent fleets report from threads without a listener

    def on_step(self, record: cpbmodels.StepRecord) -> bool:
        """Report the batch's progress; return whether the time is up."""
        done = record.epoch - 1 + 0.999 * record.step / record.steps
        facts = [f"{len(self.pruned)} pruned", f"on {record.device}"]
        left = self.deadline - time.monotonic() if self.deadline is not None else float("inf")
        if self.deadline is not None:
            facts.insert(0, f"budget ends in {max(left, 0):.0f} s")
        self.context.run(report_progress, _TRAINING, done, record.epochs, "epochs", *facts)
        return left <= 0

    def __call__(self, record: cpbmodels.EpochRecord) -> list[int]:
        """Return the members to stop: those of pruned trials, or all once the time is up."""
        if self.deadline is not None and time.monotonic() >= self.deadline:
            return [member["index"] for member in record.members]
        touched = set()
        for member in record.members:
            trial, place = divmod(member["index"], self.width)
            self.epochs[trial, place] = record.epoch
            self.done[trial, place] = bool(member["stopped"])
            self.best[trial, place] = member["best_val_loss"]
            touched.add(trial)
        for trial in touched - self.pruned:
            # Members that stopped early hold no trial back: their best loss is final. If all have stopped, there is
            # nothing to prune.
            still = ~self.done[trial]
            reached = int(self.epochs[trial][still].min()) if still.any() else 0
            # Epochs 1, 2, 4, 8 …: a resumed or late member may jump over a rung, so each that was passed is
            # compared.
            while (following := max(2 * int(self.checked[trial]), 1)) <= reached:
                self.checked[trial] = following
                if self.prune(trial, following, float(self.best[trial].mean())):
                    self.pruned.add(trial)
                    break
        return [trial * self.width + place for trial in self.pruned for place in range(self.width)]
