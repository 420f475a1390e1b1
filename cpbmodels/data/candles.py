"""Tables of candles in the forms that people have, checked: what `--source FILE` and `Series.from_frame` read.

A file may begin with other lines, be separated by `,`, `;`, tabs or `|`, have decimal commas, the newest candle first,
times in seconds to nanoseconds, texts with offsets, or date and time apart, as the exports of exchanges, TradingView,
MetaTrader and yfinance do. Pandas is converted column by column through numpy, because polars' own conversion needs
pyarrow, which the library does not; everything else comes in through the Arrow interface.
"""

from __future__ import annotations

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
from cpbmodels.data.prices import PRICES, check_prices
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
_TIME = re.compile(
    r"^\s*(?P<date>\d{4}-\d\d-\d\d)(?:[T ](?P<minute>\d\d:\d\d)(?P<second>:\d\d)?(?P<part>\.\d+)?)?"
    r"\s*(?P<zone>Z|UTC|GMT|[+-]\d\d(?::?\d\d)?)?\s*$"
)
_TIMEFRAMES = {seconds: name for name, seconds in INTERVAL_SECONDS.items()}
_FIRST_MONDAY = 4 * 86_400 * 1_000_000
"""1970-01-05 in microseconds: weeks begin on Mondays."""


class Candles(NamedTuple):
    """Checked candles.

    frame: `open_time` (Datetime us, UTC), `open high low close` and, where given, `volume` (Float64), sorted, unique.
    timeframe: Binance's interval. rows: all columns of the table, their names in small letters, row by row as `frame`.
    notes: what was done to the table, each the end of a sentence that begins with its name.
    """

    frame: pl.DataFrame
    timeframe: str
    rows: pl.DataFrame
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
    except (pl.exceptions.PolarsError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        reason = str(error).strip().splitlines()[0][:120]
        raise ModelError(
            f"{path} cannot be read ({reason}); save it again as CSV with a header line."
        ) from error
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror or error}); check its name.") from error


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
    lines_before = f"has {place} line{'s' * (place > 1)} before its header, left out"
    return table, [lines_before] if place else []


def _header(lines: list[str], label: str) -> tuple[int, str]:
    """The place of the header line and the separator; of Binance's files, which have none, of the first line."""
    for place, line in enumerate(lines[:_MAX_LINES_BEFORE]):
        for separator in _SEPARATORS:
            if len(_READ.intersection(map(_name, line.split(separator)))) > 2:
                return place, separator
    separator = max(_SEPARATORS, key=lines[0].count)
    cells = lines[0].split(separator)
    if len(cells) < 2 or (any(map(_is_number, cells)) and len(cells) != len(_BINANCE)):
        raise ModelError(
            f"{label}: there is no header line: begin it with open_time,open,high,low,close,volume or what it has."
        )
    return 0, separator


def _is_number(text: str) -> bool:
    return re.fullmatch(r'"?[\d.]+"?', text.strip()) is not None


def _name(column: str) -> str:
    """`<OPEN>`, `"Open"`, `Open Time` -> `open`, `open`, `open_time`."""
    name = column.strip(" <>\"'").lower().replace(" ", "_")
    return _SHORT.get(name, name)


def read_candles(
    frame: Any, label: str, timeframe: str | None = None, partial: str = "refuse", naive_is_utc: bool = False
) -> Candles:
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
    table, listed = _table(frame, label)
    whole = table.filter(~pl.all_horizontal(pl.all().is_null())) if table.width else table
    if blank := table.height - whole.height:
        notes.append(f"has {blank} blank row{'s' * (blank > 1)}, left out")
    if not whole.height and table.width:
        raise ModelError(f"{label}: there is no candle in it.")
    times = _open_times(whole, listed, label, naive_is_utc)
    if len(times) > 1 and (np.diff(times) < 0).all():
        whole, times = whole.reverse(), times[::-1]
        notes.append("has its newest candle first and is read the other way round")
    _check_order(times, label)
    numbers = {name: _numbers(whole, name, label) for name in PRICES}
    if "volume" in whole.columns:
        numbers["volume"] = _numbers(whole, "volume", label)
        if (wrong := ~(np.isfinite(numbers["volume"]) & (numbers["volume"] >= 0))).any():
            raise ModelError(
                f"{label}: the volume in row {wrong.argmax()} is negative or missing: repair it, or drop the column."
            )
    check_prices(np.column_stack([numbers[name] for name in PRICES]), label)
    timeframe = _timeframe(times, timeframe, label)
    candles = pl.DataFrame({"open_time": times, **numbers}).with_columns(
        pl.col("open_time").cast(pl.Datetime("us", "UTC"))
    )
    closed = _closed(candles, timeframe, partial, label)
    if candles.height - closed > 1:  # one is the candle that is being made
        notes.append(
            f"ends with {candles.height - closed} candles that close after now, which are left out: its times may be "
            "shifted, they must be those at which candles open, in UTC"
        )
    return Candles(candles.head(closed), timeframe, whole.head(closed), notes)


