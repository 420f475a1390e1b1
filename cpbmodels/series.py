"""A coin's candles as a model reads them: prices, causal columns, volatility, segments and time spans.

Numpy only: reading or scoring data does not import torch. Everything at row t is known when candle t closes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from cpbmodels.errors import ModelError
from cpbmodels.figures import EMBARGO

LAMBDA = 0.96  # EWMA decay per candle; RiskMetrics' daily 0.94 forgets too fast for hourly candles
WARM_UP = 24  # returns in a segment before its EWMA volatility is used as an input
VOLATILITY_FLOOR = 1e-6  # a coin without trades has volatility 0, and everything is divided by it
RETURNS = ("r_open", "r_high", "r_low", "r_close")
CANDLE_COLUMNS = (*RETURNS, "abs_return", "log_sigma")
SCALED = (*RETURNS, "abs_return")  # columns that models read divided by the origin's volatility
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Series:
    """One coin x timeframe. Rows are candles, oldest first.

    Attributes
    ----------
    prices: float64 [rows, 4], open high low close.
    features: float64 [rows, F], causal columns; NaN while a column warms up.
    names: the F column names.
    volatility: float64 [rows], EWMA std of one-candle log-returns up to and including the row.
    segments: int [rows], id of the run of candles without hole or relisting; nothing crosses a change.
    spans: "train", "validation", "test" -> half-open row range [a, b).
    times: int64 [rows] open time in microseconds UTC, if known.
    """

    prices: np.ndarray
    features: np.ndarray
    names: tuple[str, ...]
    volatility: np.ndarray
    segments: np.ndarray
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    symbol: str = ""
    timeframe: str = ""
    times: np.ndarray | None = None

    def __len__(self) -> int:
        """Rows."""
        return len(self.prices)

    def usable(self, context: int, horizon: int = 0) -> np.ndarray:
        """Bool [rows]: rows that can be the last context candle of a window with `horizon` known candles."""
        finite = np.isfinite(self.features).all(axis=1) & np.isfinite(self.volatility)
        holes = np.concatenate([[0], np.cumsum(~finite)])  # equal at both ends of a range: no hole in it
        rows = np.arange(len(self))
        first, last = rows - context + 1, rows + horizon
        inside = (first >= 0) & (last < len(self))
        first, last = np.maximum(first, 0), np.minimum(last, max(len(self) - 1, 0))
        return inside & (holes[rows + 1] == holes[first]) & (self.segments[first] == self.segments[last])

    def origins(self, split: str, context: int, horizon: int, stride: int = 1) -> np.ndarray:
        """Rows (int64, ascending) of the last context candle of every valid window of a split.

        Context and horizon lie in one segment, no column is NaN in the context, and for the split's
        range [a, b): a <= origin and origin + horizon < b.
        """
        if split not in SPLITS:
            raise ModelError(f"There is no split {split!r}: choose one of {', '.join(SPLITS)}.")
        a, b = self.spans.get(split, (0, 0))
        rows = np.flatnonzero(self.usable(context, horizon))
        return rows[(rows >= a) & (rows + horizon < b)][::stride].astype(np.int64)

    def newest_origin(self, context: int) -> int:
        """The last row from which a live forecast can be made."""
        rows = np.flatnonzero(self.usable(context))
        if not len(rows):
            raise ModelError(
                f"{self.label} has no {context} usable candles in a row to forecast from: give it more history."
            )
        return int(rows[-1])

    def tail(self, rows: int) -> Series:
        """The last rows alone, without spans; the arrays are views."""
        cut = slice(max(len(self) - rows, 0), None)
        return replace(
            self,
            prices=self.prices[cut],
            features=self.features[cut],
            volatility=self.volatility[cut],
            segments=self.segments[cut],
            times=self.times[cut] if self.times is not None else None,
            spans={},
        )

    def columns(self, names: tuple[str, ...]) -> np.ndarray:
        """float64 [rows, len(names)], in the order asked for."""
        missing = [name for name in names if name not in self.names]
        if missing:
            raise ModelError(
                f"{self.label} lacks the column(s) {', '.join(missing)}: build it with tasks.signals, "
                "or choose an architecture that reads candles alone (transformer, gru, lstm, linear)."
            )
        return self.features[:, [self.names.index(name) for name in names]]

    @property
    def label(self) -> str:
        """Name for messages."""
        return f"{self.symbol or 'The series'} {self.timeframe}".strip()

    @classmethod
    def from_ohlc(
        cls,
        prices: np.ndarray,
        *,
        segments: np.ndarray | None = None,
        times: np.ndarray | None = None,
        symbol: str = "",
        timeframe: str = "",
        validation: float = 0.15,
        test: float = 0.0,
        embargo: int | None = None,
    ) -> Series:
        """A series from candles alone: [rows, 4] open, high, low, close, oldest first.

        The last part validates (and, if asked, a part behind it tests), with `embargo` rows between the
        spans: 178 by default, 40 (context 30 + horizon 10) for a series under 4,000 rows.
        """
        prices = check_prices(prices, symbol or "prices")
        if segments is None:
            segments = contiguous_runs(times, len(prices))
        names, features, volatility = candle_columns(prices, segments)
        gap = embargo if embargo is not None else (EMBARGO if len(prices) >= 4000 else 40)
        return cls(
            prices=prices,
            features=features,
            names=names,
            volatility=volatility,
            segments=np.asarray(segments),
            spans=split_rows(len(prices), validation, test, gap),
            symbol=symbol,
            timeframe=timeframe,
            times=times,
        )


def check_prices(prices: np.ndarray, label: str) -> np.ndarray:
    """The candles as float64 [rows, 4], or a ModelError naming the first impossible row."""
    prices = np.ascontiguousarray(prices, dtype=np.float64)
    if prices.ndim != 2 or prices.shape[1] != 4:
        raise ModelError(
            f"{label}: candles must have the shape [rows, 4] (open, high, low, close), not {prices.shape}."
        )
    wrong = ~(np.isfinite(prices) & (prices > 0)).all(axis=1)
    wrong |= (prices[:, 1] < prices.max(axis=1)) | (prices[:, 2] > prices.min(axis=1))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise ModelError(
            f"{label}: row {row} is no candle ({prices[row].tolist()}): prices must be positive and finite, "
            "with low <= open, close <= high; remove or repair it and the rows like it."
        )
    return prices


def contiguous_runs(times: np.ndarray | None, rows: int) -> np.ndarray:
    """Segment ids [rows]: a new one wherever the step between open times differs from the median step."""
    if times is None or rows < 3:
        return np.zeros(rows, dtype=np.int64)
    steps = np.diff(np.asarray(times, dtype=np.int64))
    return np.concatenate([[0], np.cumsum(steps != np.median(steps))]).astype(np.int64)


def split_rows(rows: int, validation: float, test: float, embargo: int) -> dict[str, tuple[int, int]]:
    """Row ranges train | embargo | validation | embargo | test of a single series."""
    if not (0 <= test < 1 and 0 <= validation < 1 and test + validation < 1):
        raise ModelError("validation and test are shares of the rows: both in 0..1, together under 1.")
    test_rows, validation_rows = round(rows * test), round(rows * validation)
    test_start = rows - test_rows
    validation_end = test_start - (embargo if test_rows else 0)
    validation_start = max(validation_end - validation_rows, 0)
    train_end = max(validation_start - (embargo if validation_rows else 0), 0)
    return {
        "train": (0, train_end),
        "validation": (validation_start, validation_end),
        "test": (test_start, rows),
    }


def candle_columns(
    prices: np.ndarray, segments: np.ndarray
) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """The columns that follow from the candle alone, and the volatility. Their only definition.

    Returns names, float64 [rows, 6] and volatility [rows]: `r_x` = ln(x_t / close_{t-1}), `abs_return` =
    |r_close|, `log_sigma` = ln EWMA volatility (NaN for a segment's first 24 returns).
    """
    segments = np.asarray(segments)
    starts = np.concatenate([[True], segments[1:] != segments[:-1]]) if len(segments) else np.zeros(0, bool)
    previous = np.concatenate([[np.nan], prices[:-1, 3]])[: len(prices)]
    returns = np.log(prices / np.where(starts, np.nan, previous)[:, None])
    volatility = ewma_volatility(returns[:, 3], starts)
    age = np.arange(len(prices)) - np.maximum.accumulate(np.where(starts, np.arange(len(prices)), 0))
    log_sigma = np.where(age >= WARM_UP, np.log(volatility), np.nan)
    columns = np.column_stack([returns, np.abs(returns[:, 3]), log_sigma])
    return CANDLE_COLUMNS, columns, volatility


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
