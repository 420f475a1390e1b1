"""LightGBM forecast of the scale (extra `judging`), on the columns of the robust HAR and its close location.

One booster per step forecasts the log of the mean coming range relative to σ, the target of the robust HAR; unlike
that linear model, trees find interactions.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from cpbmodels.ranges import future_range
from cpbmodels.series import Series
from tasks.judging.baselines import Rows, import_extra, levels, realised, step_scale
from tasks.judging.robust_har import HOUR, INPUTS
from tasks.judging.scores import Array

PARAMETERS = {
    "objective": "l2", "learning_rate": 0.05, "num_leaves": 15, "min_data_in_leaf": 500,
    "feature_fraction": 0.7, "lambda_l2": 10.0, "verbosity": -1, "num_threads": 1,
    "deterministic": True, "seed": 1,
}  # fmt: skip
ROUNDS = 120
"""Boosting rounds of each step's model."""


@dataclass(frozen=True)
class Boosted:
    """A booster per step, and the quantiles of the standardised training moves: `table` [H, 19]."""

    boosters: tuple[Any, ...]
    table: Array

    def scale(self, series: Series, origins: Rows) -> Array:
        """Return the predicted scale [N, H] in log-return."""
        inputs = _inputs(series, origins)
        relative = np.column_stack([np.exp(b.predict(inputs)) for b in self.boosters])
        return relative * step_scale(series, origins, len(self.boosters))

    def quantiles(self, series: Series, origins: Rows) -> Array:
        """Return [N, H, 19]."""
        return self.scale(series, origins)[..., None] * self.table


def boosted(series: Series, origins: Rows, horizon: int) -> Boosted:
    """Fit on the training origins.

    Raises:
        CpbError: the extra `judging` is not installed.
    """
    lightgbm = import_extra("lightgbm")
    inputs, targets = _inputs(series, origins), future_range(series, origins, horizon)
    boosters = [
        lightgbm.train(PARAMETERS, lightgbm.Dataset(inputs, label=target, free_raw_data=True), ROUNDS)
        for target in targets.T
    ]
    unshaped = Boosted(tuple(boosters), np.ones((horizon, 1)))
    moves = realised(series, origins, horizon) / unshaped.scale(series, origins)
    return Boosted(unshaped.boosters, levels(moves))


def _inputs(series: Series, origins: Rows) -> Array:
    """Return the columns [N, F]; the hour of the week as hour of day and day of week."""
    hour = series.columns((HOUR,))[origins]
    return np.hstack([series.columns((*INPUTS, "close_location"))[origins], hour % 24, hour // 24])
