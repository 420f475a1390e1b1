"""Robust HAR in closed form: one linear forecast of the coming range. Numpy only; its only definition.

HAR: heterogeneous autoregression, a linear model of volatility on its means over several past windows (Corsi 2009).
Here, with N origins and F columns, for each of the steps h = 1 .. H:

1. Target [N, H]: ln(mean log-range of the next h candles / volatility at the origin), at least ln(MIN_RANGE). The range
   says more about a candle's volatility than its return does; as a logarithm with a floor it is robust to outliers.
2. Design [N, 1 + F + 168]: the constant 1, the columns of the last candle (by default the logs of mean ranges and mean
   |returns| over the last 1 .. 168 candles, and the log volatility), and the hour of the week one-hot; the architecture
   `line` adds the quarter of the day, 96 columns more.
3. Ridge regression: solve (X^T X + RIDGE_PENALTY I) w = X^T y, the intercept unpenalised.
4. Distribution: exp(prediction) x volatility x sqrt(h) is the scale; the training moves divided by their scale give one
   table of quantiles per step, and the forecast is scale x table. `shape` can restrict the table to later origins.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from cpbmodels.data.columns import SCALED
from cpbmodels.data.series import Series
from cpbmodels.data.student_t import QUANTILES
from cpbmodels.data.wide import QUARTERS_PER_DAY
from cpbmodels.errors import ModelError

RIDGE_PENALTY = 20.0
MIN_RANGE = 0.05  # smallest mean range as a share of the volatility; the feature columns have the same floor
MAX_LOG_SCALE = 3.0  # a forecast scale lies within exp(-3) .. exp(3) times the volatility
HOURS_PER_WEEK = 168
MAX_BLOCK_ROWS = 20_000  # of the design at once: eight years of 20 coins in one block would take gigabytes

TrainingOrigins = Sequence[tuple[Series, np.ndarray]]
"""Series, each with the rows (int64 [N]) of the origins that may be learnt from."""


@dataclass(frozen=True)
class RangeModel:
    """A fitted robust HAR of H steps, float64. Units are volatility x sqrt(step).

    `level` [H], `slopes` [F, H] of the columns `names`, `hours` [168, H] (no `calendar` column: no hours) and
    `quarters` [96, H] (if it reads `quarter`) add up to the log of the scale. `table` [H, 19] and `candle` [H, 3]
    (open, high, low) times the scale are the quantiles of the close and the medians of the other prices, relative to
    the last close.
    """

    names: tuple[str, ...]
    calendar: str
    clip: float
    level: np.ndarray
    slopes: np.ndarray
    hours: np.ndarray
    table: np.ndarray
    candle: np.ndarray
    quarter: str = ""
    quarters: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))

    @property
    def codes(self) -> dict[str, int]:
        """The columns of codes that it reads, and how many codes each has."""
        both = {self.calendar: HOURS_PER_WEEK, self.quarter: QUARTERS_PER_DAY}
        return {name: count for name, count in both.items() if name}

    def scale(self, series: Series, origins: np.ndarray) -> np.ndarray:
        """The predicted scale [N, H] in log-return."""
        return self.scale_of(series, origins, self.inputs(series))

    def quantiles(self, series: Series, origins: np.ndarray) -> np.ndarray:
        """Quantiles [N, H, 19] of the cumulative log-return after each origin."""
        return self.scale(series, origins)[..., None] * self.table

    def inputs(self, series: Series) -> np.ndarray:
        """Its columns [rows, F], scaled as models read them: returns in units of the volatility."""
        columns = series.columns(self.names)
        scaled = [index for index, name in enumerate(self.names) if name in SCALED]
        columns[:, scaled] /= series.volatility[:, None]
        return columns.clip(-self.clip, self.clip)

    def code(self, name: str, series: Series, origins: np.ndarray) -> np.ndarray:
        """A column's code at each origin, int64 [N]: the hour of the week 0 .. 167, the quarter of the day 0 .. 95."""
        return series.columns((name,))[origins, 0].astype(np.int64)

    def scale_of(self, series: Series, origins: np.ndarray, inputs: np.ndarray) -> np.ndarray:
        """Return the predicted scale [N, H] of the log-return, of the series' inputs [rows, F]."""
        log_scale = inputs[origins] @ self.slopes + self.level
        if self.calendar:
            log_scale += self.hours[self.code(self.calendar, series, origins)]
        if self.quarter:
            log_scale += self.quarters[self.code(self.quarter, series, origins)]
        steps = np.sqrt(np.arange(1, len(self.level) + 1))
        # A line extrapolates: columns far outside the training years must not give a band of any width.
        relative = np.exp(log_scale.clip(-MAX_LOG_SCALE, MAX_LOG_SCALE))
        return relative * series.volatility[origins][:, None] * steps


def fit_ranges(
    training: TrainingOrigins,
    names: tuple[str, ...],
    calendar: str,
    horizon: int,
    clip: float = np.inf,
    quarter: str = "",
    shape: TrainingOrigins | None = None,
) -> RangeModel:
    """Fit one model on the origins of one or several series; it serves any series, including unseen ones.

    Looks at no row after the last origin's horizon. `shape`: the origins that give the quantiles, instead of all.
    ModelError: no origin at all.
    """
    training = _with_origins(training)
    empty = np.zeros((0, 0))
    blank = RangeModel(names, calendar, clip, empty, empty, empty, empty, empty, quarter)
    gram, moment = _normal_equations(blank, training, horizon)
    weights = solve_ridge(gram, moment)
    dense = 1 + len(names)
    hours = weights[dense : dense + HOURS_PER_WEEK] if calendar else np.zeros((HOURS_PER_WEEK, horizon))
    quarters = weights[-QUARTERS_PER_DAY:] if quarter else empty
    # The rows of the solution stand in the design's order: 1, columns, hours, quarters.
    fitted = replace(blank, level=weights[0], slopes=weights[1:dense], hours=hours, quarters=quarters)
    return _with_quantiles(fitted, training if shape is None else _with_origins(shape), horizon)


