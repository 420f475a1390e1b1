"""A coin's candles as a model reads them: prices, causal columns, volatility, segments, time spans.

Reading or scoring data does not import torch. Everything at row t is known when candle t closes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from cpbmodels.data import EMBARGO, FEATURE_WARMUP, INTERVAL_SECONDS, RETURNS
from cpbmodels.data.candles import read_candles
from cpbmodels.data.columns import (
    FEATURES,
    PRICES,
    candle_columns,
    check_prices,
    feature_frame,
    segment_ids,
)
from cpbmodels.data.cross_section import RANGE_LENGTHS, CoinMoves, CrossSection
from cpbmodels.data.numbers import Decimal
from cpbmodels.data.wide import MARKET_COLUMNS, WIDE_COLUMNS, own_columns, quarters, returns
from cpbmodels.errors import ModelError, printable

log = logging.getLogger(__name__)

SPLITS = ("train", "validation", "test")

_MEAN_RANGES = tuple(f"log_range_mean_{n}" for n in RANGE_LENGTHS)


@dataclass(frozen=True)
class Series:
    """One coin x timeframe. Rows are candles, oldest first.

    Attributes
    ----------
    prices: float64 [rows, 4], open high low close.
    features: float64 [rows, F], causal columns; NaN while a column warms up.
    names: the F column names.
    volatility: float64 [rows], EWMA std of one-candle log-returns up to and including the row.
    segments: int [rows], id of the run of candles without hole or leap of the price level; nothing crosses a change.
    spans: "train", "validation", "test" -> half-open row range [a, b).
    times: int64 [rows] open time in microseconds UTC, if known.
    still: bool [rows], whether the candle stands still (`cpbmodels.data.columns.stands_still`), if known.
    cross_section: what it shares with the other coins of its timeframe (`with_cross_section`), if known.
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
    still: np.ndarray | None = None
    cross_section: CrossSection | None = None

    def __len__(self) -> int:
        """Rows."""
        return len(self.prices)

    def __repr__(self) -> str:
        """One line: name, candles, span, gaps."""
        gaps = int((np.diff(self.segments) != 0).sum()) if len(self) else 0
        span = ""
        if self.times is not None and len(self):
            first, last = (instant(int(self.times[row])) for row in (0, -1))
            span = f", {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC"
        name = f"{self.symbol or '-'} {self.timeframe}"
        return printable(f"<Series {name}: {len(self):,} candles{span}, {gaps} gaps>", keep="")

    @property
    def step_seconds(self) -> int:
        """Length of a candle in seconds: of the timeframe, else the usual distance of the open times.

        Raises:
            ModelError: the series knows neither a timeframe nor times.
        """
        if self.timeframe in INTERVAL_SECONDS:
            return INTERVAL_SECONDS[self.timeframe]
        if self.times is None or len(self) < 2:
            raise ModelError(
                f"{self.label}: the length of its candles is not known; make it with Series.from_frame, or give "
                "from_ohlc a timeframe."
            )
        # The median: a gap makes single distances longer, never the usual one.
        return int(np.median(np.diff(self.times))) // 1_000_000

    def still_until(self, row: int) -> int:
        """How many candles up to and with a row stand still, without one that moves between; 0 where not known."""
        if self.still is None:
            return 0
        moving = np.flatnonzero(~self.still[: row + 1])
        return row - (int(moving[-1]) if len(moving) else -1)

    def end_of(self, row: int) -> datetime:
        """The close (UTC) of the candle in a row, at which a forecast from it can be issued.

        Raises:
            ModelError: the series has no times.
        """
        if self.times is None:
            raise ModelError(
                f"{self.label} has no times: make it with Series.from_frame, or give from_ohlc `times`."
            )
        return instant(int(self.times[row])) + timedelta(seconds=self.step_seconds)

    def usable(self, context: int, horizon: int = 0) -> np.ndarray:
        """Bool [rows]: rows that can be the last context candle of a window with `horizon` known candles."""
        finite = np.isfinite(self.features).all(axis=1) & np.isfinite(self.volatility)
        holes = np.concatenate([[0], np.cumsum(~finite)])  # equal at both ends of a range: no hole in it
        rows = np.arange(len(self))
        first, last = rows - context + 1, rows + horizon
        inside = (first >= 0) & (last < len(self))
        # For the look-up alone: windows that leave the series are ruled out by `inside` already.
        first, last = np.maximum(first, 0), np.minimum(last, max(len(self) - 1, 0))
        # Ids of segments never fall, so equal ids at both ends are one segment throughout.
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

    def is_frozen(self, origins: np.ndarray) -> bool:
        """Whether the price moves in no candle after these origins (int64 [N], N > 0): nothing can be learnt there."""
        return len(origins) > 0 and not self.columns(RETURNS)[origins + 1].any()

    def still_share(self, split: str) -> float:
        """The share of a split's candles that stand still; 0 where that is not known."""
        first, end = self.spans.get(split, (0, 0))
        return float(self.still[first:end].mean()) if self.still is not None and end > first else 0.0

    def newest_origin(self, context: int) -> int:
        """The last row from which a live forecast can be made."""
        rows = np.flatnonzero(self.usable(context))
        if not len(rows):
            raise ModelError(
                f"{self.label} has {len(self):,} candles and no run of {context} that can be used: columns need "
                f"{FEATURE_WARMUP + 1} candles without a gap or leap of the price before them; give it more history."
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
            still=self.still[cut] if self.still is not None else None,
            spans={},
        )

    def columns(self, names: tuple[str, ...]) -> np.ndarray:
        """float64 [rows, len(names)], in the requested order: features, and what `cpbmodels.data.wide` adds to them."""
        wide = [name in WIDE_COLUMNS and name not in self.names for name in names]
        missing = [
            name for name, is_wide in zip(names, wide, strict=True) if not is_wide and name not in self.names
        ]
        if missing:
            raise ModelError(
                f"{self.label} lacks the column(s) {', '.join(missing)}: make it with Series.from_frame (which needs "
                "a `volume` column for log_volume_change), or choose an architecture that reads candles alone "
                "(transformer, gru, lstm, linear)."
            )
        if not any(wide):
            return self.features[:, [self.names.index(name) for name in names]]
        out = np.empty((len(self), len(names)))
        for place, (name, is_wide) in enumerate(zip(names, wide, strict=True)):
            source, order = (self._wide, WIDE_COLUMNS) if is_wide else (self.features, self.names)
            out[:, place] = source[:, order.index(name)]
        return out

    @cached_property
    def _wide(self) -> np.ndarray:
        """`WIDE_COLUMNS`, computed when the first of them is requested: float64 [rows, W], all finite."""
        change = "log_volume_change"
        own = own_columns(
            self.prices,
            self.volatility,
            self.segments,
            self.step_seconds,
            self.columns(("log_range",))[:, 0],
            self.columns((change,))[:, 0] if change in self.names else None,
        )
        # Without other coins: neutral columns, and `no_market` = 1, by which a model knows that they are none.
        shared = np.hstack([np.zeros((len(self), len(MARKET_COLUMNS))), np.ones((len(self), 1))])
        if self.cross_section is not None:
            assert self.times is not None
            shared = self.cross_section.columns(self.times, self.columns(_MEAN_RANGES))
        quarter = np.zeros(len(self))
        if self.times is not None and "hour_of_week_ny" in self.names:
            quarter = quarters(self.times, self.step_seconds, self.columns(("hour_of_week_ny",))[:, 0])
        return np.hstack([own, shared, quarter[:, None]])

    @property
    def label(self) -> str:
        """Name for messages."""
        return f"{self.symbol or 'The series'} {self.timeframe}".strip()

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        symbol: str | None = None,
        timeframe: str | None = None,
        *,
        partial: Literal["refuse", "drop"] = "refuse",
        columns: Mapping[str, str] | None = None,
        decimal: Decimal | None = None,
        validation: float = 0.15,
        test: float = 0.0,
        embargo: int | None = None,
    ) -> Series:
        """A series from a table of candles, with every column that any architecture reads.

        Args:
            frame: pandas, polars or Arrow, or the path of a CSV, parquet or feather file: a time column or index
                (`open_time`, `timestamp`, `unix`, `ts`, `t`, `datetime`, `date`, `time`; aware datetimes, texts with an
                offset, or seconds to nanoseconds since 1970) and `open high low close`, and `volume` if it is known,
                oldest or newest first. Missing candles are fine: nothing is computed across a gap.
            symbol: name for messages and results; nothing is looked up by it. A table whose column `symbol` names
                another one is refused.
            timeframe: length of a candle as Binance names it, such as `1h`; by default what the times show.
            partial: what happens to a last candle that has not closed yet, by this machine's clock.
            columns: which column is the `time`, `open`, `high`, `low`, `close`, `volume`, `symbol` or `timeframe`,
                where the columns' names do not tell, as in `{"close": "Last"}`.
            decimal: "point" or "comma": the decimal mark of prices given as texts, where none of them tells.
            validation: share of the rows that stop a training, as in `from_ohlc`.
            test: share of the newest rows that no training sees.
            embargo: rows left out between the spans; by default 178, and 40 for fewer than 4,000 rows.

        Raises:
            ModelError: the frame holds no such candles; the sentence names the column or row.
        """
        label = symbol or ("the frame" if not isinstance(frame, (str, Path)) else str(frame))
        candles = read_candles(
            frame, label, timeframe, partial, symbol=symbol, columns=columns, decimal=decimal
        )
        for note in candles.notes:
            log.warning("%s %s", label, note)
        table = feature_frame(candles.frame, candles.timeframe)
        series = cls.from_columns(table, symbol or "", candles.timeframe)
        return replace(series, spans=split_rows(len(series), validation, test, embargo))

    @classmethod
    def from_columns(cls, frame: pl.DataFrame, symbol: str, timeframe: str) -> Series:
        """A series, without spans, of what `cpbmodels.data.columns.feature_frame` computed."""
        names = tuple(name for name in FEATURES if name in frame.columns)
        return cls(
            prices=frame.select(PRICES).to_numpy(),
            features=frame.select(names).to_numpy(),
            names=names,
            volatility=frame["volatility"].to_numpy(),
            segments=frame["segment"].to_numpy().astype(np.int64),
            symbol=symbol,
            timeframe=timeframe,
            times=frame["open_time"].cast(pl.Int64).to_numpy(),
            still=frame["still"].to_numpy(),
        )

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

        `segments`: ids [rows] of contiguous runs, by default found by the times; a leap of the price level ends one.
        The last part validates (and, if requested, a part after it tests), with `embargo` rows between the
        spans: 178 by default, 40 (context 30 + horizon 10) for a series under 4,000 rows.
        """
        prices = check_prices(prices, symbol or "prices")
        if segments is None:
            segments = contiguous_runs(times, len(prices))
        segments = segment_ids(prices, np.diff(segments, prepend=segments[:1]) != 0)
        names, features, volatility = candle_columns(prices, segments)
        return cls(
            prices=prices,
            features=features,
            names=names,
            volatility=volatility,
            segments=segments,
            spans=split_rows(len(prices), validation, test, embargo),
            symbol=symbol,
            timeframe=timeframe,
            times=times,
        )


def cross_section_of(coins: Sequence[Series]) -> CrossSection:
    """What these series, of one timeframe, have in common at each candle; those without times add nothing to it."""
    return CrossSection.of(
        [
            CoinMoves(
                times=coin.times,
                returns=partial(returns, coin.prices, coin.volatility, coin.segments),
                ranges=partial(_mean_range, coin),
                # A series of cpb's has the name of its market before the symbol, as in `um-BTCUSDT`.
                is_bitcoin=coin.symbol.rpartition("-")[2].startswith("BTC"),
            )
            for coin in coins
            if coin.times is not None
        ]
    )


def _mean_range(coin: Series, n: int) -> np.ndarray:
    return coin.columns((f"log_range_mean_{n}",))[:, 0]


def with_cross_section(series: Sequence[Series]) -> list[Series]:
    """The same series, each with what all of its timeframe have in common; the candles are not copied.

    Series without times stay as they are. A model that reads columns of the market (`line`, `walk`) learns and
    forecasts better with them, and works without: see `cpbmodels.arch.line`.
    """
    shared = {
        timeframe: cross_section_of([coin for coin in series if coin.timeframe == timeframe])
        for timeframe in dict.fromkeys(coin.timeframe for coin in series)
    }
    return [
        coin if coin.times is None else replace(coin, cross_section=shared[coin.timeframe]) for coin in series
    ]


def instant(microseconds: int) -> datetime:
    """UTC of microseconds since 1970, exactly."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)


