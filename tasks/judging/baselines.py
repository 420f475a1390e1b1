"""The baselines that every model is compared with, among them the reference. Shapes: N origins, H steps.

Baselines are fitted on training origins and forecast quantiles for any origins. Every baseline returns [N, H, 19]
cumulative log-returns, as the models do, and is scored on the same rows. The random walk with EWMA volatility is also
the reference of each model, fitted once and stored as a record: for judging, forecasting and the drift watch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cpbmodels.data.columns import LAMBDA
from cpbmodels.data.series import Series
from schemas.identity import SeriesId
from schemas.ledger import JudgedMetrics, Reference
from tasks.judging.scores import LEVELS, Array, Rows, realised


class Baseline(Protocol):
    """A fitted forecaster."""

    def quantiles(self, series: Series, origins: Rows) -> Array:
        """Return the quantiles of the cumulative log-return after each origin (row of its last candle)."""
        ...


Fit = Callable[[Series, Rows, int], Baseline]
"""`fit(series, training origins, horizon)`; must not read rows after the last training target."""


Scale = Callable[[Series, Rows, int], Array]
"""`scale(series, origins, horizon)` returns the predicted scale [N, H] of the cumulative log-return."""


@dataclass(frozen=True)
class ScaledTable:
    """A baseline whose quantiles are its scale at each origin times a `table` [H, 19] that holds for all origins."""

    scale: Scale
    table: Array

    @classmethod
    def fit(cls, scale: Scale, series: Series, origins: Rows, horizon: int) -> "ScaledTable":
        """Fit the table: the quantiles per step of the moves after the training origins, divided by their scale."""
        # Dividing by the scale first makes moves of calm and of wild days comparable, so one table of quantiles per
        # step serves all origins.
        return cls(scale, levels(realised(series, origins, horizon) / scale(series, origins, horizon)))

    def quantiles(self, series: Series, origins: Rows) -> Array:
        """Return [N, H, 19]."""
        return self.scale(series, origins, len(self.table))[..., None] * self.table


def step_scale(series: Series, origins: Rows, horizon: int) -> Array:
    """Return σ × √step [N, H]: EWMA volatility at the origin, scaled with the step as for a random walk."""
    # Variances of independent steps add up: the standard deviation of k steps is √k times that of one.
    return series.volatility[origins][:, None] * np.sqrt(np.arange(1, horizon + 1))


def random_walk(series: Series, origins: Rows, horizon: int) -> ScaledTable:
    """Fit the plain random walk, whose quantiles do not depend on the volatility."""
    return ScaledTable.fit(
        lambda series, origins, horizon: np.ones((len(origins), horizon)), series, origins, horizon
    )


def ewma_walk(series: Series, origins: Rows, horizon: int) -> ScaledTable:
    """Fit the reference: random walk, EWMA volatility (λ = 0.96), standardised quantiles per step.

    Raises:
        ValueError: there is no training origin.
    """
    if len(origins) == 0:
        raise ValueError(f"{series.label}: the reference needs at least one training origin")
    return ScaledTable.fit(step_scale, series, origins, horizon)


def reference(series: Series, fit_origins: Rows, eval_origins: Rows, horizon: int) -> Array:
    """Return the reference's quantiles [N, H, 19] at `eval_origins`, fitted on `fit_origins` only; see `ewma_walk`."""
    return ewma_walk(series, fit_origins, horizon).quantiles(series, eval_origins)


def levels(moves: Array) -> Array:
    """Return the empirical quantiles [H, 19] of moves [N, H], at the 19 levels of a forecast."""
    # Contiguous, as the table is stored as JSON and read back: sums over another layout may round differently.
    return np.ascontiguousarray(np.quantile(moves, LEVELS, axis=0).T)


def fit_reference(
    series: Series, name: SeriesId, horizon: int, promised: JudgedMetrics | None = None
) -> Reference:
    """Fit the reference on the training origins of a series, which must have a training span.

    Args:
        promised: the model's test metrics.

    Raises:
        ValueError: there is no training origin.
    """
    # A context of one candle, whatever the model's: the reference needs only the newest volatility, and must not
    # depend on the model that it is compared with.
    origins = series.origins("train", 1, horizon)
    table = ewma_walk(series, origins, horizon).table
    assert series.times is not None
    return Reference(
        series=name,
        table=tuple(map(tuple, table.tolist())),
        decay=LAMBDA,
        origins=len(origins),
        span=(int(series.times[origins[0]]), int(series.times[origins[-1]])),
        promised=promised,
    )


def reference_quantiles(reference: Reference, series: Series, origins: Rows) -> Array:
    """Return the reference's quantiles [N, H, 19] of the cumulative log-return after each origin.

    The reference's `decay` must equal that of the series' volatility (`cpbmodels.data.columns.LAMBDA`).
    """
    return ScaledTable(step_scale, np.asarray(reference.table)).quantiles(series, origins)
