"""Models of a backtest: trained in a fold, they forecast its test span.

Baselines and trained fleets (`fleets.py`) implement the same protocol, so all are judged on the same rows.
"""

from dataclasses import dataclass
from typing import Protocol

from cpbmodels.data.series import Prediction
from schemas.handover import Failure
from schemas.identity import ModelId
from tasks.backtesting.folds import FoldSeries
from tasks.judging.baselines import Fit, import_extra, random_walk
from tasks.judging.fitted import boosted, garch, robust_har
from tasks.signals.splits import HORIZON

BASELINES: dict[str, Fit] = {
    "random-walk": random_walk,
    "robust-har": robust_har,
    "garch-t": garch,
    "lightgbm": boosted,
}
"""Baselines by the names in `schemas.run.BASELINES`."""

_EXTRA_PACKAGES = {"garch-t": "arch", "lightgbm": "lightgbm"}


class Model(Protocol):
    """A method under test."""

    @property
    def name(self) -> str:
        """Name of the model in reports."""
        ...

    def identity(self, one: FoldSeries) -> ModelId:
        """Return the id of the model trained on a series in a fold."""
        ...

    def training_failure(self, one: FoldSeries) -> Failure | None:
        """Return why no model could be trained on a series in a fold; None if training succeeded."""
        ...

    def forecast(self, one: FoldSeries) -> Prediction:
        """Return the forecasts of a fold's test span, from every origin in it, by the model trained in that fold."""
        ...


@dataclass(frozen=True)
class Baseline:
    """A baseline as a model: fitted per series on the training origins of a fold, in this process."""

    name: str
    fit: Fit

    def identity(self, one: FoldSeries) -> ModelId:
        """Return the baseline's name on this series; a baseline has no preset and no seed."""
        return ModelId(self.name, "baseline", one.id, 0)

    def training_failure(self, one: FoldSeries) -> Failure | None:
        """Return None: an error of fitting is raised in `forecast`."""
        return None

    def forecast(self, one: FoldSeries) -> Prediction:
        """Fit on the fold's training origins and forecast its test span."""
        fitted = self.fit(one.series, one.series.origins("train", 1, HORIZON), HORIZON)
        origins = one.series.origins("test", 1, HORIZON)
        return Prediction(origins, fitted.quantiles(one.series, origins))


def baselines(names: tuple[str, ...], architectures: tuple[str, ...]) -> list[Model]:
    """Return the requested baselines, except those also trained as an architecture of the same name."""
    return [Baseline(name, BASELINES[name]) for name in names if name not in architectures]


def check_installed(names: tuple[str, ...]) -> None:
    """Raise `CpbError` if a baseline needs a package that is not installed."""
    for name in names:
        if package := _EXTRA_PACKAGES.get(name):
            import_extra(package)