def _table(frame: Any, label: str) -> tuple[pl.DataFrame, list[str]]:
    """The columns, their names in small letters, of pandas those that are read and the index as a time; all names."""
    package = type(frame).__module__.partition(".")[0]
    if package == "pandas" and hasattr(frame, "columns"):
        listed = [str(name) for name in frame.columns]
        frame = _pandas(frame, label)
    elif isinstance(frame, pl.LazyFrame):
        frame = frame.collect()
    elif not isinstance(frame, pl.DataFrame):
        if not hasattr(frame, "__arrow_c_stream__"):
            raise ModelError(
                f"{label}: a {type(frame).__name__} is not a table of candles: give a pandas, polars or Arrow table, "
                "or bare arrays to Series.from_ohlc."
            )
        frame = pl.DataFrame(frame)
    columns: dict[str, pl.Series] = {}
    for column in sorted(frame.columns, key=lambda column: column not in _READ):  # `t` before Binance's `T`
        columns.setdefault(_name(column), frame[column])
    table = pl.DataFrame([columns[name].alias(name) for name in dict.fromkeys(map(_name, frame.columns))])
    if "volume" not in table.columns:  # `Volume BTC` of a coin and `Volume USDT` behind it
        table = table.rename(
            dict.fromkeys([c for c in table.columns if c.startswith("volume_")][:1], "volume")
        )
    return _one_header(table, label), listed if package == "pandas" else frame.columns


def _one_header(table: pl.DataFrame, label: str) -> pl.DataFrame:
    """The table without yfinance's further header lines: `Price,Close,…`, `Ticker,BTC-USD,…`, `Datetime,,…`."""
    if not table.columns or table.columns[0] != "price" or table["price"].dtype != pl.String:
        return table
    heads = table.head(2).filter(pl.col("price").str.to_lowercase().is_in(["ticker", "date", "datetime"]))
    if "close" in table.columns and any(
        re.match(r"close(_duplicated_|\.)\d", name) for name in table.columns
    ):
        raise _several_tickers(label)
    return table.slice(heads.height).rename({"price": "datetime"})


def _several_tickers(label: str) -> ModelError:
    return ModelError(
        f"{label}: it has several tickers in one table: give one at a time, with yfinance as "
        "download(TICKER, multi_level_index=False)."
    )


def _pandas(frame: Any, label: str) -> pl.DataFrame:
    names, index = frame.columns, frame.index
    if names.nlevels > 1:  # yfinance's price and ticker
        levels = (names.get_level_values(i) for i in range(names.nlevels))
        names = next((level for level in levels if "Close" in level), names)
        if names.has_duplicates:
            raise _several_tickers(label)
    columns = {str(name): frame.iloc[:, i] for i, name in reversed(list(enumerate(names)))}
    if not any(_name(name) in TIME_NAMES for name in columns) and (
        _name(str(index.name)) in TIME_NAMES or type(index).__name__ == "DatetimeIndex"
    ):
        columns["open_time"] = index.to_series()
    read = {
        name: column
        for name, column in reversed(columns.items())
        if _name(name) in _READ or re.match(r"volume_|price$|close\.\d", _name(name))
    }
    return pl.DataFrame([_from_pandas(column).alias(name) for name, column in read.items()])


