"""Trained models of a backtest: a fleet per architecture, whose members are series × folds.

The fleet is planned here and trained by the same step as in `train-all` (slots, checkpoints, time limit, resume). Its
forecasts are read member by member, so that only a single member's forecasts are in memory at a time.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cpbmodels
from cpbmodels.data.series import Prediction
from schemas.handover import Failure, FleetPlan, JobMember, ShardResult
from schemas.identity import ModelId, SeriesId
from schemas.run import RunSpec
from tasks.backtesting.folds import FoldSeries
from tasks.judging.member import stored_forecasts
from tasks.training.plan import member_seed, plan_fleet, preset_label
from tasks.training.shard import member_folder, shard_folder


def plan_folds(
    spec: RunSpec, architecture: str, folds: Sequence[FoldSeries], *, gpus: bool = False
) -> FleetPlan:
    """Return the fleet that trains an architecture on every given series and fold."""
    recipe = preset_label(spec, architecture)
    members = [
        JobMember(
            model=ModelId(
                architecture, recipe, one.id, member_seed(spec.seed, architecture, one.id, one.fold)
            ),
            features=one.record,
            bounds=one.bounds,
            fold=one.fold,
        )
        for one in folds
    ]
    return plan_fleet(spec, architecture, members, gpu=gpus)


class TrainedFleet:
    """The models of an architecture, read from the folders of their fleet's shards."""

    def __init__(self, plan: FleetPlan, results: Sequence[ShardResult], root: Path, name: str = "") -> None:
        self.name = name or plan.architecture
        self._folders = {m.name: shard_folder(root, shard) for shard in plan.shards for m in shard.members}
        self._planned: dict[tuple[SeriesId, int], JobMember] = {
            (m.model.series, m.fold): m for m in plan.members
        }
        self._failures = {failure.model: failure for one in results for failure in one.failures}
        self._trained = [member for one in results for member in one.members]

    @property
    def loss_history(self) -> tuple[str, tuple[dict[str, Any], ...]] | None:
        """The name and the loss per epoch of the first trained member; None if nothing was trained."""
        if not self._trained:
            return None
        first = self._trained[0]
        series = first.model.series
        return f"{self.name} {series.label} {series.timeframe}", first.history

    def discard_unread(self) -> None:
        """Delete the forecasts of the validation spans, which are only used for judging in `train-all`.

        The forecasts of the test spans stay: repeating the same command reads them, bit for bit.
        """
        for member in self._trained:
            (self._folders[member.name] / "members" / member.name / "validation.npz").unlink(missing_ok=True)

    def identity(self, one: FoldSeries) -> ModelId:
        """Return the planned model of a series in a fold."""
        return self._member(one).model

    def training_failure(self, one: FoldSeries) -> Failure | None:
        """Return the trainer's failure for a series in a fold, if any."""
        return self._failures.get(self.identity(one))

    def forecast(self, one: FoldSeries) -> Prediction:
        """Return the trainer's own forecasts of the fold's test span, or the loaded model's."""
        name = self._member(one).name
        folder = member_folder(self._folders[name], name)
        if stored := stored_forecasts(folder / "test.npz"):
            return stored
        model = cpbmodels.load(folder / "model")
        return cpbmodels.predict(
            [model], [one.series], [one.series.origins("test", model.context, model.horizon)]
        )[0]

    def _member(self, one: FoldSeries) -> JobMember:
        return self._planned[one.id, one.fold]
