"""Tables as people have them, as one polars frame whose columns are not known yet: files, pandas, polars, Arrow.

A file may begin with other lines and be separated by `,`, `;`, tabs or `|`, as the exports of exchanges, TradingView,
MetaTrader and yfinance are. Pandas is converted column by column through numpy, because polars' own conversion needs
pyarrow, which the library does not; everything else comes in through the Arrow interface.
"""

import csv
import errno
import io
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from cpbmodels.data import TABLE_SUFFIXES
from cpbmodels.data.column_names import TIME_NAMES, folded, is_known, is_read
from cpbmodels.errors import ModelError
from cpbmodels.files import gunzip, read_regular

ROW = "row of the table"
"""The column of `ReadTable.frame` with the rows' numbers."""

BINANCE_COLUMNS = (
    "open_time",
    "open",
    "high",
    "low",
    "close",
    "volume",
    "close_time",
    "quote_volume",
    "count",
    "taker_buy_volume",
    "taker_buy_quote_volume",
    "ignore",
)
"""Columns of Binance's kline files, which have no header line."""
_SEPARATORS = ",;\t|"
MAX_BYTES = 2 << 30  # of a file, and of what it inflates to: 1s candles of a month are 300 MB
MAX_CELLS = 250_000_000  # of a parquet or feather file: 2 GB of numbers
_MAX_LINES_BEFORE = 100  # in which the header is looked for
_SEVERAL_TICKERS = (
    "it has several tickers in one table: give one at a time, with yfinance as download(TICKER, "
    "multi_level_index=False)."
)
_BINARY = {
    b"PK\x03\x04": "a zip archive",
    b"\x1f\x8b": "gzip-compressed",
    b"PAR1": "a parquet file",
    b"ARROW1": "a feather file",
    b"\xd0\xcf\x11\xe0": "an Excel file",
    b"SQLite format 3": "an SQLite database",
    b"%PDF": "a PDF file",
    b"\x28\xb5\x2f\xfd": "zstd-compressed",
    b"\x89HDF": "an HDF5 file",
    b"7z\xbc\xaf": "a 7z archive",
    b"BZh": "bzip2-compressed",
    b"\xfd7zXZ": "xz-compressed",
}
"""First bytes of files that are no text, and what they are."""
_OTHER_TEXTS = {
    r"\s*(\{|\[\s*[\[{])": "JSON",
    r"(?i)\s*<(!doctype|html|head|body|table)\b": "an HTML page",
    r"(?i)\s*<\?xml\b": "XML",
    r"[^\n]*\x00": "of bytes that are no text",
}
"""How texts begin that are no tables, and what they are."""


@dataclass(frozen=True)
class ReadTable:
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

    def place_at(self, index: int) -> str:
        """Where the row at an index of `frame` is in the given table."""
        return self.place(int(self.frame[ROW][index]))


class RawTable(NamedTuple):
    """A table as it was found: the frame, what was done, and the facts about a text file that `ReadTable` needs."""

    frame: pl.DataFrame
    notes: tuple[str, ...] = ()
    lines: np.ndarray | None = None
    point_is_decimal: bool = False


def read_file(path: Path, label: str, columns: Mapping[str, str]) -> RawTable:
    """Return the table in a parquet, feather or (compressed) text file.

    Raises:
        ModelError: it cannot be read; the sentence says why.
    """
    try:
        content = read_regular(path, MAX_BYTES)
        if path.suffix.lower() == ".parquet":
            _check_cells(pl.scan_parquet(io.BytesIO(content)))
            return RawTable(pl.read_parquet(io.BytesIO(content)))
        if path.suffix.lower() == ".feather":
            _check_cells(pl.scan_ipc(io.BytesIO(content)))
            return RawTable(pl.read_ipc(io.BytesIO(content)))
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
    text = _decoded(content)
    for pattern, kind in _OTHER_TEXTS.items():
        if re.match(pattern, text):
            raise ModelError(
                f"{label} is {kind} and no table, whatever its name: save it as one of the kinds that are read: "
                f"{', '.join(TABLE_SUFFIXES)}."
            )
    return _read_text(text, label, columns)


def _check_cells(table: pl.LazyFrame) -> None:
    """Raise OSError for a compressed table of too many cells, as its header counts them: a bomb repeats one value."""
    cells = table.select(pl.len()).collect().item() * len(table.collect_schema())
    if cells > MAX_CELLS:
        raise OSError(errno.EFBIG, f"it holds {cells:,} cells, more than {MAX_CELLS:,}")