def _from_pandas(column: Any) -> pl.Series:
    zone = getattr(column.dtype, "tz", None)
    if zone is not None:
        instants = column.dt.tz_convert("UTC").dt.tz_localize(None)
        return pl.Series(instants.to_numpy().astype("datetime64[us]")).dt.replace_time_zone("UTC")
    values = column.to_numpy()
    if values.dtype.kind == "M":
        return pl.Series(values.astype("datetime64[us]"))
    if values.dtype.kind == "O":
        return pl.Series([None if value != value else value for value in values.tolist()], strict=False)
    return pl.Series(values, nan_to_null=True)


def _open_times(table: pl.DataFrame, listed: list[str], label: str, naive_is_utc: bool) -> np.ndarray:
    """The open times in microseconds since 1970 UTC, int64; `listed`: all columns, for the message."""
    columns = {name: table[name] for name in TIME_NAMES if name in table.columns}
    if not columns:
        unsplit = len(listed) == 1 and re.search(r"[;\t|]", listed[0])
        raise ModelError(
            f"{label}: there is no time: give a column {', '.join(TIME_NAMES)}, or a time index (columns: "
            f"{', '.join(listed) or 'none'}){': read it with its separator and decimal comma' * bool(unsplit)}."
        )
    if "date" in columns and "time" in columns:
        day, clock = (columns[name].cast(pl.String) for name in ("date", "time"))
        if clock.str.contains(r"^\s*\d\d?:").all() and not day.str.contains(":").any():
            columns = {"date": day.str.replace(r"^(\d{4})(\d\d)(\d\d)$", "$1-$2-$3") + " " + clock}
    clear = [n for n, c in columns.items() if c.dtype.is_numeric() or getattr(c.dtype, "time_zone", None)]
    name = next(iter(clear or columns))
    column = columns[name]
    if column.null_count():
        raise ModelError(f"{label}: {name} is missing in {column.null_count()} rows: remove them.")
    if column.dtype == pl.String:
        numeric = column.str.strip_chars().cast(pl.Int64, strict=False)
        if 0 < numeric.null_count() < len(column):  # counts, and a line of words below them
            raise _no_time(column, numeric.is_null(), name, label)
        column = _from_text(column, name, label) if numeric.null_count() else numeric
    if column.dtype == pl.Date:
        column = column.cast(pl.Datetime("us"))
    if isinstance(column.dtype, pl.Datetime):
        if column.dtype.time_zone is None:
            if not naive_is_utc:
                raise ModelError(
                    f"{label}: {name} has no time zone, so it is not known which instants are meant: make it UTC, with "
                    "pandas as dt.tz_localize('UTC'), with polars as dt.replace_time_zone('UTC')."
                )
            column = column.dt.replace_time_zone("UTC")
        return column.cast(pl.Datetime("us", "UTC")).cast(pl.Int64).to_numpy()
    if column.dtype.is_numeric():
        return _epoch(column.to_numpy(), name, label)
    raise ModelError(
        f"{label}: {name} is of the type {column.dtype}: give aware datetimes, or seconds, milliseconds, microseconds "
        "or nanoseconds since 1970."
    )


def _from_text(column: pl.Series, name: str, label: str) -> pl.Series:
    """Datetimes of texts: in UTC if each has a zone, without a zone if none has."""
    text = column.str.replace(r"^\s*(\d{4})[./](\d\d)[./](\d\d)", "$1-$2-$3")
    parts = text.str.extract_groups(_TIME.pattern).struct.unnest()
    local = pl.concat_str(
        "date", pl.lit(" "), pl.col("minute").fill_null("00:00"), pl.col("second").fill_null(":00"),
        pl.col("part").fill_null(""),
    )  # fmt: skip
    hours, minutes = (
        pl.col("zone").str.extract(digits, 1).cast(pl.Int64, strict=False).fill_null(0)
        for digits in (r"[+-](\d\d)", r"[+-]\d\d:?(\d\d)")
    )
    sign = pl.when(pl.col("zone").str.starts_with("-")).then(-1).otherwise(1)
    ahead = pl.duration(minutes=(hours * 60 + minutes) * sign)
    found = parts.select(
        local.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="us", strict=False).alias("time") - ahead,
        "zone",
    )
    times, zones = found["time"], found["zone"]
    wrong = times.is_null() | (zones.is_null() != zones.is_null()[0])
    if wrong.any():
        raise _no_time(column, wrong, name, label)
    return times if zones.is_null()[0] else times.dt.replace_time_zone("UTC")


