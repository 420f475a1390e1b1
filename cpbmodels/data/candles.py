"""Tables of candles in the forms that people have, checked: what `--source FILE` and `Series.from_frame` read.

A file may begin with other lines, be separated by `,`, `;`, tabs or `|`, have decimal commas, the newest candle first,
times in seconds to nanoseconds, texts with offsets, or date and time apart, as the exports of exchanges, TradingView,
MetaTrader and yfinance do. Pandas is converted column by column through numpy, because polars' own conversion needs
pyarrow, which the library does not; everything else comes in through the Arrow interface.
"""

import csv
import errno
import io
import logging
import re
import warnings
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from cpbmodels.data import CURRENCIES, INTERVAL_SECONDS, TABLE_SUFFIXES
from cpbmodels.data.column_names import (
    TIME_NAMES,
    Chosen,
    are_intervals,
    choose,
    clean_symbol,
    folded,
    is_known,
    is_read,
    option,
)
from cpbmodels.data.columns import MAX_VOLUME, PRICES, check_prices
from cpbmodels.data.numbers import Decimal, NumbersError, read_numbers
from cpbmodels.errors import ModelError, shown, unknown_choice
from cpbmodels.files import gunzip, read_regular

log = logging.getLogger(__name__)

ROW = "row of the table"
"""The column of `Table.frame` with the rows' numbers."""

OFF_GRID = (1_518_048_000_000_000, 1_518_393_600_000_000)
"""2018-02-08 and 2018-02-12, microseconds: after a halt Binance's candles opened 28 minutes past the hour
(binance-public-data#14, #77). Such candles are kept apart."""

_BINANCE = (
    "open_time", "open", "high", "low", "close", "volume", "close_time", "quote_volume", "count", "taker_buy_volume",
    "taker_buy_quote_volume", "ignore",
)  # fmt: skip
"""Columns of Binance's kline files, which have no header line."""
_SEPARATORS = ",;\t|"
MAX_BYTES = 2 << 30  # of a file, and of what it inflates to: 1s candles of a month are 300 MB
MAX_CELLS = 250_000_000  # of a parquet or feather file: 2 GB of numbers
_MAX_LINES_BEFORE = 100  # in which the header is looked for
_FIRST_MONDAY = 4 * 86_400 * 1_000_000
"""1970-01-05 in microseconds: weeks begin on Mondays."""
_LOST = 1_000 * 1_000_000
"""Microseconds: no interval's candles all open at multiples of 1,000 s, but times cut to a few digits do."""
_SEVERAL_TICKERS = (
    "it has several tickers in one table: give one at a time, with yfinance as download(TICKER, "
    "multi_level_index=False)."
)
_BINARY = {
    b"PK\x03\x04": "a zip archive", b"\x1f\x8b": "gzip-compressed", b"PAR1": "a parquet file",
    b"ARROW1": "a feather file", b"\xd0\xcf\x11\xe0": "an Excel file", b"SQLite format 3": "an SQLite database",
    b"%PDF": "a PDF file", b"\x28\xb5\x2f\xfd": "zstd-compressed", b"\x89HDF": "an HDF5 file",
    b"7z\xbc\xaf": "a 7z archive", b"BZh": "bzip2-compressed", b"\xfd7zXZ": "xz-compressed",
}  # fmt: skip
"""First bytes of files that are no text, and what they are."""


class Candles(NamedTuple):
    """Checked candles.

    frame: `open_time` (Datetime us, UTC), `open high low close` and, where given, `volume` (Float64), sorted, unique.
    timeframe: Binance's interval.
    notes: what was done to the table, each the end of a sentence that begins with its name.
    rows: int64, the row of each candle in the given table, counted from 0.
    """

    frame: pl.DataFrame
    timeframe: str
    notes: list[str]
    rows: np.ndarray


