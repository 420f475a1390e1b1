"""Robust HAR: a linear forecast of the coming range. No network; the one to beat, and the fallback that ships.

ln(mean log-range of the next h candles / σ) is regressed, by ridge, on the logs of the mean ranges and mean
|returns| of the last 1 … 168 candles, on ln σ and on the hour of the week. The predicted range, times the
standardised training moves' own quantiles per step, is the distribution. The range is the target because it
says more about a candle's volatility than its return does, and as a winsorised logarithm it is robust.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cpbmodels.series import Series
from schemas.features import ROLLING
from tasks.judging.baselines import Rows, levels, realised, step_scale
from tasks.judging.scores import Array

HOUR = "hour_of_week_ny"
INPUTS = (*(f"log_range_mean_{n}" for n in ROLLING), *(f"abs_return_mean_{n}" for n in ROLLING), "log_sigma")
RIDGE = 20.0
FLOOR = 0.05
"""A mean range below this share of σ counts as this share, as in the feature columns."""


@dataclass(frozen=True)
class RobustHar:
    """`weights` [1 + inputs + 168, H] give the log of the scale relative to σ √step; `table` [H, 19] the shape."""

    weights: Array
    table: Array

    def scale(self, series: Series, origins: Rows) -> Array:
        """Return the predicted scale [N, H] in log-return."""
        relative = np.exp(np.clip(_design(series, origins) @ self.weights, -3, 3))
        return relative * step_scale(series, origins, len(self.table))

    def quantiles(self, series: Series, origins: Rows) -> Array:
        """Return [N, H, 19]."""
        return self.scale(series, origins)[..., None] * self.table


def robust_har(series: Series, origins: Rows, horizon: int) -> RobustHar:
    """Fit one series on its training origins."""
    return universal_har([series], [origins], horizon)


def universal_har(series: list[Series], origins: list[Rows], horizon: int) -> RobustHar:
    """Fit one model on the training origins of several series; it serves any series, also unseen ones.

    Raises:
        ValueError: no training origin at all.
    """
    pairs = [(s, o) for s, o in zip(series, origins, strict=True) if len(o)]
    if not pairs:
        raise ValueError("the robust HAR needs at least one training origin")
    width = 1 + len(INPUTS) + 168
    gram, moment = np.zeros((width, width)), np.zeros((width, horizon))
    for one, rows in pairs:
        for part in _parts(rows):
            design = _design(one, part)
            gram += design.T @ design
            moment += design.T @ future_range(one, part, horizon)
    penalty = RIDGE * np.eye(width)
    penalty[0, 0] = 0  # the level is free
    fitted = RobustHar(
        np.asarray(np.linalg.solve(gram + penalty, moment), dtype=np.float64), np.ones((horizon, 1))
    )
    moves = [realised(s, o, horizon) / fitted.scale(s, o) for s, o in pairs]
    return RobustHar(fitted.weights, levels(np.concatenate(moves)))


def future_range(series: Series, origins: Rows, horizon: int) -> Array:
    """Return the target [N, H]: ln of the mean log-range over the next 1 … H candles, relative to σ."""
    ranges = np.nan_to_num(series.columns(("log_range",))[:, 0])
    total = np.concatenate([[0.0], np.cumsum(ranges)])
    steps = np.arange(1, horizon + 1)
    mean = (total[origins[:, None] + 1 + steps] - total[origins + 1][:, None]) / steps
    sigma = series.volatility[origins][:, None]
    return np.log(np.maximum(mean / sigma, FLOOR))


def _design(series: Series, origins: Rows) -> Array:
    inputs = series.columns(INPUTS)[origins]
    hours = np.zeros((len(origins), 168))
    hours[np.arange(len(origins)), series.columns((HOUR,))[origins, 0].astype(int)] = 1
    return np.hstack([np.ones((len(origins), 1)), inputs, hours])


def _parts(rows: Rows, size: int = 20_000) -> Iterator[Rows]:
    """Yield the rows in pieces: 8 years of one coin would make a design of 100 MB."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
