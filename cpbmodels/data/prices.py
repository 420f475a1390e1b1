"""Prices [rows, 4], checked, and the columns that follow from them alone. Numpy only."""

from itertools import pairwise

import numpy as np

from cpbmodels.data import SEGMENT_JUMP
from cpbmodels.errors import ModelError

PRICES = ("open", "high", "low", "close")

LAMBDA = 0.96  # EWMA decay per candle; RiskMetrics' daily 0.94 forgets too fast for hourly candles
SIGMA_WARMUP = 24  # returns in a segment before its EWMA volatility is used as an input
VOLATILITY_FLOOR = 1e-6  # a coin without trades has volatility 0, and everything is divided by it
RETURNS = ("r_open", "r_high", "r_low", "r_close")
CANDLE_COLUMNS = (*RETURNS, "abs_return", "log_sigma")
SCALED = (*RETURNS, "abs_return")  # columns that models read divided by the origin's volatility


def check_prices(prices: np.ndarray, label: str) -> np.ndarray:
    """The candles as float64 [rows, 4], or a ModelError naming the first impossible row."""
    try:
        prices = np.ascontiguousarray(prices, dtype=np.float64)
    except (TypeError, ValueError):  # numpy's sentence names neither column nor remedy
        raise ModelError(
            f"{label}: candles must be numbers, [rows, 4] (open, high, low, close); a table with times goes to "
            "Series.from_frame."
        ) from None
    if prices.ndim != 2 or prices.shape[1] != 4:
        raise ModelError(
            f"{label}: candles must have the shape [rows, 4] (open, high, low, close), not {prices.shape}."
        )
    wrong = ~is_candle(prices)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise ModelError(
            f"{label}: row {row} is not a valid candle ({prices[row].tolist()}): prices must be positive and finite, "
            "with low <= open, close <= high; remove or repair it and the rows like it."
        )
    return prices


def is_candle(prices: np.ndarray) -> np.ndarray:
    """Bool [rows]: whether [rows, 4] is a possible open, high, low, close."""
    positive = (np.isfinite(prices) & (prices > 0)).all(axis=1)
    inside = (prices[:, 1] >= prices.max(axis=1)) & (prices[:, 2] <= prices.min(axis=1))
    return np.asarray(positive & inside)


def candle_columns(
    prices: np.ndarray, segments: np.ndarray
) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """The columns that follow from the candle alone, and the volatility. Their only definition.

    Returns names, float64 [rows, 6] and volatility [rows]: `r_x` = ln(x_t / close_{t-1}), `abs_return` =
    |r_close|, `log_sigma` = ln EWMA volatility (NaN for a segment's first 24 returns).
    """
    age = segment_age(np.asarray(segments))
    starts = age == 0
    previous = np.concatenate([[np.nan], prices[:-1, 3]])[: len(prices)]
    returns = np.log(prices / np.where(starts, np.nan, previous)[:, None])
    volatility = ewma_volatility(returns[:, 3], starts)
    log_sigma = np.where(age >= SIGMA_WARMUP, np.log(volatility), np.nan)
    columns = np.column_stack([returns, np.abs(returns[:, 3]), log_sigma])
    return CANDLE_COLUMNS, columns, volatility


def level_leaps(opens: np.ndarray, closes: np.ndarray) -> np.ndarray:
    """Bool [rows]: whether the price level leaps between the close before and the open of a row."""
    leaps = np.zeros(len(opens), dtype=bool)
    leaps[1:] = np.abs(np.log(opens[1:] / closes[:-1])) > SEGMENT_JUMP
    return leaps


def segment_ids(prices: np.ndarray, breaks: np.ndarray) -> np.ndarray:
    """Segment ids, int64 [rows], of [rows, 4]: a segment ends before each True of `breaks` [rows] and each leap."""
    return np.cumsum(breaks | level_leaps(prices[:, 0], prices[:, 3]), dtype=np.int64)


def segment_age(segments: np.ndarray) -> np.ndarray:
    """Candles since the segment's first, int64 [rows], of the segments' ids [rows]."""
    rows = np.arange(len(segments))
    first = np.concatenate([[True], segments[1:] != segments[:-1]])[: len(rows)]
    return rows - np.maximum.accumulate(np.where(first, rows, 0))


def ewma_volatility(returns: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Bias-corrected EWMA std [rows], restarted at each True in `starts`; NaN in a segment's first row."""
    volatility = np.full(len(returns), np.nan)
    bounds = [*np.flatnonzero(starts).tolist(), len(returns)]
    for first, end in pairwise(bounds):
        if end - first > 1:
            count = np.arange(1, end - first)
            squares = _ewma(returns[first + 1 : end] ** 2) / (1 - LAMBDA**count)
            volatility[first + 1 : end] = np.maximum(np.sqrt(squares), VOLATILITY_FLOOR)
    return volatility


def _ewma(values: np.ndarray) -> np.ndarray:
    """Sum over the past of (1 - lambda) lambda^age x value, for all rows at once.

    After the pass with reach r a row sums up the last 2r values: each pass doubles how far back the sum goes. Always
    eleven passes (0.96^2048 = 5e-37 is negligible), so a row's bits do not depend on how many rows follow.
    """
    out = (1 - LAMBDA) * values
    for reach in 2 ** np.arange(11):
        out[reach:] = out[reach:] + LAMBDA ** float(reach) * out[:-reach]
    return out