@dataclass(frozen=True)
class Table:
    """A table whose columns are known and read, of one series or several; its candles are not checked yet.

    frame: `ROW` (Int64, from 0, of the given table), `open_time` (Int64, microseconds UTC), `open high low close`, and
    where given `volume` (Float64, NaN where missing), `symbol` and `timeframe` (String).
    label: what messages call it.
    lines: of a text file, int64, the line of each row as editors count them, from 1 and with header lines.
    rounded: the times are written with exponents, as in 1.73569E+12.
    called: what the table calls its columns `symbol` and `timeframe`.
    """

    frame: pl.DataFrame
    label: str
    notes: tuple[str, ...] = ()
    lines: np.ndarray | None = None
    rounded: bool = False
    called: Mapping[str, str] = field(default_factory=dict)

    def place(self, row: int) -> str:
        """Where a row is, for messages; `row` as in the column `ROW`."""
        return f"row {row}" + (f" (line {self.lines[row]})" if self.lines is not None else "")


class _Raw(NamedTuple):
    """A table as it was found: the frame, what was done, and the facts about a text file that `Table` needs."""

    frame: pl.DataFrame
    notes: tuple[str, ...] = ()
    lines: np.ndarray | None = None
    point_is_decimal: bool = False


def _read_file(path: Path, label: str, columns: Mapping[str, str]) -> _Raw:
    """Return the table in a parquet, feather or (compressed) text file.

    Raises:
        ModelError: it cannot be read; the sentence says why.
    """
    try:
        content = read_regular(path, MAX_BYTES)
        if path.suffix.lower() == ".parquet":
            _check_cells(pl.scan_parquet(io.BytesIO(content)))
            return _Raw(pl.read_parquet(io.BytesIO(content)))
        if path.suffix.lower() == ".feather":
            _check_cells(pl.scan_ipc(io.BytesIO(content)))
            return _Raw(pl.read_ipc(io.BytesIO(content)))
        if path.suffix.lower() == ".gz":
            content = gunzip(content, MAX_BYTES)
    except (pl.exceptions.PolarsError, EOFError, OSError, zlib.error) as error:
        reason = (getattr(error, "strerror", "") or str(error).strip()).splitlines()[0][:120]
        raise ModelError(
            f"{label} cannot be read ({reason}): check its name, or save it again as CSV with a header line."
        ) from error
    for begin, kind in _BINARY.items():
        if content.startswith(begin):
            raise ModelError(
                f"{label} is {kind} and no text, whatever its name: unpack it, or save it as one of the kinds that are "
                f"read: {', '.join(TABLE_SUFFIXES)}."
            )
    return _read_text(_decoded(content), label, columns)


def _check_cells(table: pl.LazyFrame) -> None:
    """Raise OSError for a compressed table of too many cells, as its header counts them: a bomb repeats one value."""
    cells = table.select(pl.len()).collect().item() * len(table.collect_schema())
    if cells > MAX_CELLS:
        raise OSError(errno.EFBIG, f"it holds {cells:,} cells, more than {MAX_CELLS:,}")


def _decoded(content: bytes) -> str:
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):  # as MetaTrader writes
        return content.decode("utf-16", "replace")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:  # Excel in Western Europe; its euro sign and its space within numbers are read
        return content.decode("cp1252", "replace")


def _read_text(text: str, label: str, columns: Mapping[str, str]) -> _Raw:
    every = re.split(r"\r\n|\n|\r", text)
    numbers = [number for number, line in enumerate(every, 1) if line.strip(f"{_SEPARATORS} ")]
    lines = [every[number - 1] for number in numbers]
    if not lines:
        raise ModelError(f"{label}: there is no line in it.")
    place, separator = _header(lines, label, columns)
    if not place and _is_number(lines[0].split(separator)[0]):
        lines.insert(0, separator.join(_BINANCE))
        numbers.insert(0, 0)
    body = "\n".join(lines[place:])
    try:
        frame = pl.read_csv(io.BytesIO(body.encode()), separator=separator, infer_schema_length=0)
    except pl.exceptions.PolarsError as error:
        raise _no_table(lines[place:], numbers[place:], separator, label, error) from error
    at = np.array(numbers[place + 1 :], dtype=np.int64)
    if len(at) != frame.height:  # a quoted cell spans lines
        rows = csv.reader(io.StringIO(body), delimiter=separator)
        ends = [rows.line_num for _ in rows]
        at = np.array([numbers[place + end - 1] for end in ends[1:]], dtype=np.int64)
        at = at if len(at) == frame.height else np.arange(frame.height)
    notes = (f"has {place} line{'s' if place > 1 else ''} before its header, left out",) if place else ()
    # Where the comma separates columns unquoted, the program or locale that wrote the file has no decimal comma.
    return _Raw(frame, notes, at, separator == "," and not re.search(r'"\s*\d{1,3}\.\d{3}\s*"', body))


