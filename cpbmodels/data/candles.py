"""Tables of candles in the forms that people have, checked: what `--source FILE` and `Series.from_frame` read.

A file may begin with other lines, be separated by `,`, `;`, tabs or `|`, have decimal commas, the newest candle first,
times in seconds to nanoseconds, texts with offsets, or date and time apart, as the exports of exchanges, TradingView,
MetaTrader and yfinance do. Pandas is converted column by column through numpy, because polars' own conversion needs
pyarrow, which the library does not; everything else comes in through the Arrow interface.
"""

import gzip
import io
import re
import warnings
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from cpbmodels.data import INTERVAL_SECONDS
from cpbmodels.data.columns import PRICES, check_prices
from cpbmodels.errors import ModelError

TIME_NAMES = ("open_time", "timestamp", "unix", "ts", "t", "datetime", "date", "time")
"""Columns that may hold the open times: the first that needs no zone, else the first; without one a time index."""

_SHORT = {"o": "open", "h": "high", "l": "low", "c": "close", "v": "volume"}
_READ = {*TIME_NAMES, *PRICES, "volume"}
_BINANCE = (
    "open_time", "open", "high", "low", "close", "volume", "close_time", "quote_volume", "count", "taker_buy_volume",
    "taker_buy_quote_volume", "ignore",
)  # fmt: skip
"""Columns of Binance's kline files, which have no header line."""
_SEPARATORS = ",;\t|"
_MAX_LINES_BEFORE = 100  # in which the header is looked for
_FIRST_MONDAY = 4 * 86_400 * 1_000_000
"""1970-01-05 in microseconds: weeks begin on Mondays."""
_SEVERAL_TICKERS = (
    "it has several tickers in one table: give one at a time, with yfinance as download(TICKER, "
    "multi_level_index=False)."
)


class Candles(NamedTuple):
    """Checked candles.

    frame: `open_time` (Datetime us, UTC), `open high low close` and, where given, `volume` (Float64), sorted, unique.
    timeframe: Binance's interval.
    notes: what was done to the table, each the end of a sentence that begins with its name.
    """

    frame: pl.DataFrame
    timeframe: str
    notes: list[str]


def read_file(path: Path) -> tuple[pl.DataFrame, list[str]]:
    """Return the table in a parquet, feather or (compressed) text file, and what was done to it, as in `Candles`.

    Raises:
        ModelError: it cannot be read; the sentence says why.
    """
    try:
        if path.suffix.lower() == ".parquet":
            return pl.read_parquet(path), []
        if path.suffix.lower() == ".feather":
            return pl.read_ipc(path), []
        content = path.read_bytes()
        if path.suffix.lower() == ".gz":
            content = gzip.decompress(content)
        wide = content[:2] in (b"\xff\xfe", b"\xfe\xff")  # as MetaTrader writes
        return _read_text(content.decode("utf-16" if wide else "utf-8-sig", "replace"), str(path))
    except (pl.exceptions.PolarsError, EOFError, OSError, zlib.error) as error:
        reason = str(error).strip().splitlines()[0][:120]
        raise ModelError(
            f"{path} cannot be read ({reason}): check its name, or save it again as CSV with a header line."
        ) from error


def _read_text(text: str, label: str) -> tuple[pl.DataFrame, list[str]]:
    lines = [line for line in re.split(r"\r\n|\n|\r", text) if line.strip(f"{_SEPARATORS} ")]
    if not lines:
        raise ModelError(f"{label}: there is no line in it.")
    place, separator = _header(lines, label)
    if not place and _is_number(lines[0].split(separator)[0]):
        lines.insert(0, separator.join(_BINANCE))
    first = lines[min(place + 1, len(lines) - 1)].split(separator)
    table = pl.read_csv(
        io.BytesIO("\n".join(lines[place:]).encode()),
        separator=separator,
        decimal_comma=separator != "," and any(re.fullmatch(r"-?\d+,\d+", cell) for cell in first),
        infer_schema_length=None,
    )
    return table, [f"has {place} line{'s' if place > 1 else ''} before its header, left out"] if place else []


def _header(lines: list[str], label: str) -> tuple[int, str]:
    """The place of the header line and the separator; of Binance's files, which have none, of the first line."""
    for place, line in enumerate(lines[:_MAX_LINES_BEFORE]):
        for separator in _SEPARATORS:
            if len(_READ.intersection(map(_name, line.split(separator)))) > 2:
                return place, separator
    separator = max(_SEPARATORS, key=lines[0].count)
    cells = lines[0].split(separator)
    if len(cells) < 2 or (any(map(_is_number, cells)) and len(cells) != len(_BINANCE)):
        raise ModelError(f"{label}: there is no header line such as open_time,open,high,low,close,volume.")
    return 0, separator


