"""When the candles of a table open: columns of counts, datetimes or texts to microseconds since 1970 UTC.

Counts may be seconds to nanoseconds, also mixed in one column, texts may have offsets, and date and time may stand
apart.
"""

from contextlib import suppress
from datetime import UTC, datetime

import numpy as np
import polars as pl

from cpbmodels.data.column_names import TIME_NAMES, Chosen, option
from cpbmodels.data.raw_tables import ReadTable, of_objects
from cpbmodels.errors import ModelError, shown

_GROUPED_COUNT = r"^[0-9]{1,3}([., '\u00a0\u202f][0-9]{3}){3,}$"
_COMMA_COUNT = r"^[0-9]+,[0-9]+([eE]\+?[0-9]+)?$"
"""1,704,067,200 and 1,70407E+12: how spreadsheets write seconds and milliseconds."""


def open_times(
    table: ReadTable, chosen: Chosen, names: list[str], *, naive_is_utc: bool
) -> tuple[np.ndarray, bool]:
    """The open times in microseconds since 1970 UTC, int64 [rows], and whether they are written with exponents.

    Args:
        table: its columns as they came.
        chosen: which columns may hold the times.
        names: of all its columns, for messages.
        naive_is_utc: times without a zone are UTC, else refused.

    Raises:
        ModelError: there is no time, a cell is none, or two columns differ; the sentence names column and row.
    """
    frame, label = table.frame, table.label
    columns = {name: frame[column] for name, column in chosen.times.items()}
    if not columns:
        listed = ", ".join(names) or "none"
        raise ModelError(
            f"{label}: there is no time: give a column {', '.join(TIME_NAMES)}, or a time index (columns: {listed}), "
            f"or {option('time', 'NAME')}."
        )
    columns = {name: of_objects(c.to_list()) if c.dtype == pl.Object else c for name, c in columns.items()}
    columns = {
        name: c.cast(pl.String) if c.dtype in (pl.Categorical, pl.Enum) else c for name, c in columns.items()
    }
    if "date" in columns and "time" in columns:
        day, clock = (columns[name].cast(pl.String) for name in ("date", "time"))
        if clock.str.contains(r"^\s*\d\d?:").all() and not day.str.contains(":").any():
            columns = {"date": day.str.replace(r"^(\d{4})(\d\d)(\d\d)$", "$1-$2-$3") + " " + clock}
    columns = {name: _counts(c) for name, c in columns.items()}
    if len(columns) > 1 and "open_time" not in columns:
        columns = {name: _datetimes(table, c) for name, c in columns.items()}
    # A count or a time with a zone says which instant it is; a text without one is taken where nothing else is there.
    clear = [
        name for name, c in columns.items() if c.dtype.is_numeric() or getattr(c.dtype, "time_zone", None)
    ]
    name = next(iter(clear or columns))
    _check_one_time(table, {other: columns[other] for other in clear or columns}, chosen)
    column, written = columns[name], frame[chosen.times[name]] if name in chosen.times else columns[name]
    if column.null_count():
        raise ModelError(
            f"{label}: {name} is missing in {column.null_count()} rows, first in "
            f"{table.place_at(int(column.is_null().arg_max() or 0))}: remove them."
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


def _check_one_time(table: ReadTable, columns: dict[str, pl.Series], chosen: Chosen) -> None:
    """Refuse two columns of equally certain times that are not the same; `open_time` says what it is.

    A column that repeats its times more often than another, as the day does beside the hour, is not meant.
    """
    if "open_time" in columns or len(columns) < 2:
        return
    read = {}
    for name, column in columns.items():
        if not column.null_count() and (column.dtype.is_numeric() or isinstance(column.dtype, pl.Datetime)):
            with suppress(ModelError):  # another unit than times: no time
                read[name] = _instants(table, column, name)
    # The day beside the hour repeats its times: the column that repeats least is meant.
    distinct = {name: len(np.unique(times)) for name, times in read.items()}
    read = {name: times for name, times in read.items() if distinct[name] == max(distinct.values())}
    for name, times in read.items():
        first = next(iter(read))
        if (times != read[first]).any():
            at = int((times != read[first]).argmax())
            raise ModelError(
                f"{table.label}: the columns {chosen.times[first]!r} and {chosen.times[name]!r} differ, first in "
                f"{table.place_at(at)}, and either may be the time at which candles open: "
                f"{option('time', chosen.times[first])}."
            )


def _instants(table: ReadTable, column: pl.Series, what: str) -> np.ndarray:
    """Microseconds since 1970 of counts, or of datetimes with a zone."""
    if column.dtype.is_numeric():
        return _epoch(table, column, what)
    return column.cast(pl.Datetime("us", "UTC")).cast(pl.Int64).to_numpy()


def _datetimes(table: ReadTable, column: pl.Series) -> pl.Series:
    """The datetimes of a column of texts that all are times; another column as it is."""
    if column.dtype == pl.String and not column.null_count():
        with suppress(ModelError):
            return _from_text(table, column, "")
    return column


def _counts(column: pl.Series) -> pl.Series:
    """The numbers of a column of texts that are all numbers, and the days of digits; another column as it is."""
    if column.dtype == pl.String and len(column):
        texts = column.str.strip_chars().replace("", None)
        given = texts.drop_nulls()
        if given.str.contains(_GROUPED_COUNT).all():
            texts = texts.str.replace_all("[^0-9]", "")
        elif given.str.contains(_COMMA_COUNT).all():
            texts = texts.str.replace(",", ".", literal=True)
        column = texts
        for kind in (pl.Int64, pl.Float64):
            numbers = texts.cast(kind, strict=False)
            if numbers.null_count() == texts.null_count() < len(texts):
                column = numbers
                break
    return _days_of_digits(column) if column.dtype.is_integer() and len(column) else column


def _days_of_digits(column: pl.Series) -> pl.Series:
    """Times without a zone of numbers that all are days or times of 2009 and later, as 202401312300; else as it is.

    As counts they would be of 1970 to 1978, before there were coins, or of 2600.
    """
    texts = column.cast(pl.String)
    lengths = texts.str.len_chars().unique().drop_nulls().to_list()
    form = {8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}.get(lengths[0]) if len(lengths) == 1 else None
    if form is None:
        return column
    times = texts.str.to_datetime(form, strict=False, time_unit="us")
    is_time = (times.dt.year() >= 2009) & (times.dt.year() < 2100)
    return times if is_time.fill_null(value=False).sum() == len(column) - column.null_count() else column


def _from_text(table: ReadTable, column: pl.Series, what: str) -> pl.Series:
    """Datetimes of texts: in UTC if each has a zone, without a zone if none has."""
    # `fromisoformat` reads neither other separators of the day nor the names of UTC.
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


def _no_time(table: ReadTable, column: pl.Series, wrong: pl.Series, what: str) -> ModelError:
    row = int(wrong.arg_max() or 0)
    return ModelError(
        f"{what} {shown(column[row])} in {table.place_at(row)} is not a time"
        f"{' like those before' * (row > 0)}: write 2024-01-31T12:00:00Z, or seconds, milliseconds, microseconds or "
        "nanoseconds since 1970."
    )


def _epoch(table: ReadTable, column: pl.Series, what: str) -> np.ndarray:
    """Microseconds of counts since 1970, each of whose units follows from its size: 1973 to 5138 overlap in no two."""
    # numpy has no 128-bit integers, and other counts than whole ones may be Decimal
    kind = pl.Int64 if column.dtype.is_integer() else pl.Float64
    values = column.cast(kind, strict=False).to_numpy()
    wrong = ~((values >= 1e8) & (values < 5e18))  # NaN, too
    if wrong.any():
        row = int(wrong.argmax())
        raise ModelError(
            f"{what} {values[row]:.15g} in {table.place_at(row)} is not a time since 1970 in s, ms, "
            "us or ns: give these."
        )
    whole = values.astype(np.int64)
    # Nanoseconds from 10^17 on, microseconds from 10^14, milliseconds from 10^11, else seconds.
    fine = np.where(whole >= 10**17, whole // 1_000, whole)
    for limit, factor in ((10**14, 1_000), (10**11, 1_000_000)):
        exact = np.round(values * factor).astype(np.int64) if values.dtype.kind == "f" else whole * factor
        fine = np.where(whole < limit, exact, fine)
    return fine