def _no_table(
    lines: list[str], numbers: list[int], separator: str, label: str, error: Exception
) -> ModelError:
    """The error for a text that is no table: where a line has more cells than the header, it is named."""
    header, *rows = csv.reader(lines, delimiter=separator)
    for row, number in zip(rows, numbers[1:], strict=False):
        if len(row) > len(header):
            return ModelError(
                f"{label}: line {number} has {len(row)} cells and the header {len(header)}: put cells that hold a "
                f"{separator!r}, as numbers with thousands separators or decimal commas may, in quotes."
            )
    reason = str(error).strip().splitlines()[0][:120]
    return ModelError(f"{label} cannot be read ({reason}): save it again as CSV with a header line.")


def _header(lines: list[str], label: str, columns: Mapping[str, str]) -> tuple[int, str]:
    """The place of the header line and the separator; of Binance's files, which have none, of the first line."""
    asked = {folded(column) for column in columns.values()}
    for place, line in enumerate(lines[:_MAX_LINES_BEFORE]):
        for separator in _SEPARATORS:
            names = {cell.strip(" <>\"'") for cell in line.split(separator)}
            if len({name for name in names if is_known(name) or folded(name) in asked}) > 2:
                return place, separator
    separator = max(_SEPARATORS, key=lines[0].count)
    cells = lines[0].split(separator)
    if len(cells) < 2 or (any(map(_is_number, cells)) and len(cells) != len(_BINANCE)):
        raise ModelError(f"{label}: there is no header line such as open_time,open,high,low,close,volume.")
    return 0, separator


def _is_number(text: str) -> bool:
    return re.fullmatch(r'"?[\d.]+"?', text.strip()) is not None


def read_table(
    source: Any,
    label: str,
    *,
    columns: Mapping[str, str] | None = None,
    decimal: Decimal | None = None,
    naive_is_utc: bool = False,
) -> Table:
    """Return the columns of a table, or of the file at a path, as times and numbers.

    Args:
        source: see `Series.from_frame`; of a file, times without a zone are UTC.
        label: what messages call the table.
        columns: which column is the `time`, `open` …, by these names, where their own names do not tell.
        decimal: "point" or "comma", where the numbers do not tell.
        naive_is_utc: times without a zone are UTC, else refused.

    Raises:
        ModelError: a column is missing, a cell cannot be read, or the table in two ways; the sentence names column, row
            and what to do.
    """
    if decimal not in (None, "point", "comma"):
        raise ModelError(unknown_choice("decimal", decimal, ("point", "comma")))
    columns = dict(columns or {})
    if isinstance(source, str | Path):
        raw, naive_is_utc = _read_file(Path(source), label, columns), True
        names = raw.frame.columns
    else:
        raw = _Raw(_as_polars(source, label, columns))
        names = [*map(str, source.columns)] if _is_pandas(source) else raw.frame.columns
    frame, notes = raw.frame, [*raw.notes]
    frame = frame.with_columns(pl.int_range(pl.len()).alias(ROW))
    if frame.width > 1:
        text = [
            pl.col(c).replace("", None) if kind == pl.String else pl.col(c)
            for c, kind in raw.frame.schema.items()
        ]
        rows = frame.filter(~pl.all_horizontal(part.is_null() for part in text))
        if blank := frame.height - rows.height:
            notes.append(f"has {blank} blank rows, left out")
        frame = rows
        if not frame.height:
            raise ModelError(f"{label}: there is no candle in it.")
    frame = _without_tickers(frame, label)
    chosen = choose([name for name in frame.columns if name != ROW], label, columns)
    table = Table(frame, label, tuple(notes), raw.lines)
    times, rounded = _open_times(table, chosen, names, naive_is_utc=naive_is_utc)
    read = [frame[ROW], pl.Series("open_time", times, dtype=pl.Int64)]
    read += _numbers(table, chosen, names, decimal, point_is_decimal=raw.point_is_decimal)
    called = {
        role: column
        for role, column in (("symbol", chosen.symbol), ("timeframe", chosen.timeframe))
        if column
    }
    read += [frame[column].cast(pl.String).str.strip_chars().alias(role) for role, column in called.items()]
    if chosen.symbol == "s" and not are_intervals(read[-1].drop_nulls().to_list()):
        read = read[:-2]  # of some other API
    return replace(table, frame=pl.DataFrame(read), rounded=rounded, called=called)