def _is_number(text: str) -> bool:
    return re.fullmatch(r'"?[\d.]+"?', text.strip()) is not None


def _name(column: Any) -> str:
    """`<OPEN>`, `"Open"`, `Open Time` -> `open`, `open`, `open_time`."""
    name = str(column).strip(" <>\"'").lower().replace(" ", "_")
    return _SHORT.get(name, name)


def read_candles(
    frame: Any, label: str, timeframe: str | None = None, partial: str = "refuse", *, naive_is_utc: bool = False
) -> Candles:  # fmt: skip
    """Return the candles of a table.

    Args:
        frame: see `Series.from_frame`; of a file, times without a zone are UTC.
        label: what messages call the table.
        timeframe: Binance interval; None finds it in the times.
        partial: "drop" leaves out last candles that have not closed, "refuse" is an error.
        naive_is_utc: times without a zone are UTC, else refused.

    Raises:
        ModelError: something is missing or impossible; the sentence names the column or row.
    """
    if partial not in ("refuse", "drop"):
        raise ModelError(f"partial {partial!r} is unknown: choose refuse or drop.")
    notes: list[str] = []
    if isinstance(frame, str | Path):
        frame, notes = read_file(Path(frame))
        naive_is_utc = True
    table = _table(frame, label)
    rows = table.filter(~pl.all_horizontal(pl.all().is_null())) if table.width else table
    if blank := table.height - rows.height:
        notes.append(f"has {blank} blank rows, left out")
    if table.width and not rows.height:
        raise ModelError(f"{label}: there is no candle in it.")
    times = _open_times(rows, frame, label, naive_is_utc=naive_is_utc)
    if len(times) > 1 and (np.diff(times) < 0).all():
        rows, times = rows.reverse(), times[::-1]
        notes.append("has its newest candle first and is read the other way round")
    timeframe = _timeframe(times, timeframe, label)
    numbers = {
        name: _numbers(rows, name, label) for name in (*PRICES, "volume") if name in (*PRICES, *rows.columns)
    }
    check_prices(np.column_stack([numbers[name] for name in PRICES]), label)
    volume = numbers.get("volume", np.zeros(1))
    if (wrong := ~(np.isfinite(volume) & (volume >= 0))).any():
        raise ModelError(f"{label}: the volume in row {wrong.argmax()} is negative or missing.")
    candles = pl.DataFrame({"open_time": pl.Series(times).cast(pl.Datetime("us", "UTC")), **numbers})
    length, now = timedelta(seconds=INTERVAL_SECONDS[timeframe]), datetime.now(UTC)
    closed = int((candles["open_time"] <= now - length).sum())
    if closed < candles.height and partial == "refuse":
        raise ModelError(
            f"{label}: the last candle closes at {candles['open_time'][-1] + length:%Y-%m-%d %H:%M} UTC, which has not "
            'come yet: pass partial="drop".'
        )
    if candles.height - closed > 1:  # a single candle is the one that is being made
        notes.append(
            f"ends with {candles.height - closed} candles that close after now, which are left out: its times may be "
            "shifted, they must be those at which candles open, in UTC"
        )
    return Candles(candles.head(closed), timeframe, notes)


def _table(frame: Any, label: str) -> pl.DataFrame:
    """The columns, their names in small letters; of pandas those that are read, and the index as a time."""
    if type(frame).__module__.partition(".")[0] == "pandas" and hasattr(frame, "columns"):
        frame = _from_pandas(frame, label)
    elif isinstance(frame, pl.LazyFrame):
        frame = frame.collect()
    elif not hasattr(frame, "__arrow_c_stream__"):
        raise ModelError(
            f"{label}: a {type(frame).__name__} is not a table: give a pandas, polars or Arrow table."
        )
    frame = pl.DataFrame(frame)
    columns: dict[str, pl.Series] = {}
    for column in sorted(frame.columns, key=lambda column: column not in _READ):  # `t` before Binance's `T`
        columns.setdefault(_name(column), frame[column])
    table = pl.DataFrame([columns[name].alias(name) for name in dict.fromkeys(map(_name, frame.columns))])
    if "volume" not in columns:  # `Volume BTC` of a coin and `Volume USDT` behind it
        table = table.rename(
            dict.fromkeys([name for name in columns if name.startswith("volume_")][:1], "volume")
        )
    if table.columns[:1] != ["price"] or table["price"].dtype != pl.String:
        return table
    # yfinance's further header lines: `Price,Close,…`, `Ticker,BTC-USD,…`, `Datetime,,…`
    if "close" in columns and any(re.match(r"close(_duplicated_|\.)\d", name) for name in columns):
        raise ModelError(f"{label}: {_SEVERAL_TICKERS}")
    heads = table["price"].head(2).str.to_lowercase().is_in(["ticker", "date", "datetime"])
    return table.slice(int(heads.sum())).rename({"price": "datetime"})


