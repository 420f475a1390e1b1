"""The study: Optuna's sampler and pruner, used in batches; finished trials in Optuna's own storage (SQLite).

Running trials are in memory and are written to the storage together when their batch is done: written one value at a
time, 256 trials took longer than their training. A kill loses the batch being trained, and the storage never contains
incomplete trials. Only this module imports Optuna.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, Trial, TrialState

from schemas.tuning import Choice, Range, TuneSpec

BLOCKS = "losses_by_block"
"""Attribute of a trial: sums of its losses per block of time, in units of the reference's mean loss."""

_RUNGS = 2  # epochs before the first comparison of trials
_REDUCTION = 3


class Study:
    """A study: proposes trials and receives their results. `trials` counts the finished trials."""

    def __init__(self, path: Path, name: str, spec: TuneSpec) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.stored = optuna.create_study(
            study_name=name, storage=f"sqlite:///{path.resolve()}", direction="minimize", load_if_exists=True
        )
        # The live study is in memory and starts from what is stored: Optuna writes each value on its own, and SQLite
        # syncs each write.
        earlier = self.stored.get_trials(deepcopy=False)
        self.live = optuna.create_study(
            direction="minimize",
            # A continued study draws new points; running trials repel the next proposals from their location.
            sampler=optuna.samplers.TPESampler(
                seed=spec.seed + len(earlier), constant_liar=True, n_startup_trials=16
            ),
            pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=_RUNGS, reduction_factor=_REDUCTION),
        )
        self.space = {name: distribution(values) for name, values in spec.ranges.items()}
        self.live.add_trials(earlier)
        self.trials = len(earlier)  # finished trials with any outcome

    def ask(self, count: int) -> list[Trial]:
        """Return new trials with proposed parameters."""
        return [self.live.ask(self.space) for _ in range(count)]

    def should_prune(self, trials: Sequence[Trial], number: int, epoch: int, loss: float) -> bool:
        """Report the loss of one of these trials after an epoch (from 1); return whether Optuna's pruner stops it."""
        # In memory: the batch's trials and all earlier ones are in the live study, so a rung compares with both.
        trials[number].report(loss, epoch)
        return bool(trials[number].should_prune())

    def tell(self, trial: Trial, value: float | None, *, pruned: bool, attributes: dict[str, Any]) -> None:
        """End a trial: with its value, as pruned, or (None) as failed, with attributes for the storage."""
        for name, content in attributes.items():
            trial.set_user_attr(name, content)
        if value is None:
            self.live.tell(trial, state=TrialState.FAIL)
        elif pruned:
            trial.set_user_attr("value_of_pruned", value)
            self.live.tell(trial, state=TrialState.PRUNED)
        else:
            self.live.tell(trial, value)

    def save(self) -> list[FrozenTrial]:
        """Write the trials finished since the last call to the storage, and return them with its numbers.

        Trials that are still running are left out: no further batch may follow them.
        """
        done = [
            trial
            for trial in self.live.get_trials(deepcopy=False)[self.trials :]
            if trial.state.is_finished()
        ]
        self.stored.add_trials(done)
        new = self.stored.get_trials(deepcopy=False)[self.trials :]
        self.trials += len(new)
        return new

    def finished(self) -> list[FrozenTrial]:
        """Return all trials of the storage."""
        return self.stored.get_trials(deepcopy=False)

    def best(self) -> FrozenTrial | None:
        """Return the completed trial with the lowest value."""
        done = [trial for trial in self.finished() if trial.state == TrialState.COMPLETE]
        return min(
            done, key=lambda trial: trial.value if trial.value is not None else float("inf"), default=None
        )


def state_of(trial: FrozenTrial) -> str:
    """Return complete, pruned or failed."""
    return {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned"}.get(trial.state, "failed")


def distribution(values: Range | Choice) -> BaseDistribution:
    """Return the Optuna distribution of an option."""
    if isinstance(values, Range) and values.whole:
        return IntDistribution(int(values.low), int(values.high), log=values.log)
    if isinstance(values, Range):
        return FloatDistribution(values.low, values.high, log=values.log)
    return CategoricalDistribution(values.values)
