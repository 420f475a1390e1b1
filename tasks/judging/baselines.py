"""Baselines with a common interface: fitted on training origins, they forecast quantiles for any origins.

Every baseline returns [N, H, 19] cumulative log-returns, as the models do, and is scored on the same rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cpbmodels.data.series import Series
from schemas.errors import CpbError, install_extra
from tasks.judging.scores import LEVELS, Array

Rows = NDArray[np.int64]
"""Origins: rows of the last known candles, ascending."""


class Baseline(Protocol):
    """A fitted forecaster."""

    def quantiles(self, series: Series, origins: Rows) -> Array:
        """Return the quantiles of the cumulative log-return after each origin (row of its last candle)."""
        ...


Fit = Callable[[Series, Rows, int], Baseline]
"""`fit(series, training origins, horizon)`; must not read rows after the last training target."""


def realised(series: Series, origins: Rows, horizon: int) -> Array:
    """Return the cumulative log-returns [N, H] of the closes after each origin."""
    close = np.log(series.prices[:, 3])
    return close[origins[:, None] + np.arange(1, horizon + 1)] - close[origins][:, None]


@dataclass(frozen=True)
class EmpiricalWalk:
    """Random walk with the empirical quantiles of the training span, per step: `table` [H, 19].

    `scaled`: the table is in units of EWMA σ × √step at the origin (the reference), else in log-return.
    """

    table: Array
    scaled: bool

    def quantiles(self, series: Series, origins: Rows) -> Array:
        """Return [N, H, 19]: the table, times the volatility known at each origin if it is scaled."""
        if not self.scaled:
            return np.broadcast_to(self.table, (len(origins), *self.table.shape)).copy()
        return step_scale(series, origins, len(self.table))[..., None] * self.table


def step_scale(series: Series, origins: Rows, horizon: int) -> Array:
    """Return σ × √step [N, H]: EWMA volatility at the origin, scaled with the step as for a random walk."""
    return series.volatility[origins][:, None] * np.sqrt(np.arange(1, horizon + 1))


def random_walk(series: Series, origins: Rows, horizon: int) -> EmpiricalWalk:
    """Fit the plain random walk, whose quantiles do not depend on the volatility."""
    return EmpiricalWalk(levels(realised(series, origins, horizon)), scaled=False)


def ewma_walk(series: Series, origins: Rows, horizon: int) -> EmpiricalWalk:
    """Fit the reference: random walk, EWMA volatility (λ = 0.96), standardised quantiles per step."""
    moves = realised(series, origins, horizon) / step_scale(series, origins, horizon)
    return EmpiricalWalk(levels(moves), scaled=True)


def reference(series: Series, fit_origins: Rows, eval_origins: Rows, horizon: int) -> Array:
    """Return the reference's quantiles [N, H, 19] at `eval_origins`, fitted on `fit_origins` only.

    Raises:
        ValueError: there is no training origin.
    """
    if len(fit_origins) == 0:
        raise ValueError(f"{series.label}: the reference needs at least one training origin")
    return ewma_walk(series, fit_origins, horizon).quantiles(series, eval_origins)


def levels(moves: Array) -> Array:
    """Return the empirical quantiles [H, 19] of moves [N, H], at the 19 levels of a forecast."""
    return np.ascontiguousarray(np.quantile(moves, LEVELS, axis=0).T)


def import_extra(package: str, extra: str = "judging") -> Any:
    """Import a package of an extra.

    Raises:
        CpbError: the package is not installed.
    """
    try:
        return import_module(package)
    except ImportError as error:
        raise CpbError(
            f"baselines: the package {package} is not installed; run {install_extra(extra)}",
            code="extra-missing",
            field="baselines",
        ) from error