def _no_time(column: pl.Series, wrong: pl.Series, name: str, label: str) -> ModelError:
    row = int(wrong.arg_max() or 0)
    return ModelError(
        f"{label}: {name} {column[row]!r} in row {row} is not a time{' like those before' * (row > 0)}: write "
        "2024-01-31T12:00:00Z, or seconds, milliseconds, microseconds or nanoseconds since 1970."
    )


def _epoch(values: np.ndarray, name: str, label: str) -> np.ndarray:
    """Microseconds of counts since 1970, each of whose units follows from its size: 1973 to 5138 overlap in no two."""
    wrong = ~((values >= 1e8) & (values < 5e18))  # NaN, too
    if wrong.any():
        row = int(wrong.argmax())
        raise ModelError(
            f"{label}: {name} {values[row]:g} in row {row} is not a time since 1970 in s, ms, us or ns: give one of "
            "these."
        )
    whole = values.astype(np.int64)
    fine = np.where(whole >= 10**17, whole // 1_000, whole)
    for limit, factor in ((10**14, 1_000), (10**11, 1_000_000)):
        exact = np.round(values * factor).astype(np.int64) if values.dtype.kind == "f" else whole * factor
        fine = np.where(whole < limit, exact, fine)
    return fine


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


def _numbers(table: pl.DataFrame, name: str, label: str) -> np.ndarray:
    if name not in table.columns:
        raise ModelError(
            f"{label}: the column {name} is missing: it needs {', '.join(PRICES)} (there are "
            f"{', '.join(table.columns) or 'none'})."
        )
    column = table[name]
    if column.dtype == pl.String:
        column = column.str.strip_chars().str.replace(r"^(-?\d+),(\d+)$", "$1.$2")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            values = column.cast(pl.Float64)
    except (pl.exceptions.PolarsError, Warning):
        wrong = column.filter(column.is_not_null() & column.cast(pl.Float64, strict=False).is_null())
        raise ModelError(
            f"{label}: {name} is of the type {column.dtype} and not all of its values are numbers (such as "
            f"{wrong.first()!r}): convert it."
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
    length = timedelta(seconds=INTERVAL_SECONDS[timeframe])
    first = _FIRST_MONDAY if timeframe == "1w" else 0
    wrong = np.flatnonzero((times - first) % (INTERVAL_SECONDS[timeframe] * 1_000_000))
    if len(wrong):
        row = int(wrong[0])
        raise ModelError(
            f"{label}: the candle of {_text(times[row])} in row {row} does not lie on the UTC grid of {timeframe} "
            "candles: remove it, give the right timeframe, or check that the times are those at which candles open."
        )
    shortest = timedelta(microseconds=int(steps.min(initial=2**60)))
    if len(steps) >= 20 and shortest > length:  # fewer candles may all lie beside gaps
        raise ModelError(
            f"{label}: its candles are {shortest} and more apart, so they are not those of {timeframe}: give the right "
            "timeframe."
        )
    return timeframe


def _closed(candles: pl.DataFrame, timeframe: str, partial: str, label: str) -> int:
    """The number of candles that have closed by this machine's clock."""
    length, now = timedelta(seconds=INTERVAL_SECONDS[timeframe]), datetime.now(UTC)
    closes = candles["open_time"][-1] + length
    if closes > now and partial == "refuse":
        raise ModelError(
            f"{label}: the last candle closes at {closes:%Y-%m-%d %H:%M} UTC, which has not come yet: leave it out, or "
            'pass partial="drop".'
        )
    return int((candles["open_time"] <= now - length).sum())


def _text(microseconds: int) -> str:
    return (
        f"{datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(microseconds)):%Y-%m-%d %H:%M} UTC"
    )