def read_candles(
    source: Any,
    label: str,
    timeframe: str | None = None,
    partial: str = "refuse",
    *,
    symbol: str | None = None,
    naive_is_utc: bool = False,
    columns: Mapping[str, str] | None = None,
    decimal: Decimal | None = None,
) -> Candles:
    """Return the candles of a table, or of the file at a path, that holds one series.

    Args:
        source, label, columns, decimal, naive_is_utc: as in `read_table`.
        timeframe: Binance interval; None finds it in the times.
        partial: "drop" leaves out last candles that have not closed, "refuse" is an error.
        symbol: of the series; a table whose column names another one is refused.

    Raises:
        ModelError: something is missing or impossible; the sentence names the column or row.
    """
    table = read_table(source, label, columns=columns, decimal=decimal, naive_is_utc=naive_is_utc)
    check_series(table, symbol, timeframe)
    return check_candles(table, timeframe, partial)


def check_series(table: Table, symbol: str | None, timeframe: str | None) -> None:
    """Refuse a table of several series, or of another one than asked for."""
    for role in ("symbol", "timeframe"):
        if role not in table.frame.columns:
            continue
        values = table.frame[role].drop_nulls().unique(maintain_order=True).to_list()
        if role == "timeframe" and not are_intervals(values):  # a column of the user's own
            continue
        if len(values) > 1:
            raise ModelError(
                f"{table.label}: its column {table.called[role]} names {', '.join(values[:5])}"
                f"{', …' * (len(values) > 5)}: give the rows of one, as in "
                f"frame.filter(pl.col({table.called[role]!r}) == {values[0]!r})."
            )
        if role == "symbol" and values and symbol and not _is_pair_of(values[0], symbol):
            raise ModelError(
                f"{table.label}: its column {table.called[role]} names {values[0]}, not {symbol}: give the candles "
                f"of {symbol}, or symbol={clean_symbol(values[0])!r}."
            )
        if role == "timeframe" and values and timeframe and values[0] != timeframe:
            raise ModelError(
                f"{table.label}: its column {table.called[role]} names {values[0]}, not {timeframe}: give "
                "the right timeframe."
            )


def _is_pair_of(named: str, symbol: str) -> bool:
    """Whether two names mean one pair: `BTC/USDT` and `BTCUSDT`, or `BTC`, whose quote is left out."""
    shorter, longer = sorted((clean_symbol(named), clean_symbol(symbol)), key=len)
    return longer == shorter or (longer.startswith(shorter) and longer.removeprefix(shorter) in CURRENCIES)


