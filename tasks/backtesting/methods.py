"""The methods under test: baselines, and fleets that were trained on the folds; all forecast the same rows."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cpbmodels.arch.presets import preset
from cpbmodels.data import HORIZON
from cpbmodels.data.prediction import Prediction
from cpbmodels.data.ranges import RangeModel, fit_ranges
from cpbmodels.data.series import Series
from schemas.failure import Failure
from schemas.handover import FleetPlan, JobMember, ShardResult
from schemas.identity import ModelId, SeriesId
from tasks.backtesting.folds import FoldSeries
from tasks.judging.baselines import Fit, random_walk
from tasks.judging.forecasts import forecasts
from tasks.judging.scores import Rows
from tasks.storage.sealed import resealing, writing
from tasks.training.shard import shard_folder


def robust_har(series: Series, origins: Rows, horizon: int) -> RangeModel:
    """Fit the strongest baseline: the architecture of the same name, in float64, on a coin's training origins.

    Raises:
        ModelError: there is no training origin.
    """
    # Of the preset default, whatever the fleets' own: the baseline must be the same in every report.
    options = preset("default", "robust-har")
    return fit_ranges([(series, origins)], options.features, options.calendar, horizon, options.input_clip)


BASELINES: dict[str, Fit] = {"random-walk": random_walk, "robust-har": robust_har}
"""Baselines by the names in `schemas.backtesting.BASELINES`."""


class Method(Protocol):
    """A method under test; its part on a series is sent to the process that judges it."""

    @property
    def name(self) -> str:
        """Name of the method in reports."""
        ...

    def on(self, series: SeriesId) -> "Method":
        """Return the method without what belongs to other series."""
        ...

    def identity(self, fold: FoldSeries) -> ModelId:
        """Return the id of the model trained on a series in a fold."""
        ...

    def training_failure(self, fold: FoldSeries) -> Failure | None:
        """Return why no model could be trained on a series in a fold; None if training succeeded."""
        ...

    def forecast(self, fold: FoldSeries) -> Prediction:
        """Return the forecasts of a fold's test span, from every origin in it, by the model trained in that fold."""
        ...


@dataclass(frozen=True)
class Baseline:
    """A baseline as a method: fitted per series on the training origins of a fold, where it is judged."""

    name: str
    fit: Fit

    def on(self, series: SeriesId) -> "Baseline":
        """Return the baseline, which knows no series."""
        return self

    def identity(self, fold: FoldSeries) -> ModelId:
        """Return the baseline's name on this series; a baseline has no preset and no seed."""
        return ModelId(self.name, "baseline", fold.id, 0)

    def training_failure(self, fold: FoldSeries) -> Failure | None:
        """Return None: an error of fitting is raised in `forecast`."""
        return None

    def forecast(self, fold: FoldSeries) -> Prediction:
        """Fit on the fold's training origins and forecast its test span."""
        fitted = self.fit(fold.series, fold.series.origins("train", 1, HORIZON), HORIZON)
        # From a context of one candle: a baseline forecasts every row that any model forecasts, so common rows are
        # the model's.
        origins = fold.series.origins("test", 1, HORIZON)
        return Prediction(origins, fitted.quantiles(fold.series, origins))


def baselines(names: Collection[str], fleets: Collection[str]) -> list[Method]:
    """Return the requested baselines, except those also trained as a fleet of the same name."""
    return [Baseline(name, BASELINES[name]) for name in names if name not in fleets]


@dataclass(frozen=True)
class TrainedFleet:
    """The models of a fleet, read from the folders of its shards.

    `members`: by series and fold, the folder of its shard and what was planned. `failures`: of models that could not be
    trained.
    """

    name: str
    members: Mapping[tuple[SeriesId, int], tuple[Path, JobMember]]
    failures: Mapping[ModelId | None, Failure]

    @classmethod
    def of(cls, plan: FleetPlan, results: Sequence[ShardResult], root: Path) -> "TrainedFleet":
        """Return the fleet of a plan after its training; `root`: the market's home, which holds the shards' folders."""
        members = {
            (member.model.series, member.fold): (shard_folder(root, shard), member)
            for shard in plan.shards
            for member in shard.members
        }
        return cls(plan.name, members, {f.model: f for result in results for f in result.failures})

    def on(self, series: SeriesId) -> "TrainedFleet":
        """Return the fleet's models on a series."""
        # A request carries this series' few records: of hundreds of coins, all of them would take longer to send
        # than to judge.
        members = {key: planned for key, planned in self.members.items() if key[0] == series}
        failures = {model: failure for model, failure in self.failures.items() if failure.series == series}
        return TrainedFleet(self.name, members, failures)

    def discard_unread(self) -> None:
        """Delete the forecasts of the validation spans, which are only used for judging in `train-all`.

        The forecasts of the test spans stay: repeating the same command reads them, bit for bit.
        """
        for shard, member in self.members.values():
            path = shard / "members" / member.name / "validation.npz"
            if path.exists():
                with writing(path.parent), resealing(path.parent, path.name):
                    path.unlink(missing_ok=True)  # another run of the same command was quicker

    def identity(self, fold: FoldSeries) -> ModelId:
        """Return the planned model of a series in a fold."""
        return self.members[fold.id, fold.fold][1].model

    def training_failure(self, fold: FoldSeries) -> Failure | None:
        """Return the trainer's failure for a series in a fold, if any."""
        return self.failures.get(self.identity(fold))

    def forecast(self, fold: FoldSeries) -> Prediction:
        """Return the forecasts of the fold's test span: the trainer's own, or of the model."""
        shard, member = self.members[fold.id, fold.fold]
        return forecasts(shard, member, fold.series, "test")