def _from_pandas(frame: Any, label: str) -> pl.DataFrame:
    if frame.columns.nlevels > 1:  # yfinance's price and ticker
        levels = [frame.columns.get_level_values(i) for i in range(frame.columns.nlevels)]
        frame = frame.set_axis(next((level for level in levels if "Close" in level), levels[0]), axis=1)
        if frame.columns.has_duplicates:
            raise ModelError(f"{label}: {_SEVERAL_TICKERS}")
    columns = {str(name): frame.iloc[:, i] for i, name in reversed(list(enumerate(frame.columns)))}
    if not {_name(name) for name in columns} & {*TIME_NAMES} and (
        _name(frame.index.name) in TIME_NAMES or type(frame.index).__name__ == "DatetimeIndex"
    ):
        columns["open_time"] = frame.index.to_series()
    out = {}
    for name, column in reversed(columns.items()):
        if _name(name) not in _READ and not re.match(r"volume_|price$|close\.\d", _name(name)):
            continue
        values = column.to_numpy()
        if getattr(column.dtype, "tz", None) is not None:
            values = column.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy()
            out[name] = pl.Series(values.astype("datetime64[us]")).dt.replace_time_zone("UTC")
        elif values.dtype.kind == "M":
            out[name] = pl.Series(values.astype("datetime64[us]"))
        elif values.dtype.kind == "O":
            out[name] = pl.Series(
                [None if value != value else value for value in values.tolist()], strict=False
            )
        else:
            out[name] = pl.Series(values, nan_to_null=True)
    return pl.DataFrame(out)


def _open_times(table: pl.DataFrame, frame: Any, label: str, *, naive_is_utc: bool) -> np.ndarray:
    """The open times in microseconds since 1970 UTC, int64, each later than the one before or all descending."""
    columns = {name: table[name] for name in TIME_NAMES if name in table.columns}
    if not columns:
        listed = ", ".join(map(str, getattr(frame, "columns", table.columns))) or "none"
        raise ModelError(
            f"{label}: there is no time: give a column {', '.join(TIME_NAMES)}, or a time index (columns: {listed})."
        )
    if "date" in columns and "time" in columns:
        day, clock = (columns[name].cast(pl.String) for name in ("date", "time"))
        if clock.str.contains(r"^\s*\d\d?:").all() and not day.str.contains(":").any():
            columns = {"date": day.str.replace(r"^(\d{4})(\d\d)(\d\d)$", "$1-$2-$3") + " " + clock}
    clear = [
        name for name, c in columns.items() if c.dtype.is_numeric() or getattr(c.dtype, "time_zone", None)
    ]
    name = next(iter(clear or columns))
    column = columns[name]
    if column.null_count():
        raise ModelError(f"{label}: {name} is missing in {column.null_count()} rows: remove them.")
    what = f"{label}: {name}"
    if column.dtype == pl.String:
        numeric = column.str.strip_chars().cast(pl.Int64, strict=False)
        if 0 < numeric.null_count() < len(column):  # counts, and a line of words below them
            raise _no_time(column, numeric.is_null(), what)
        column = _from_text(column, what) if numeric.null_count() else numeric
    if column.dtype == pl.Date:
        column = column.cast(pl.Datetime("us"))
    if column.dtype.is_numeric():
        return _ordered(_epoch(column, what), label)
    if not isinstance(column.dtype, pl.Datetime):
        raise ModelError(
            f"{what} is of the type {column.dtype}: give aware datetimes, or a count since 1970."
        )
    if column.dtype.time_zone is None:
        if not naive_is_utc:
            raise ModelError(
                f"{what} has no time zone, so it is not known which instants are meant: make it UTC, with pandas as "
                "dt.tz_localize('UTC'), with polars as dt.replace_time_zone('UTC')."
            )
        column = column.dt.replace_time_zone("UTC")
    return _ordered(column.cast(pl.Datetime("us", "UTC")).cast(pl.Int64).to_numpy(), label)