def solve_ridge(gram: np.ndarray, moment: np.ndarray) -> np.ndarray:
    """w [D, H] of (X^T X + RIDGE_PENALTY I) w = X^T y; column 0 of X is the intercept, which is not shrunk."""
    penalty = RIDGE_PENALTY * np.eye(len(gram))
    # Shrinking the level would make every scale too small or too large, not just less certain.
    penalty[0, 0] = 0
    return np.linalg.solve(gram + penalty, moment)


def _with_origins(training: TrainingOrigins) -> TrainingOrigins:
    training = [(series, origins) for series, origins in training if len(origins)]
    if not training:
        raise ModelError("the robust HAR needs at least one training origin: give it more history.")
    return training


def future_range(series: Series, origins: np.ndarray, horizon: int) -> np.ndarray:
    """The target [N, H]: ln of the mean log-range over the next 1 .. H candles, relative to the volatility.

    From one cumulative sum of the log-range, so a mean over any number of candles takes one subtraction.
    """
    # total[i] sums the rows before i: the h candles after an origin t are total[t + 1 + h] - total[t + 1].
    total = np.concatenate([[0.0], np.cumsum(np.nan_to_num(series.columns(("log_range",))[:, 0]))])
    steps = np.arange(1, horizon + 1)
    mean = (total[origins[:, None] + 1 + steps] - total[origins + 1][:, None]) / steps
    return np.log(np.maximum(mean / series.volatility[origins][:, None], MIN_RANGE))


def _normal_equations(
    blank: RangeModel, training: TrainingOrigins, horizon: int
) -> tuple[np.ndarray, np.ndarray]:
    """X^T X [D, D] and X^T y [D, H] of the design (1, F columns, 168 hours and 96 quarters one-hot).

    Added up block by block, so the full design matrix is never built; its one-hot parts are sums per code, not
    products.
    """
    dense, codes = 1 + len(blank.names), blank.codes
    ends = dense + np.cumsum([0, *codes.values()])
    parts = [(name, slice(*edges)) for name, edges in zip(codes, pairwise(ends.tolist()), strict=True)]
    gram, moment = np.zeros((ends[-1], ends[-1])), np.zeros((ends[-1], horizon))
    for series, origins in training:
        inputs = blank.inputs(series)
        for block in _blocks(origins):
            design = np.column_stack([np.ones(len(block)), inputs[block]])
            target = future_range(series, block, horizon)
            gram[:dense, :dense] += design.T @ design
            moment[:dense] += design.T @ target
            row_codes = [blank.code(name, series, block) for name in codes]
            for (name, part), code in zip(parts, row_codes, strict=True):
                sums = _sums_by_code(code, np.hstack([design, target]), codes[name])
                gram[part, :dense] += sums[:, :dense]
                gram[part, part] += np.diag(sums[:, 0])  # column 0 is ones: the number of rows per code
                moment[part] += sums[:, dense:]
            if len(row_codes) == 2:  # rows of each hour and quarter
                (_, hours), (_, quarters) = parts
                pairs = np.bincount(
                    row_codes[0] * QUARTERS_PER_DAY + row_codes[1],
                    minlength=HOURS_PER_WEEK * QUARTERS_PER_DAY,
                )
                gram[quarters, hours] += pairs.reshape(HOURS_PER_WEEK, QUARTERS_PER_DAY).T
    for _, part in parts:
        # X^T X is symmetric; above, only its lower blocks were added up.
        gram[: part.start, part] = gram[part, : part.start].T
    return gram, moment


def _sums_by_code(codes: np.ndarray, columns: np.ndarray, count: int) -> np.ndarray:
    """Sum of each column [N, C] over the rows of each code: [count, C]."""
    sums = [np.bincount(codes, weights=column, minlength=count) for column in columns.T]
    return np.column_stack(sums)


def _with_quantiles(fitted: RangeModel, training: TrainingOrigins, horizon: int) -> RangeModel:
    """Quantiles of the close, and medians of open, high and low, per step, of moves over the predicted scale.

    A candle's high is never under its open or close, so its median is not either: the median candle is valid.
    """
    # One price at a time, and quantiles in place: the moves of all origins are the largest array here.
    moves = np.empty((horizon, sum(len(origins) for _, origins in training)))
    quantiles = []
    middle = np.array([0.5])
    for price, levels in enumerate((middle, middle, middle, QUANTILES)):
        start = 0
        for series, block, scale in _scales(fitted, training):
            later = series.prices[block[:, None] + np.arange(1, horizon + 1), price]
            moves[:, start : start + len(block)] = (
                np.log(later / series.prices[block, 3][:, None]) / scale
            ).T
            start += len(block)
        quantiles.append(np.stack([np.quantile(row, levels, overwrite_input=True) for row in moves]))
    return replace(fitted, table=quantiles[3], candle=np.hstack(quantiles[:3]))


def _scales(fitted: RangeModel, training: TrainingOrigins) -> Iterator[tuple[Series, np.ndarray, np.ndarray]]:
    """Series, block of its origins [N] and their predicted scale [N, H] in log-return."""
    for series, origins in training:
        inputs = fitted.inputs(series)
        for block in _blocks(origins):
            yield series, block, fitted.scale_of(series, block, inputs)


def _blocks(rows: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(rows), MAX_BLOCK_ROWS):
        yield rows[start : start + MAX_BLOCK_ROWS]