def check_candles(table: Table, timeframe: str | None = None, partial: str = "refuse") -> Candles:
    """Return the candles of a table of one series; arguments and errors as in `read_candles`."""
    if partial not in ("refuse", "drop"):
        raise ModelError(f"partial {partial!r} is unknown: choose refuse or drop.")
    label, notes, frame = table.label, [*table.notes], table.frame
    if np.sign(np.diff(frame["open_time"].to_numpy())).sum() < 0:  # a single candle may be out of order
        frame = frame.reverse()
        notes.append("has its newest candle first and is read the other way round")
    table = replace(table, frame=frame)
    times, rows = frame["open_time"].to_numpy(), frame[ROW].to_numpy()
    _check_order(table)
    timeframe, on_grid = _timeframe(table, timeframe)
    if not on_grid.all():
        notes.append(
            f"has {(~on_grid).sum()} candles of February 2018 that open off the grid, as Binance's did after a halt; "
            "they are left out"
        )
        frame, times, rows = frame.filter(pl.Series(on_grid)), times[on_grid], rows[on_grid]
    check_prices(frame.select(PRICES).to_numpy(), label, lambda i: table.place(int(rows[i])))
    if "volume" in frame.columns:
        volume = frame["volume"].to_numpy()
        if (wrong := ~((volume >= 0) & (volume <= MAX_VOLUME))).any():
            place = table.place(int(rows[wrong.argmax()]))
            raise ModelError(f"{label}: the volume in {place} is negative, missing or above {MAX_VOLUME:g}.")
    opened = pl.Series("open_time", times).cast(pl.Datetime("us", "UTC"))
    candles = frame.select(name for name in (*PRICES, "volume") if name in frame.columns).insert_column(
        0, opened
    )
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
    return Candles(candles.head(closed), timeframe, notes, rows[:closed])


def _is_pandas(frame: Any) -> bool:
    return type(frame).__module__.partition(".")[0] == "pandas" and hasattr(frame, "columns")


def _as_polars(frame: Any, label: str, columns: Mapping[str, str]) -> pl.DataFrame:
    """The table; of pandas those columns that are read, and the index as a time."""
    if _is_pandas(frame):
        return _from_pandas(frame, label, columns)
    if isinstance(frame, pl.LazyFrame):
        return frame.collect()
    if not hasattr(frame, "__arrow_c_stream__"):
        raise ModelError(
            f"{label}: a {type(frame).__name__} is not a table: give a pandas, polars or Arrow table."
        )
    return pl.DataFrame(frame)


def _without_tickers(frame: pl.DataFrame, label: str) -> pl.DataFrame:
    """Without yfinance's further header lines: `Price,Close,…`, `Ticker,BTC-USD,…`, `Datetime,,…`."""
    first = frame.columns[0]
    if folded(first) != "price" or frame[first].dtype != pl.String:
        return frame
    names = [folded(name) for name in frame.columns]
    if "close" in names and any(re.match(r"close(_duplicated_|\.)\d", name) for name in names):
        raise ModelError(f"{label}: {_SEVERAL_TICKERS}")
    heads = int(frame[first].head(2).str.to_lowercase().is_in(["ticker", "date", "datetime"]).sum())
    return frame.slice(heads).rename({first: "datetime"}) if heads else frame


def _from_pandas(frame: Any, label: str, columns: Mapping[str, str]) -> pl.DataFrame:
    if frame.columns.nlevels > 1:  # yfinance's price and ticker
        levels = [frame.columns.get_level_values(i) for i in range(frame.columns.nlevels)]
        frame = frame.set_axis(next((level for level in levels if "Close" in level), levels[0]), axis=1)
        if frame.columns.has_duplicates:
            raise ModelError(f"{label}: {_SEVERAL_TICKERS}")
    asked = {folded(name) for name in columns.values()}
    out: dict[str, pl.Series] = {}
    for place, name in enumerate(map(str, frame.columns)):
        if is_read(name) or folded(name) in asked:
            unique = f"{name}_duplicated_{place}" if name in out else name
            out[unique] = _pandas_column(frame.iloc[:, place])
    index = frame.index
    has_name = folded(index.name) in {*TIME_NAMES, *asked}
    holds_times = type(index).__name__ == "DatetimeIndex" or (len(index) and isinstance(index[0], datetime))
    if not any(folded(name) in TIME_NAMES for name in out) and (has_name or holds_times):
        out[str(index.name) if has_name else "open_time"] = _pandas_column(index.to_series())
    return pl.DataFrame(out)


def _pandas_column(column: Any) -> pl.Series:
    values = column.to_numpy()
    if getattr(column.dtype, "tz", None) is not None:
        values = column.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy()
        return pl.Series(values.astype("datetime64[us]")).dt.replace_time_zone("UTC")
    if values.dtype.kind == "M":
        return pl.Series(values.astype("datetime64[us]"))
    if values.dtype.kind != "O":
        return pl.Series(values, nan_to_null=True)
    return _of_objects(values.tolist())