def _from_text(column: pl.Series, what: str) -> pl.Series:
    """Datetimes of texts: in UTC if each has a zone, without a zone if none has."""
    texts = column.str.strip_chars().str.replace(r"^(\d{4})[./](\d\d)[./](\d\d)", "$1-$2-$3")
    texts = texts.str.replace(r"\s*(Z|UTC|GMT)$", "+00:00").str.replace(r"\s+([+-]\d\d:?\d*)$", "$1")
    times: list[datetime | None] = []
    for text in texts.to_list():
        try:
            times.append(datetime.fromisoformat(text))
        except ValueError:
            times.append(None)
    aware = [time is not None and time.tzinfo is not None for time in times]
    wrong = pl.Series(
        [time is None or zoned is not aware[0] for time, zoned in zip(times, aware, strict=True)]
    )
    if wrong.any():
        raise _no_time(column, wrong, what)
    if not aware[0]:
        return pl.Series(times, dtype=pl.Datetime("us"))
    return pl.Series([time.astimezone(UTC) for time in times if time], dtype=pl.Datetime("us", "UTC"))


def _no_time(column: pl.Series, wrong: pl.Series, what: str) -> ModelError:
    row = int(wrong.arg_max() or 0)
    return ModelError(
        f"{what} {column[row]!r} in row {row} is not a time{' like those before' * (row > 0)}: write "
        "2024-01-31T12:00:00Z, or seconds, milliseconds, microseconds or nanoseconds since 1970."
    )


def _epoch(column: pl.Series, what: str) -> np.ndarray:
    """Microseconds of counts since 1970, each of whose units follows from its size: 1973 to 5138 overlap in no two."""
    values = column.to_numpy()
    wrong = ~((values >= 1e8) & (values < 5e18))  # NaN, too
    if wrong.any():
        row = int(wrong.argmax())
        raise ModelError(
            f"{what} {values[row]:g} in row {row} is not a time since 1970 in s, ms, us or ns: give these."
        )
    whole = values.astype(np.int64)
    fine = np.where(whole >= 10**17, whole // 1_000, whole)
    for limit, factor in ((10**14, 1_000), (10**11, 1_000_000)):
        exact = np.round(values * factor).astype(np.int64) if values.dtype.kind == "f" else whole * factor
        fine = np.where(whole < limit, exact, fine)
    return fine


def _ordered(times: np.ndarray, label: str) -> np.ndarray:
    steps = np.diff(times)
    if not ((steps > 0).all() or (steps < 0).all()):
        row = int(np.flatnonzero(steps <= 0)[0]) + 1
        what = "is earlier than the candle before: sort one symbol's candles by time"
        if steps[row - 1] == 0:
            what = "appears twice: keep one of the two"
        raise ModelError(f"{label}: the candle of {_text(times[row])} in row {row} {what}.")
    return times


def _numbers(table: pl.DataFrame, name: str, label: str) -> np.ndarray:
    if name not in table.columns:
        raise ModelError(f"{label}: the column {name} is missing (there are {', '.join(table.columns)}).")
    column = table[name]
    if column.dtype == pl.String:
        column = column.str.strip_chars().str.replace(r"^(-?\d+),(\d+)$", "$1.$2")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return column.cast(pl.Float64).fill_null(float("nan")).to_numpy()
    except (pl.exceptions.PolarsError, Warning):
        raise ModelError(
            f"{label}: {name} is of the type {column.dtype} and holds values that are no numbers."
        ) from None


def _timeframe(times: np.ndarray, timeframe: str | None, label: str) -> str:
    """The timeframe, given or found as the most frequent step; every candle must lie on its grid."""
    steps = np.diff(times)
    if timeframe is None:
        if not len(steps):
            raise ModelError(f"{label}: one candle has no known length: give a timeframe such as 1h.")
        values, counts = np.unique(steps, return_counts=True)
        usual = int(values[counts.argmax()])
        timeframe = next((name for name, s in INTERVAL_SECONDS.items() if s * 1_000_000 == usual), None)
        if timeframe is None:
            raise ModelError(
                f"{label}: the candles are {timedelta(microseconds=usual)} apart: resample them."
            )
    if timeframe not in INTERVAL_SECONDS:
        raise ModelError(
            f"{label}: timeframe {timeframe!r} is unknown: choose {', '.join(INTERVAL_SECONDS)}."
        )
    length = INTERVAL_SECONDS[timeframe] * 1_000_000
    off_grid = np.flatnonzero((times - (_FIRST_MONDAY if timeframe == "1w" else 0)) % length)
    if len(off_grid):
        row = int(off_grid[0])
        raise ModelError(
            f"{label}: the candle of {_text(times[row])} in row {row} is not on the UTC grid of {timeframe} candles."
        )
    if len(steps) >= 20 and steps.min() > length:  # fewer candles may all lie beside gaps
        raise ModelError(
            f"{label}: its candles are {timedelta(microseconds=int(steps.min()))} and more apart, so they are not "
            f"those of {timeframe}: give the right timeframe."
        )
    return timeframe


def _text(microseconds: int) -> str:
    return (
        f"{datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(microseconds)):%Y-%m-%d %H:%M} UTC"
    )