def _decoded(content: bytes) -> str:
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):  # as MetaTrader writes
        return content.decode("utf-16", "replace")
    nulls = [content[start:200:2].count(0) for start in (0, 1)]  # header lines are of ASCII, mostly
    if max(nulls) > 40 and min(nulls) == 0:
        return content.decode("utf-16-be" if nulls[0] else "utf-16-le", "replace")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:  # Excel in Western Europe; its euro sign and its space within numbers are read
        return content.decode("cp1252", "replace")


def _read_text(text: str, label: str, columns: Mapping[str, str]) -> RawTable:
    every = re.split(r"\r\n|\n|\r", text)
    numbers = [number for number, line in enumerate(every, 1) if line.strip(f"{_SEPARATORS} ")]
    lines = [every[number - 1] for number in numbers]
    if not lines:
        raise ModelError(f"{label}: there is no line in it.")
    place, separator = _header(lines, label, columns)
    if not place and _is_number(lines[0].split(separator)[0]):
        lines.insert(0, separator.join(BINANCE_COLUMNS))
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
    return RawTable(frame, notes, at, separator == "," and not re.search(r'"\s*\d{1,3}\.\d{3}\s*"', body))


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
    if len(cells) < 2 or (any(map(_is_number, cells)) and len(cells) != len(BINANCE_COLUMNS)):
        raise ModelError(f"{label}: there is no header line such as open_time,open,high,low,close,volume.")
    return 0, separator


def _is_number(text: str) -> bool:
    return re.fullmatch(r'"?[\d.]+"?', text.strip()) is not None


def is_pandas(frame: Any) -> bool:
    """Whether a table is pandas'."""
    return type(frame).__module__.partition(".")[0] == "pandas" and hasattr(frame, "columns")


def of_frame(frame: Any, label: str, columns: Mapping[str, str]) -> pl.DataFrame:
    """The table; of pandas those columns that are read, and the index as a time."""
    if is_pandas(frame):
        return _from_pandas(frame, label, columns)
    if isinstance(frame, pl.LazyFrame):
        return frame.collect()
    if not hasattr(frame, "__arrow_c_stream__") or type(frame).__name__ == "Series":
        raise ModelError(
            f"{label}: a {type(frame).__name__} is not a table: give a pandas, polars or Arrow table."
        )
    return pl.DataFrame(frame)


def without_tickers(frame: pl.DataFrame, label: str) -> pl.DataFrame:
    """Without yfinance's further header lines: `Price,Close,…`, `Ticker,BTC-USD,…`, `Datetime,,…`."""
    first = frame.columns[0]
    if folded(first) not in ("price", "") or frame[first].dtype != pl.String:
        return frame
    begins = frame[first].head(3).str.to_lowercase().fill_null("").to_list()
    # `Ticker` has no name before version 0.2.51, and the names of the index and of the tickers may lie in one line
    heads = next((row + 1 for row, cell in enumerate(begins) if cell in ("date", "datetime")), 0)
    heads = heads if all(cell in ("", "ticker") for cell in begins[: max(heads - 1, 0)]) else 0
    names = [folded(name) for name in frame.columns]
    is_yfinances = bool(heads or folded(first)) and "close" in names
    if is_yfinances and any(re.match(r"close(_duplicated_|\.)\d", name) for name in names):
        raise ModelError(f"{label}: {_SEVERAL_TICKERS}")
    return frame.slice(heads).rename({first: "datetime"}) if heads else frame


def _from_pandas(frame: Any, label: str, columns: Mapping[str, str]) -> pl.DataFrame:
    if frame.columns.nlevels > 1:  # yfinance's price and ticker
        levels = [frame.columns.get_level_values(i) for i in range(frame.columns.nlevels)]
        frame = frame.set_axis(next((level for level in levels if "Close" in level), levels[0]), axis=1)
        if frame.columns.has_duplicates:
            raise ModelError(f"{label}: {_SEVERAL_TICKERS}")
    if frame.index.nlevels > 1:  # of symbol and time
        frame = frame.reset_index(allow_duplicates=True)
    asked = {folded(name) for name in columns.values()}
    out: dict[str, pl.Series] = {}
    for place, name in enumerate(map(str, frame.columns)):
        if is_read(name) or folded(name) in asked:
            unique = f"{name}_duplicated_{place}" if name in out else name
            out[unique] = _pandas_column(frame.iloc[:, place])
    index = frame.index
    has_name = folded(index.name) in {*TIME_NAMES, *asked}
    holds_times = type(index).__name__ == "DatetimeIndex" or (
        len(index) and isinstance(index[0], datetime | str)
    )
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
    return of_objects(values.tolist())


def of_objects(values: list[Any]) -> pl.Series:
    """A column of Python's objects; times as texts, since of one column they may have several zones, or none."""
    cells = [None if value != value else value for value in values]
    return pl.Series(
        [cell.isoformat() if isinstance(cell, datetime) else cell for cell in cells], strict=False
    )