def _of_objects(values: list[Any]) -> pl.Series:
    """A column of Python's objects; times as texts, since of one column they may have several zones, or none."""
    cells = [None if value != value else value for value in values]
    return pl.Series(
        [cell.isoformat() if isinstance(cell, datetime) else cell for cell in cells], strict=False
    )


def _open_times(
    table: Table, chosen: Chosen, names: list[str], *, naive_is_utc: bool
) -> tuple[np.ndarray, bool]:
    """The open times in microseconds since 1970 UTC, int64, and whether they are written with exponents."""
    frame, label = table.frame, table.label
    columns = {name: frame[column] for name, column in chosen.times.items()}
    if not columns:
        listed = ", ".join(names) or "none"
        raise ModelError(
            f"{label}: there is no time: give a column {', '.join(TIME_NAMES)}, or a time index (columns: {listed}), "
            f"or {option('time', 'NAME')}."
        )
    columns = {name: _of_objects(c.to_list()) if c.dtype == pl.Object else c for name, c in columns.items()}
    columns = {
        name: c.cast(pl.String) if c.dtype in (pl.Categorical, pl.Enum) else c for name, c in columns.items()
    }
    if "date" in columns and "time" in columns:
        day, clock = (columns[name].cast(pl.String) for name in ("date", "time"))
        if clock.str.contains(r"^\s*\d\d?:").all() and not day.str.contains(":").any():
            columns = {"date": day.str.replace(r"^(\d{4})(\d\d)(\d\d)$", "$1-$2-$3") + " " + clock}
    columns = {name: _counts(c) for name, c in columns.items()}
    clear = [
        name for name, c in columns.items() if c.dtype.is_numeric() or getattr(c.dtype, "time_zone", None)
    ]
    name = next(iter(clear or columns))
    _check_one_time(table, {other: columns[other] for other in clear}, chosen)
    column, written = columns[name], frame[chosen.times[name]] if name in chosen.times else columns[name]
    if column.null_count():
        raise ModelError(
            f"{label}: {name} is missing in {column.null_count()} rows, first in "
            f"{table.place(int(frame[ROW][int(column.is_null().arg_max() or 0)]))}: remove them."
        )
    what = f"{label}: {name}"
    if column.dtype == pl.String:
        words = column.cast(pl.Float64, strict=False).is_null()
        if not words.all():  # counts, and a line of words below them
            raise _no_time(table, column, words, what)
        column = _from_text(table, column, what)
    if column.dtype == pl.Date:
        column = column.cast(pl.Datetime("us"))
    if column.dtype.is_numeric():
        rounded = written.dtype == pl.String and bool(written.str.contains("[eE]").any())
        return _instants(table, column, what), rounded
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
    return _instants(table, column, what), False


def _check_one_time(table: Table, columns: dict[str, pl.Series], chosen: Chosen) -> None:
    """Refuse two columns of certain times that are not the same; `open_time` says what it is."""
    if "open_time" in columns or len(columns) < 2:
        return
    read = {}
    for name, column in columns.items():
        if not column.null_count():
            with suppress(ModelError):  # another unit than times: no time
                read[name] = _instants(table, column, name)
    for name, times in read.items():
        first = next(iter(read))
        if (times != read[first]).any():
            at = int((times != read[first]).argmax())
            raise ModelError(
                f"{table.label}: the columns {chosen.times[first]!r} and {chosen.times[name]!r} differ, first in "
                f"{_place(table, at)}, and either may be the time at which candles open: "
                f"{option('time', chosen.times[first])}."
            )


def _instants(table: Table, column: pl.Series, what: str) -> np.ndarray:
    """Microseconds since 1970 of counts, or of datetimes with a zone."""
    if column.dtype.is_numeric():
        return _epoch(table, column, what)
    return column.cast(pl.Datetime("us", "UTC")).cast(pl.Int64).to_numpy()


