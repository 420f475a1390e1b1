"""What one member learns from, as the fleet and an architecture that fits weights in closed form see it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cpbmodels.arch.options import Preset
from cpbmodels.data.ranges import TrainingOrigins
from cpbmodels.data.series import Series


@dataclass(frozen=True)
class Task:
    """What one member learns from: its seed, its series, and the origins of its windows as rows of the bank."""

    seed: int
    symbol: str
    timeframe: str
    series_indices: tuple[int, ...]  # the series it learns
    train: np.ndarray  # int64 rows of the bank
    validation: np.ndarray  # int64 rows of the bank
    mean: np.ndarray  # float64 [columns], with `inverse` the scaling of the bank's columns
    inverse: np.ndarray
    options: Preset  # of this member: members of a fleet may differ in those of `arch.options.PER_MEMBER`
    index: int = 0  # its place among the members of the call


@dataclass(frozen=True)
class MemberData:
    """One member's training data, for architectures that fit weights in closed form.

    columns: names of the F input columns, without the calendar.
    mean, inverse: float64 [F], their scaling: the model reads (column - mean) * inverse.
    """

    columns: tuple[str, ...]
    mean: np.ndarray
    inverse: np.ndarray
    task: Task
    series: Sequence[Series]
    starts: tuple[int, ...]  # first row of each series in the bank

    def origins(self) -> TrainingOrigins:
        """The member's training origins by series, as rows of each series."""
        out = []
        for index in self.task.series_indices:
            series, start = self.series[index], self.starts[index]
            rows = self.task.train[(self.task.train >= start) & (self.task.train < start + len(series))]
            out.append((series, rows - start))
        return out