def microseconds(time: datetime | str) -> int:
    """Since 1970 UTC, of an aware datetime or its text; ModelError if it is not a time or has no time zone."""
    try:
        moment = datetime.fromisoformat(time) if isinstance(time, str) else time
    except ValueError:
        raise ModelError(f"since {time!r} is not a time: give a text such as 2025-01-01.") from None
    if isinstance(time, str) and moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)  # a written date means UTC, as everywhere in cpb
    if moment.tzinfo is None:
        raise ModelError(
            f"the time {time!r} has no time zone: give an aware datetime, or a text such as 2025-01-01."
        )
    # Rounded, since a float of seconds does not hold every microsecond exactly.
    return round(moment.timestamp() * 1e6)


def contiguous_runs(times: np.ndarray | None, rows: int) -> np.ndarray:
    """Segment ids [rows]: a new segment wherever the step between open times differs from the median step."""
    if times is None or rows < 3:
        return np.zeros(rows, dtype=np.int64)
    steps = np.diff(np.asarray(times, dtype=np.int64))
    return np.concatenate([[0], np.cumsum(steps != np.median(steps))]).astype(np.int64)


def split_rows(rows: int, validation: float, test: float, embargo: int | None) -> dict[str, tuple[int, int]]:
    """Row ranges train | embargo | validation | embargo | test of a single series; its defaults as in `from_frame`."""
    if embargo is None:
        # A short series could not spare 178 rows twice; 40 still keep context and horizon of both sides apart.
        embargo = EMBARGO if rows >= 4000 else 40
    if not (0 <= test < 1 and 0 <= validation < 1 and test + validation < 1):
        raise ModelError("validation and test are shares of the rows: both in 0..1, together under 1.")
    test_rows, validation_rows = round(rows * test), round(rows * validation)
    # From the end backwards: the newest rows are those that a live model would meet.
    test_start = rows - test_rows
    validation_end = test_start - (embargo if test_rows else 0)
    validation_start = max(validation_end - validation_rows, 0)
    train_end = max(validation_start - (embargo if validation_rows else 0), 0)
    return {
        "train": (0, train_end),
        "validation": (validation_start, validation_end),
        "test": (test_start, rows),
    }
