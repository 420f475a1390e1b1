"""A table of candles from any library, checked: what `Series.from_frame` reads.

Pandas is converted column by column through numpy, because polars' own conversion needs pyarrow, which the library
does not; everything else comes in through the Arrow interface that polars, pyarrow, DuckDB and others share.
"""

from __future__ import annotations

import warnings
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl

from cpbmodels.data.figures import INTERVAL_SECONDS
from cpbmodels.data.prices import PRICES, check_prices
from cpbmodels.errors import ModelError

TIME_NAMES = ("open_time", "date", "timestamp")
"""Columns that may hold the open times: the first that exists, else a time index."""

_READ = {*TIME_NAMES, *PRICES, "volume"}
_TIMEFRAMES = {seconds: name for name, seconds in INTERVAL_SECONDS.items()}
_UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}
"""Microseconds of one unit."""
_FIRST_MONDAY = 4 * 86_400 * 1_000_000
"""1970-01-05 in microseconds: weeks begin on Mondays."""


def read_candles(
    frame: Any, label: str, timeframe: str | None = None, partial: str = "refuse"
) -> tuple[pl.DataFrame, str]:
    """Return the candles and their timeframe.

    Args:
        frame: see `Series.from_frame`.
        label: what messages call the table.
        timeframe: Binance interval; None finds it in the times.
        partial: "drop" leaves out a last candle that has not closed, "refuse" is an error.

    Returns:
        `open_time` (Datetime us, UTC), `open high low close` and, where given, `volume` (Float64), sorted and unique;
        and the timeframe.

    Raises:
        ModelError: something is missing or impossible; the sentence names the column or row.
    """
    if partial not in ("refuse", "drop"):
        raise ModelError(f"partial {partial!r} is unknown: choose refuse or drop.")
    table = _table(frame, label)
    if table and not len(next(iter(table.values()))):
        raise ModelError(f"{label}: there is no candle in it.")
    times = _open_times(table, label)
    _check_order(times, label)
    numbers = {name: _numbers(table, name, label) for name in PRICES}
    if _column(table, "volume") is not None:
        numbers["volume"] = _numbers(table, "volume", label)
        if (numbers["volume"] < 0).any() or not np.isfinite(numbers["volume"]).all():
            raise ModelError(
                f"{label}: a volume is negative or missing: repair it, or leave the column out if the model needs none."
            )
    check_prices(np.column_stack([numbers[name] for name in PRICES]), label)
    found = _timeframe(times, timeframe, label)
    candles = pl.DataFrame({"open_time": times, **numbers}).with_columns(
        pl.col("open_time").cast(pl.Datetime("us", "UTC"))
    )
    return _without_partial(candles, found, partial, label), found


def _table(frame: Any, label: str) -> dict[str, Any]:
    """The columns by name; for pandas numpy arrays and the index as a time column, else polars series."""
    package = type(frame).__module__.partition(".")[0]
    if package == "pandas" and hasattr(frame, "columns"):
        return _pandas(frame)
    if isinstance(frame, pl.LazyFrame):
        frame = frame.collect()
    elif not isinstance(frame, pl.DataFrame):
        if not hasattr(frame, "__arrow_c_stream__"):
            raise ModelError(
                f"{label}: a {type(frame).__name__} is not a table of candles: give a pandas, polars or Arrow table, "
                "or bare arrays to Series.from_ohlc."
            )
        frame = pl.DataFrame(frame)
    return {name: frame[name] for name in frame.columns}


def _pandas(frame: Any) -> dict[str, Any]:
    table = {str(name): frame[name] for name in frame.columns}
    index = frame.index
    if not any(_column(table, name) is not None for name in TIME_NAMES) and (
        index.name in TIME_NAMES or type(index).__name__ == "DatetimeIndex"
    ):
        table["open_time"] = index.to_series()
    return {name: _from_pandas(column) for name, column in table.items() if name.lower() in _READ}


def _from_pandas(column: Any) -> Any:
    zone = getattr(column.dtype, "tz", None)
    if zone is not None:
        instants = column.dt.tz_convert("UTC").dt.tz_localize(None)
        return pl.Series(instants.to_numpy().astype("datetime64[us]")).dt.replace_time_zone("UTC")
    values = column.to_numpy()
    if values.dtype.kind == "M":
        return pl.Series(values.astype("datetime64[us]"))
    return pl.Series(values.tolist(), strict=False) if values.dtype.kind == "O" else pl.Series(values)


def _column(table: dict[str, Any], name: str) -> pl.Series | None:
    """A column by its name, in lower case or with capitals (`Open`)."""
    if name in table:
        found: pl.Series = table[name]
        return found
    return next((table[key] for key in table if key.lower() == name), None)


