"""The study: Optuna's sampler and pruner, asked for batches; finished trials in Optuna's own storage (SQLite).

Trials at work live in memory and reach the storage when their batch is done, in one go: written one value at a time,
256 trials cost more seconds than their training. What is killed loses the batch that was being trained, and no trial of
the storage is ever half done. This module alone imports Optuna.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, Trial, TrialState

from schemas.tuning import Choice, Range, TuneSpec

BLOCKS = "losses_by_block"
"""Attribute of a trial: sums of its losses per block of time, in units of the reference's mean loss."""

_ASKED = "asked"
"""Attribute of a study: trials that were proposed, those that the budget ended before they had a result included."""

_RUNGS = 2  # epochs after which trials are compared for the first time
_REDUCTION = 3


class Study:
    """One study: asked for trials, told their results. `trials` counts those that are finished."""

    def __init__(self, path: Path, name: str, spec: TuneSpec) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.stored = optuna.create_study(
            study_name=name, storage=f"sqlite:///{path.resolve()}", direction="minimize", load_if_exists=True
        )
        earlier = self.stored.get_trials(deepcopy=False)
        self.live = optuna.create_study(
            direction="minimize", sampler=sampler(spec, len(earlier)), pruner=_pruner(spec)
        )
        self.space = {name: distribution(values) for name, values in spec.space.items()}
        self.asked = int(self.stored.user_attrs.get(_ASKED, 0))
        self._skip_points()
        self.live.add_trials(earlier)
        self.trials = len(earlier)  # finished ones, whatever became of them

    def _skip_points(self) -> None:
        """Go on in the sequence of the sampler `qmc`: how far it has come is known to the study in memory alone.

        The first trial of all is not of the sequence (Optuna draws it at random).
        """
        if isinstance(self.live.sampler, optuna.samplers.QMCSampler):
            place = optuna.trial.create_trial(state=TrialState.RUNNING)
            for _ in range(self.asked - 1):
                self.live.sampler.sample_relative(self.live, place, self.space)

    def ask(self, count: int) -> list[Trial]:
        """Return new trials with proposed parameters."""
        self.asked += count
        return [self.live.ask(self.space) for _ in range(count)]

    def should_prune(self, trial: Trial, epoch: int, loss: float) -> bool:
        """Report a trial's loss after an epoch (from 1); whether Optuna's pruner gives it up."""
        trial.report(loss, epoch)
        return trial.should_prune()

    def tell(self, trial: Trial, value: float | None, pruned: bool, attributes: dict[str, Any]) -> None:
        """End a trial: with its value, as pruned, or (None) as failed, with attributes that the storage keeps."""
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
        """Write the trials finished since the last call into the storage, and return them as it numbers them.

        Trials that were asked for and are at work still are left out: no batch may follow them.
        """
        self.stored.set_user_attr(
            _ASKED, self.asked
        )  # first: after a kill in between, points are left out and none comes twice
        done = [one for one in self.live.get_trials(deepcopy=False)[self.trials :] if one.state.is_finished()]
        self.stored.add_trials(done)
        new = self.stored.get_trials(deepcopy=False)[self.trials :]
        self.trials += len(new)
        return new

    def finished(self) -> list[FrozenTrial]:
        """All trials of the storage."""
        return self.stored.get_trials(deepcopy=False)

    def best(self) -> FrozenTrial | None:
        """The completed trial with the lowest value."""
        done = [one for one in self.finished() if one.state == TrialState.COMPLETE]
        return min(done, key=lambda one: one.value if one.value is not None else float("inf"), default=None)


def state_of(trial: FrozenTrial) -> str:
    """complete, pruned or failed."""
    return {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned"}.get(trial.state, "failed")


def figures(study: Study, folder: Path) -> list[Path]:
    """Draw Optuna's plots of the study into the folder as PNG; importances need some completed trials."""
    import matplotlib as mpl

    mpl.use("Agg")
    from optuna.visualization import matplotlib as plots

    done = [one for one in study.finished() if one.state == TrialState.COMPLETE]
    wanted: list[tuple[str, Any]] = [
        ("history", plots.plot_optimization_history),
        ("intermediate", plots.plot_intermediate_values),
        ("slice", plots.plot_slice),
        ("parallel", plots.plot_parallel_coordinate),
    ]
    if len(done) >= 2 * max(len(study.space), 2) and len({one.value for one in done}) > 1:
        wanted.append(("importances", plots.plot_param_importances))
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for name, plot in wanted if done else []:
        with _without_notices():
            axes = plot(study.stored)
        figure = (axes.ravel()[0] if hasattr(axes, "ravel") else axes).figure
        figure.set_size_inches(10, 5)
        path = folder / f"{name}.png"
        figure.savefig(path, dpi=100, bbox_inches="tight")
        mpl.pyplot.close(figure)
        made.append(path)
    return made


@contextmanager
def _without_notices() -> Iterator[None]:
    """Leave out notes on parts that have been experimental for years, and on axes of plots with one trial."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        warnings.simplefilter("ignore", UserWarning)
        yield


def sampler(spec: TuneSpec, earlier: int) -> optuna.samplers.BaseSampler:
    """Seeded by the run's seed and how many trials there are, so that a study that goes on draws others."""
    seed = spec.seed + earlier
    if spec.sampler == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    if spec.sampler == "qmc":
        with _without_notices():
            first = optuna.samplers.RandomSampler(seed=seed)  # draws while no trial has succeeded yet
            return optuna.samplers.QMCSampler(seed=spec.seed, independent_sampler=first)
    # constant_liar: trials of a batch that are still at work keep the next ones away from their place.
    return optuna.samplers.TPESampler(seed=seed, constant_liar=True, n_startup_trials=16)


def _pruner(spec: TuneSpec) -> optuna.pruners.BasePruner:
    if spec.pruner == "none":
        return optuna.pruners.NopPruner()
    if spec.pruner == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=16, n_warmup_steps=_RUNGS)
    return optuna.pruners.SuccessiveHalvingPruner(min_resource=_RUNGS, reduction_factor=_REDUCTION)


def distribution(values: Range | Choice) -> BaseDistribution:
    """Return what Optuna draws an option from."""
    if isinstance(values, Range) and values.whole:
        return IntDistribution(int(values.low), int(values.high), log=values.log)
    if isinstance(values, Range):
        return FloatDistribution(values.low, values.high, log=values.log)
    return CategoricalDistribution(values.values)


def parameters(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """The proposed options of each trial."""
    return [dict(one.params) for one in trials]
