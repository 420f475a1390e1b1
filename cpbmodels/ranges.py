"""Robust HAR in closed form: one linear forecast of the coming range. Numpy only; the one definition of it.

ln(mean log-range of the next h candles / volatility) is regressed, by ridge, on the columns of the last candle (by
default the logs of mean ranges and mean |returns| over the last 1 .. 168 candles, and the log volatility) and on the
hour of the week. The predicted range, times the standardised training moves' own quantiles per step, is the
distribution. The range is the target because it says more about a candle's volatility than its return does, and
as a logarithm with a floor it is robust.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cpbmodels.errors import ModelError
from cpbmodels.series import SCALED, Series
from cpbmodels.student_t import QUANTILES

RIDGE = 20.0
FLOOR = (
    0.05  # a mean range below this share of the volatility counts as this share, as in the feature columns
)
MOST = 3.0  # a forecast range lies within exp(-3) .. exp(3) times what the volatility says
HOURS = 168
PART = 20_000  # rows at once: eight years of 20 coins as one design would take gigabytes

Known = Sequence[tuple[Series, np.ndarray]]
"""Series, each with the rows (int64 [N]) of the origins that may be learnt from."""


@dataclass(frozen=True)
class RangeModel:
    """A fitted robust HAR of H steps, float64. Units are volatility x sqrt(step).

    `level` [H], `slopes` [F, H] of the columns `names` and `hours` [168, H] add up to the log of the scale (no
    `calendar` column: no hours). `table` [H, 19] and `candle` [H, 3] (open, high, low) times the scale are the
    quantiles of the close and the medians of the other prices, relative to the last close.
    """

    names: tuple[str, ...]
    calendar: str
    clip: float
    level: np.ndarray
    slopes: np.ndarray
    hours: np.ndarray
    table: np.ndarray
    candle: np.ndarray

    def scale(self, series: Series, origins: np.ndarray) -> np.ndarray:
        """The predicted scale [N, H] in log-return."""
        return self._scale(series, origins, self.inputs(series))

    def quantiles(self, series: Series, origins: np.ndarray) -> np.ndarray:
        """Quantiles [N, H, 19] of the cumulative log-return after each origin."""
        return self.scale(series, origins)[..., None] * self.table

    def inputs(self, series: Series) -> np.ndarray:
        """Its columns [rows, F], scaled as models read them: returns in units of the volatility."""
        columns = series.columns(self.names)
        scaled = [index for index, name in enumerate(self.names) if name in SCALED]
        columns[:, scaled] /= series.volatility[:, None]
        return columns.clip(-self.clip, self.clip)

    def hour(self, series: Series, origins: np.ndarray) -> np.ndarray:
        """Hour of the week 0 .. 167 of each origin, int64 [N]."""
        return series.columns((self.calendar,))[origins, 0].astype(np.int64)

    def _scale(self, series: Series, origins: np.ndarray, inputs: np.ndarray) -> np.ndarray:
        log_scale = inputs[origins] @ self.slopes + self.level
        if self.calendar:
            log_scale += self.hours[self.hour(series, origins)]
        steps = np.sqrt(np.arange(1, len(self.level) + 1))
        return np.exp(log_scale.clip(-MOST, MOST)) * series.volatility[origins][:, None] * steps


def fit_ranges(
    known: Known, names: tuple[str, ...], calendar: str, horizon: int, clip: float = np.inf
) -> RangeModel:
    """Fit one model on the origins of one or several series; it serves any series, also unseen ones.

    Looks at no row after the last origin's horizon. ModelError: no origin at all.
    """
    known = [(one, origins) for one, origins in known if len(origins)]
    if not known:
        raise ModelError("the robust HAR needs at least one training origin: give it more history.")
    empty = np.zeros((0, 0))
    blank = RangeModel(names, calendar, clip, empty, empty, empty, empty, empty)
    gram, moment = _normal_equations(blank, known, horizon)
    penalty = RIDGE * np.eye(len(gram))
    penalty[0, 0] = 0  # the level is free
    weights = np.linalg.solve(gram + penalty, moment)
    hours = weights[1 + len(names) :] if calendar else np.zeros((HOURS, horizon))
    fitted = replace(blank, level=weights[0], slopes=weights[1 : 1 + len(names)], hours=hours)
    return _with_shape(fitted, known, horizon)


def future_range(series: Series, origins: np.ndarray, horizon: int) -> np.ndarray:
    """The target [N, H]: ln of the mean log-range over the next 1 .. H candles, relative to the volatility."""
    total = np.concatenate([[0.0], np.cumsum(np.nan_to_num(series.columns(("log_range",))[:, 0]))])
    steps = np.arange(1, horizon + 1)
    mean = (total[origins[:, None] + 1 + steps] - total[origins + 1][:, None]) / steps
    return np.log(np.maximum(mean / series.volatility[origins][:, None], FLOOR))


def _normal_equations(blank: RangeModel, known: Known, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """Gram matrix and moments of the design: 1, columns, hours one-hot. The one-hot part is sums per hour."""
    own, hours = 1 + len(blank.names), HOURS if blank.calendar else 0
    gram, moment = np.zeros((own + hours, own + hours)), np.zeros((own + hours, horizon))
    for one, origins in known:
        inputs = blank.inputs(one)
        for part in _parts(origins):
            design = np.column_stack([np.ones(len(part)), inputs[part]])
            target = future_range(one, part, horizon)
            gram[:own, :own] += design.T @ design
            moment[:own] += design.T @ target
            if hours:
                sums = _sums_by_hour(blank.hour(one, part), np.hstack([design, target]))
                gram[own:, :own] += sums[:, :own]
                gram[own:, own:] += np.diag(sums[:, 0])
                moment[own:] += sums[:, own:]
    gram[:own, own:] = gram[own:, :own].T
    return gram, moment


def _sums_by_hour(hours: np.ndarray, columns: np.ndarray) -> np.ndarray:
    return np.column_stack([np.bincount(hours, weights=column, minlength=HOURS) for column in columns.T])


def _with_shape(fitted: RangeModel, known: Known, horizon: int) -> RangeModel:
    """Quantiles of the close, and medians of open, high and low, per step, of moves over the predicted scale.

    A candle's high is never under its open or close, so its median is not either: the median candle is valid.
    """
    moves = np.empty((horizon, sum(len(origins) for _, origins in known)))  # one price at a time
    quantiles = []
    middle = np.array([0.5])
    for price, levels in enumerate((middle, middle, middle, QUANTILES)):
        start = 0
        for one, part, scale in _scales(fitted, known):
            later = one.prices[part[:, None] + np.arange(1, horizon + 1), price]
            moves[:, start : start + len(part)] = (np.log(later / one.prices[part, 3][:, None]) / scale).T
            start += len(part)
        quantiles.append(np.stack([np.quantile(row, levels, overwrite_input=True) for row in moves]))
    return replace(fitted, table=quantiles[3], candle=np.hstack(quantiles[:3]))


def _scales(fitted: RangeModel, known: Known) -> Iterator[tuple[Series, np.ndarray, np.ndarray]]:
    for one, origins in known:
        inputs = fitted.inputs(one)
        for part in _parts(origins):
            yield one, part, fitted._scale(one, part, inputs)


def _parts(rows: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(rows), PART):
        yield rows[start : start + PART]
