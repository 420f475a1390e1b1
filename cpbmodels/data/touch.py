"""The chance that a price is touched: that the high (or the low) of a coming candle reaches it.

A model's table is the empirical distribution of extreme / width at each step h. The extreme is the running maximum of
the highs over steps 1 .. h (up), or of the falls to the lows (down), as a log-return from the last close; the width is
q90 - q10 of the model's own forecast of the close at step h. Extremes depend on the width alone, so that one table
serves all coins of a model.

Arrays: `table` float64 [2, H, 99], up and down, the quantiles of extreme / width at 1 .. 99 %; `width` float64
[..., H], in log-return. Between the quantiles the logarithm of the chance is linear in the distance. Beyond the last it
falls as a power of the distance does that passes through the 90 and the 99 % quantile, down to 1e-8.
"""

from collections.abc import Sequence

import numpy as np

from cpbmodels.data.prediction import Prediction
from cpbmodels.data.series import Series
from cpbmodels.errors import ModelError

LEVELS = np.arange(1, 100) / 100
SIDES = ("up", "down")
KEY = "touch.table"
"""Name of the table among the tensors of a model's folder (float32)."""
TINY = 1e-12
"""Least width, in log-return: that of a price which never moves."""

MAX_RATIO = 1e4
"""Largest extreme in a table, in widths: that of a coin which hardly ever moves and then leaps."""
MAX_GROWTH = 10.0
"""Largest growth of the distance while the chance falls to a tenth. Beyond it the extremes would have no mean."""
MAX_STOP = 300
"""Largest log-return of a stop: beyond it a price, times or divided by e^300, is near the ends of float64 (e^709)."""

Numbers = float | Sequence[float] | np.ndarray

_TAIL = np.arange(1, 7)
_LOG_CHANCES = np.log(np.concatenate([[1.0], 1 - LEVELS, 0.01 * 0.1**_TAIL]))


def extremes(series: Series, origins: np.ndarray, horizon: int) -> np.ndarray:
    """Running extremes [2, N, H] after each origin: log(highest high / last close), log(last close / lowest low)."""
    rows = origins[:, None] + np.arange(1, horizon + 1)
    moves = np.log(series.prices[rows, 1:3] / series.prices[origins, 3][:, None, None])
    # Running: the extreme of h steps contains that of every shorter horizon.
    return np.maximum.accumulate(np.stack([moves[..., 0], -moves[..., 1]]), axis=-1)


def width(quantiles: np.ndarray) -> np.ndarray:
    """Return q90 - q10 [..., H] of quantiles [..., H, 19] of the log-return."""
    return np.maximum(quantiles[..., 17] - quantiles[..., 1], TINY)


def ratios(series: Series, prediction: Prediction) -> np.ndarray:
    """Extremes over widths [2, N, H] of forecasts whose candles are known."""
    reached = extremes(series, prediction.origins, prediction.quantiles.shape[1])
    return reached / width(prediction.quantiles)


def fit(ratios: np.ndarray) -> np.ndarray:
    """The table of extremes over widths [2, N, H], N > 0."""
    return np.ascontiguousarray(
        np.moveaxis(np.quantile(np.clip(ratios, 0, MAX_RATIO), LEVELS, axis=1), 0, -1)
    )


def survival(quantiles: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """The share [N, H] of extremes beyond distances in widths, each step's by its row of `quantiles` [H, 99]."""
    by_step = zip(distance.T, quantiles, strict=True)
    return np.exp([np.interp(far, _distances(row), _LOG_CHANCES) for far, row in by_step]).T


def reach(quantiles: np.ndarray, probability: float) -> np.ndarray:
    """The distance [H] in widths that a share of extremes goes beyond: the inverse of `survival`."""
    at = -np.log(probability)
    return np.array([np.interp(at, -_LOG_CHANCES, _distances(row)) for row in quantiles])


def _distances(quantiles: np.ndarray) -> np.ndarray:
    """The distances, in widths, of which `_LOG_CHANCES` are the chances."""
    # From the 90 to the 99 % level the chance beyond falls to a tenth: the tail goes on at that rate, as a power
    # law's.
    growth = min(max(quantiles[98] / max(quantiles[89], TINY), 1), MAX_GROWTH)
    return np.concatenate([[0.0], quantiles, quantiles[98] * growth**_TAIL])


def numbers(given: Numbers) -> np.ndarray:
    """float64 of a number, or of several; of texts too. ModelError for anything else."""
    try:
        return np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ModelError(f"{given!r} is neither a number nor a list of numbers.") from None


class Touch:
    """Chances and stops of forecasts [...], in prices.

    Args:
        table: float64 [2, H, 99] of the model, or None.
        close: the close's quantiles [..., H, 19] in prices.
        last_close: [...].

    Raises:
        ModelError: the model has no table.
    """

    def __init__(self, table: np.ndarray | None, close: np.ndarray, last_close: np.ndarray | float) -> None:
        if table is None:
            raise ModelError(
                "The model has no table of extremes, from which the chance of a touch is read: train it again."
            )
        self.table, self.last_close = table, np.asarray(last_close, dtype=np.float64)
        self.width = width(np.log(close))

    def chance(self, price: Numbers) -> np.ndarray:
        """The chance [..., H] that a price is touched by each step; ModelError if it is not a number above 0."""
        prices = numbers(price)
        if not (np.isfinite(prices) & (prices > 0)).all():
            raise ModelError(f"The price {price} cannot be touched: give a number above 0.")
        move = np.log(prices / self.last_close)
        distance = np.abs(move)[..., None] / self.width
        chances = np.ones_like(distance)
        for side, quantiles in zip((move > 0, move < 0), self.table, strict=True):
            chances[side] = survival(quantiles, distance[side])
        return np.maximum.accumulate(chances, axis=-1)  # what was reached before is reached

    def stop(self, probability: float, side: str) -> np.ndarray:
        """The price [..., H] that is touched within each step with this chance; side: up or down.

        Raises:
            ModelError: the probability is not between 0 and 1, the side is neither up nor down, or such a stop lies
                more than e^MAX_STOP-fold from the close.
        """
        chance = numbers(probability)
        if side not in SIDES or chance.ndim or not 0 < chance < 1:
            raise ModelError(
                f"There is no stop on the side {side!r} with the chance {probability!r}: give up or down, and a "
                "chance between 0 and 1."
            )
        distance = reach(self.table[SIDES.index(side)], float(chance))
        # A later stop is never nearer: what was reached within fewer steps was reached.
        move = np.maximum.accumulate(distance * self.width, axis=-1)
        if not (move <= MAX_STOP).all():
            raise ModelError(
                f"The stop on the side {side} with the chance {probability!r} lies more than e^{MAX_STOP}-fold from "
                "the close: ask for a larger chance, or train the model again."
            )
        return self.last_close[..., None] * np.exp(move if side == "up" else -move)

    def columns(self, touch: Numbers, stop: Numbers) -> dict[str, np.ndarray]:
        """The columns [..., H] `touch_98000` of prices and `stop_up_0.05`, `stop_down_0.05` of chances."""
        chances = {f"touch_{price:.12g}": self.chance(price) for price in numbers(touch).ravel()}
        return chances | {
            f"stop_{side}_{p:g}": self.stop(p, side) for p in numbers(stop).ravel() for side in SIDES
        }