def _open_times(table: dict[str, Any], label: str) -> np.ndarray:
    """The open times in microseconds since 1970 UTC, int64."""
    name = next((name for name in TIME_NAMES if _column(table, name) is not None), None)
    column = _column(table, name) if name else None
    if column is None:
        raise ModelError(
            f"{label}: there is no time: give a column open_time, date or timestamp, or a time index (columns: "
            f"{', '.join(table) or 'none'})."
        )
    if column.null_count():
        raise ModelError(f"{label}: {name} is missing in {column.null_count()} rows: remove them.")
    if isinstance(column.dtype, pl.Datetime):
        if column.dtype.time_zone is None:
            raise ModelError(
                f"{label}: {name} has no time zone, so it is not known which instants are meant: make it UTC, with "
                "pandas as dt.tz_localize('UTC'), with polars as dt.replace_time_zone('UTC')."
            )
        return column.cast(pl.Datetime("us", "UTC")).cast(pl.Int64).to_numpy()
    if column.dtype.is_numeric():
        return _epoch(column.to_numpy(), str(name), label)
    raise ModelError(
        f"{label}: {name} is of the type {column.dtype}: give aware datetimes (of texts, with pandas as "
        "pd.to_datetime(..., utc=True)), or seconds, milliseconds or microseconds since 1970."
    )


def _epoch(values: np.ndarray, name: str, label: str) -> np.ndarray:
    """Microseconds of counts whose unit follows from their size: the years 1973 to 5138 overlap in no two units."""
    newest = float(values[-1]) if len(values) else 0.0
    unit = next((u for u, low in (("us", 1e14), ("ms", 1e11), ("s", 1e8)) if newest >= low), None)
    if unit is None or not newest < 1e17:
        raise ModelError(
            f"{label}: {name} ends with {newest:g}, which is not a time since 1970 in s, ms or us: give one of these."
        )
    if values.dtype.kind == "f":
        if not np.isfinite(values).all():
            raise ModelError(f"{label}: {name} is missing in some rows: remove them.")
        return np.round(values * _UNITS[unit]).astype(np.int64)
    return values.astype(np.int64) * _UNITS[unit]


def _check_order(times: np.ndarray, label: str) -> None:
    steps = np.diff(times)
    if (steps > 0).all():
        return
    row = int(np.flatnonzero(steps <= 0)[0]) + 1
    what = "appears twice" if steps[row - 1] == 0 else "is earlier than the candle before"
    raise ModelError(
        f"{label}: the candle of {_text(times[row])} in row {row} {what}: give one symbol at a time, sorted by "
        "time and without duplicates."
    )


def _numbers(table: dict[str, Any], name: str, label: str) -> np.ndarray:
    column = _column(table, name)
    if column is None:
        raise ModelError(
            f"{label}: the column {name} is missing: it needs {', '.join(PRICES)} (there are "
            f"{', '.join(table) or 'none'})."
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            values = column.cast(pl.Float64)
    except (pl.exceptions.PolarsError, Warning):
        raise ModelError(
            f"{label}: {name} is of the type {column.dtype} and not all of its values are numbers: convert it."
        ) from None
    return values.fill_null(float("nan")).to_numpy()


def _timeframe(times: np.ndarray, timeframe: str | None, label: str) -> str:
    """The timeframe, given or found as the most frequent step; every candle must lie on its grid."""
    steps = np.diff(times)
    if timeframe is None:
        if not len(steps):
            raise ModelError(f"{label}: one candle has no known length: give a timeframe such as 1h.")
        values, counts = np.unique(steps, return_counts=True)
        usual = int(values[counts.argmax()])
        seconds, rest = divmod(usual, 1_000_000)
        if rest or seconds not in _TIMEFRAMES:
            raise ModelError(
                f"{label}: the candles are {timedelta(microseconds=usual)} apart, which is none of "
                f"{', '.join(INTERVAL_SECONDS)}: resample them."
            )
        timeframe = _TIMEFRAMES[seconds]
    if timeframe not in INTERVAL_SECONDS:
        raise ModelError(
            f"{label}: timeframe {timeframe!r} is unknown: choose {', '.join(INTERVAL_SECONDS)}."
        )
    first = _FIRST_MONDAY if timeframe == "1w" else 0
    wrong = np.flatnonzero((times - first) % (INTERVAL_SECONDS[timeframe] * 1_000_000))
    if len(wrong):
        row = int(wrong[0])
        raise ModelError(
            f"{label}: the candle of {_text(times[row])} in row {row} does not lie on the UTC grid of {timeframe} "
            "candles: remove it, give the right timeframe, or check that the times are those at which candles open."
        )
    return timeframe


def _without_partial(candles: pl.DataFrame, timeframe: str, partial: str, label: str) -> pl.DataFrame:
    closes = candles["open_time"][-1] + timedelta(seconds=INTERVAL_SECONDS[timeframe])
    if closes <= datetime.now(UTC):
        return candles
    if partial == "refuse":
        raise ModelError(
            f"{label}: the last candle closes at {closes:%Y-%m-%d %H:%M} UTC, which has not come yet: leave it out, or "
            'pass partial="drop".'
        )
    return candles.filter(
        pl.col("open_time") <= datetime.now(UTC) - timedelta(seconds=INTERVAL_SECONDS[timeframe])
    )


def _text(microseconds: int) -> str:
    return (
        f"{datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(microseconds)):%Y-%m-%d %H:%M} UTC"
    )