def _counts(column: pl.Series) -> pl.Series:
    """The numbers of a column of texts that are all numbers; another column as it is."""
    if column.dtype != pl.String or not len(column):
        return column
    texts = column.str.strip_chars().replace("", None)
    for kind in (pl.Int64, pl.Float64):
        numbers = texts.cast(kind, strict=False)
        if numbers.null_count() == texts.null_count() < len(texts):
            return numbers
    return texts


def _from_text(table: Table, column: pl.Series, what: str) -> pl.Series:
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
        raise _no_time(table, column, wrong, what)
    if not aware[0]:
        return pl.Series(times, dtype=pl.Datetime("us"))
    return pl.Series([time.astimezone(UTC) for time in times if time], dtype=pl.Datetime("us", "UTC"))


def _no_time(table: Table, column: pl.Series, wrong: pl.Series, what: str) -> ModelError:
    row = int(wrong.arg_max() or 0)
    return ModelError(
        f"{what} {shown(column[row])} in {table.place(int(table.frame[ROW][row]))} is not a time"
        f"{' like those before' * (row > 0)}: write 2024-01-31T12:00:00Z, or seconds, milliseconds, microseconds or "
        "nanoseconds since 1970."
    )


def _epoch(table: Table, column: pl.Series, what: str) -> np.ndarray:
    """Microseconds of counts since 1970, each of whose units follows from its size: 1973 to 5138 overlap in no two."""
    values = column.to_numpy()
    wrong = ~((values >= 1e8) & (values < 5e18))  # NaN, too
    if wrong.any():
        row = int(wrong.argmax())
        raise ModelError(
            f"{what} {values[row]:g} in {table.place(int(table.frame[ROW][row]))} is not a time since 1970 in s, ms, "
            "us or ns: give these."
        )
    whole = values.astype(np.int64)
    fine = np.where(whole >= 10**17, whole // 1_000, whole)
    for limit, factor in ((10**14, 1_000), (10**11, 1_000_000)):
        exact = np.round(values * factor).astype(np.int64) if values.dtype.kind == "f" else whole * factor
        fine = np.where(whole < limit, exact, fine)
    return fine


def _numbers(
    table: Table, chosen: Chosen, names: list[str], decimal: Decimal | None, *, point_is_decimal: bool
) -> list[pl.Series]:
    """Prices and, where given, volume, as Float64, NaN where missing; texts by the one convention of the table."""
    frame, label = table.frame, table.label
    for name in PRICES:
        if name not in chosen.numbers:
            raise ModelError(
                f"{label}: the column {name} is missing (there are {', '.join(names)}): {option(name, 'NAME')}."
            )
    texts, numbers = {}, {}
    for name, column in ((name, frame[column]) for name, column in chosen.numbers.items()):
        if column.dtype in (pl.String, pl.Categorical, pl.Enum):
            texts[name] = column.cast(pl.String)
            continue
        try:
            if (
                column.dtype.is_nested() or column.dtype == pl.Boolean
            ):  # a cast would look into it, or count truths
                raise pl.exceptions.InvalidOperationError
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                numbers[name] = column.cast(pl.Float64).fill_null(float("nan"))
        except (pl.exceptions.PolarsError, Warning):
            raise ModelError(
                f"{label}: {name} is of the type {column.dtype}, which holds no numbers: give numbers or texts."
            ) from None
    try:
        read = read_numbers(texts, decimal, point_is_decimal=point_is_decimal) if texts else {}
    except NumbersError as error:
        raise _unread(table, chosen, decimal, error) from None
    numbers |= {name: pl.Series(values) for name, values in read.items()}
    return [numbers[name].alias(name) for name in chosen.numbers]


def _unread(table: Table, chosen: Chosen, decimal: Decimal | None, error: NumbersError) -> ModelError:
    """The sentence for texts that are no numbers, or that may be two: column, value, row and what to do."""
    first, *others = (
        f"{chosen.numbers[cell.column]} {shown(cell.text)} in {table.place(int(table.frame[ROW][cell.row]))}"
        for cell in error.cells
    )
    say = "say so with --decimal point or --decimal comma (in Python decimal='point' or 'comma')"
    if error.kind == "two-readings":
        one, other = (f"{value:g}" if value < 1e6 else f"{value:.15g}" for value in error.readings)
        why = f"can be read as {one} or {other}, and no number of the table tells which: {say}."
    elif error.kind == "two-conventions":
        why = f"and {others[0]} are not written alike: write all numbers as 94401.14."
    else:
        other = {"point": "comma", "comma": "point"}.get(decimal or "", "")
        by = f" with a decimal {decimal}: give the decimal {other} or none, or" if decimal else ":"
        why = f"is not a number{by} write it as 94401.14, or remove the row."
    return ModelError(f"{table.label}: {first} {why}")


def _check_order(table: Table) -> None:
    times = table.frame["open_time"].to_numpy()
    steps = np.diff(times)
    if (steps > 0).all():
        return
    at = int(np.flatnonzero(steps <= 0)[0]) + 1
    what = "is earlier than the candle before: sort one symbol's candles by time"
    if steps[at - 1] == 0:
        what = "appears twice: keep one of the two"
        _check_digits(table)
        if 2 * (distinct := len(np.unique(times))) <= len(times):
            raise ModelError(
                f"{table.label}: its {len(times):,} rows have {distinct:,} different times, the first repeated in "
                f"{_place(table, at)}: the times have lost digits, so export them again, or there are several coins, "
                f"and {option('symbol', 'NAME')}."
            )
    raise ModelError(f"{table.label}: the candle of {_text(times[at])} in {_place(table, at)} {what}.")


def _check_digits(table: Table) -> None:
    """Refuse times that a spreadsheet has cut to a few digits; asked where they repeat or fit no grid."""
    times = table.frame["open_time"].to_numpy()
    if table.rounded or (len(times) > 2 and not (times % _LOST).any()):
        raise ModelError(
            f"{table.label}: the times have lost digits, as 1.73569E+12 has: export them again, as whole numbers or as "
            "2024-01-31T12:00:00Z."
        )


def _place(table: Table, at: int) -> str:
    """Where the candle at a place of the frame lies in the given table."""
    return table.place(int(table.frame[ROW][at]))


def _timeframe(table: Table, timeframe: str | None) -> tuple[str, np.ndarray]:
    """The timeframe, given or found as the most frequent step, and whether each candle lies on its grid.

    Raises:
        ModelError: a candle off the grid is none of Binance's own.
    """
    times, label = table.frame["open_time"].to_numpy(), table.label
    steps = np.diff(times)
    if timeframe is None:
        if not len(steps):
            raise ModelError(f"{label}: one candle has no known length: give a timeframe such as 1h.")
        values, counts = np.unique(steps, return_counts=True)
        usual = int(values[counts.argmax()])
        timeframe = next((name for name, s in INTERVAL_SECONDS.items() if s * 1_000_000 == usual), None)
        if timeframe is None:
            _check_digits(table)
            raise ModelError(
                f"{label}: the candles are {timedelta(microseconds=usual)} apart: resample them."
            )
    if timeframe not in INTERVAL_SECONDS:
        raise ModelError(
            f"{label}: timeframe {timeframe!r} is unknown: choose {', '.join(INTERVAL_SECONDS)}."
        )
    length = INTERVAL_SECONDS[timeframe] * 1_000_000
    off_grid = (times - (_FIRST_MONDAY if timeframe == "1w" else 0)) % length != 0
    binances = (times >= OFF_GRID[0]) & (times < OFF_GRID[1]) & (not off_grid.all())
    if (wrong := off_grid & ~binances).any():
        _check_digits(table)
        at = int(wrong.argmax())
        raise ModelError(
            f"{label}: the candle of {_text(times[at])} in {_place(table, at)} is not on the UTC grid of {timeframe} "
            "candles."
        )
    if len(steps) >= 20 and steps.min() > length:  # fewer candles may all lie beside gaps
        raise ModelError(
            f"{label}: its candles are {timedelta(microseconds=int(steps.min()))} and more apart, so they are not "
            f"those of {timeframe}: give the right timeframe."
        )
    return timeframe, ~off_grid


def _text(microseconds: int) -> str:
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(microseconds))
    return f"{time.replace(tzinfo=None).isoformat(' ')} UTC"
