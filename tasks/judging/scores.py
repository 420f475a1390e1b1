"""Scores, as stateless functions of arrays. Shapes: N origins, H steps, Q = 19 levels.

`quantiles` float [N, H, Q] and `realised` float [N, H] are cumulative log-returns against the last close.
Formulas are in docs/judging.md.
"""

import numpy as np
from numpy.typing import NDArray

from cpbmodels.data.series import Series
from cpbmodels.data.student_t import QUANTILES

Array = NDArray[np.float64]

LEVELS: Array = QUANTILES
"""The 19 quantile levels of every forecast: 0.05, 0.10, … 0.95."""

MEDIAN = 9
"""Index of the level 0.50."""

BAND_LEVELS = {50: (4, 14), 80: (1, 17), 90: (0, 18)}
"""Central band in per cent -> indices of its two levels (0.25/0.75, 0.10/0.90, 0.05/0.95)."""

TAILS = (0, 18)
"""Indices of the 5 % and the 95 % level."""


def pinball(quantiles: Array, realised: Array) -> Array:
    """Return the quantile loss [N, H, Q]: (τ - 1{y < q}) (y - q) of each level τ."""
    # max(τ e, (τ - 1) e) is the same as the definition's case distinction, without a mask of [N, H, Q].
    error = realised[..., None] - quantiles
    return np.maximum(LEVELS * error, (LEVELS - 1) * error)


def crps(quantiles: Array, realised: Array) -> Array:
    """Return the continuous ranked probability score [N, H], in log-return.

    CRPS is twice the integral of the pinball loss over the levels; here 2 × the mean over the 19 levels,
    each with equal weight. Without levels below 5 and above 95 % the value exceeds the exact integral (by 5 % for a
    Gaussian). This applies to every model, so ratios are not affected.
    """
    return 2 * pinball(quantiles, realised).mean(axis=-1)


def coverage(quantiles: Array, realised: Array, band: int) -> Array:
    """Return the share [H] of realised values within the central `band` (50, 80 or 90), edges included."""
    low, high = BAND_LEVELS[band]
    return ((realised >= quantiles[..., low]) & (realised <= quantiles[..., high])).mean(axis=0)


def width(quantiles: Array, band: int) -> Array:
    """Return the mean width [H] of the central `band`, in log-return."""
    low, high = BAND_LEVELS[band]
    return (quantiles[..., high] - quantiles[..., low]).mean(axis=0)


def reliability(quantiles: Array, realised: Array) -> Array:
    """Return, per level [Q], the share of realised values at or below that quantile; if calibrated, it is the level."""
    return (realised[..., None] <= quantiles).mean(axis=(0, 1))


def rmse(median: Array, realised: Array) -> Array:
    """Return the root mean squared error [H] of the median, in log-return."""
    return np.sqrt(((realised - median) ** 2).mean(axis=0))


def price_errors(median: Array, realised: Array, last_close: Array) -> tuple[Array, Array]:
    """Return (MAE [H], RMSE [H]) of the median in price, with `last_close` [N] in quote currency."""
    error = last_close[:, None] * (np.exp(realised) - np.exp(median))
    return np.abs(error).mean(axis=0), np.sqrt((error**2).mean(axis=0))


def mase(median: Array, realised: Array, training_returns: Array) -> float:
    """Return the mean absolute scaled error against the random walk (not the seasonal walk).

    The scale is the random walk's one-step MAE on the training span: mean |log-return| of `training_returns`.
    """
    return float(np.abs(realised - median).mean() / np.abs(training_returns).mean())


def direction_hits(median: Array, realised: Array) -> tuple[Array, Array]:
    """Return (hits [H], counted [H]) of the median's sign.

    A move of exactly zero is neither up nor down and is not counted. A median of exactly zero counts as half a hit, the
    expectation of a random guess.
    """
    # Cheap coins stand still in many candles: counted as misses, they would make every model look worse than a coin
    # toss.
    moved = realised != 0
    hit = np.where(median == 0, 0.5, np.sign(median) == np.sign(realised))
    return np.where(moved, hit, 0.0).sum(axis=0), moved.sum(axis=0).astype(float)


def classification(
    predicted: NDArray[np.int64], actual: NDArray[np.int64], classes: int = 3
) -> dict[str, Array]:
    """Return `accuracy`, `macro_f1` and `confusion` [classes, classes] (rows actual, columns predicted).

    Macro-F1 is the mean over the classes that are predicted or actual; a class without a hit has an F1 of 0.
    """
    # One count over actual × classes + predicted is the matrix, row by row.
    confusion = np.bincount(actual * classes + predicted, minlength=classes**2).reshape(classes, classes)
    hit, total = np.diag(confusion), confusion.sum(axis=0) + confusion.sum(axis=1)
    f1 = 2 * hit[total > 0] / total[total > 0]
    return {
        "accuracy": np.asarray(hit.sum() / max(1, confusion.sum())),
        "macro_f1": np.asarray(f1.mean() if f1.size else 0.0),
        "confusion": confusion.astype(float),
    }


Rows = NDArray[np.int64]
"""Origins: rows of the last known candles, ascending."""


def realised(series: Series, origins: Rows, horizon: int) -> Array:
    """Return the cumulative log-returns [N, H] of the closes after each origin."""
    # In log-returns a move of BTC and one of PEPE have the same unit, and returns of steps add up.
    close = np.log(series.prices[:, 3])
    return close[origins[:, None] + np.arange(1, horizon + 1)] - close[origins][:, None]
