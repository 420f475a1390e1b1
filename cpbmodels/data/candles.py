"""Tables of candles in the forms that people have, checked: what `--source FILE` and `Series.from_frame` read.

`raw_tables` makes a frame of the table, `column_names` says which column is what, `open_times` and `numbers` read the
columns. Here the candles of one series are put in order and checked.
"""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from cpbmodels.data import CURRENCIES, INTERVAL_SECONDS
from cpbmodels.data.column_names import Chosen, are_intervals, choose, clean_symbol, may_be_volume, option
from cpbmodels.data.columns import MAX_VOLUME, PRICES, check_prices
from cpbmodels.data.numbers import Decimal, NumbersError, read_numbers
from cpbmodels.data.open_times import open_times
from cpbmodels.data.raw_tables import (
    ROW,
    RawTable,
    ReadTable,
    is_pandas,
    of_frame,
    read_file,
    without_tickers,
)
from cpbmodels.errors import ModelError, shown, unknown_choice

OFF_GRID = (1_518_048_000_000_000, 1_518_393_600_000_000)
"""2018-02-08 and 2018-02-12, microseconds: after a halt Binance's candles opened 28 minutes past the hour
(binance-public-data#14, #77). Such candles are kept apart."""

_FIRST_MONDAY = 4 * 86_400 * 1_000_000
"""1970-01-05 in microseconds: weeks begin on Mondays."""
_LOST = 1_000 * 1_000_000
"""Microseconds: no interval's candles all open at multiples of 1,000 s, but times cut to a few digits do."""


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


def read_table(
    source: Any,
    label: str,
    *,
    columns: Mapping[str, str] | None = None,
    decimal: Decimal | None = None,
    naive_is_utc: bool = False,
) -> ReadTable:
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
        raw, naive_is_utc = read_file(Path(source), label, columns), True
        names = raw.frame.columns
    else:
        raw = RawTable(of_frame(source, label, columns))
        names = [*map(str, source.columns)] if is_pandas(source) else raw.frame.columns
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
    frame = without_tickers(frame, label)
    chosen = choose([name for name in frame.columns if name != ROW], label, columns)
    others = [name for name in names if may_be_volume(name)]
    # Two columns may be volumes (base and quote): a wrong choice would be learnt from silently, so none is made.
    if "volume" not in chosen.numbers and others:
        notes.append(
            f"has no column that is certain to be its volume, of {', '.join(map(repr, others))}: "
            f"{option('volume', others[0])}"
        )
    table = ReadTable(frame, label, tuple(notes), raw.lines)
    times, rounded = open_times(table, chosen, names, naive_is_utc=naive_is_utc)
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
    return check_candles(table, timeframe or _named_timeframe(table), partial)


def _named_timeframe(table: ReadTable) -> str | None:
    """The timeframe that the table of one series names itself, to which its times are held."""
    if "timeframe" not in table.frame.columns:
        return None
    named = table.frame["timeframe"].drop_nulls().unique().to_list()
    return str(named[0]) if len(named) == 1 and are_intervals(named) else None


def check_series(table: ReadTable, symbol: str | None, timeframe: str | None) -> None:
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
    # The rest must be a currency: `BTC` is the pair `BTCUSDT`, and not `BTCDOMUSDT`.
    shorter, longer = sorted((clean_symbol(named), clean_symbol(symbol)), key=len)
    return longer == shorter or (longer.startswith(shorter) and longer.removeprefix(shorter) in CURRENCIES)


def check_candles(table: ReadTable, timeframe: str | None = None, partial: str = "refuse") -> Candles:
    """Return the candles of a table of one series; arguments and errors as in `read_candles`."""
    if partial not in ("refuse", "drop"):
        raise ModelError(f"partial {partial!r} is unknown: choose refuse or drop.")
    label, notes, frame = table.label, [*table.notes], table.frame
    # By the majority of steps; the order itself is checked once it is known which way the table runs.
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


def _numbers(
    table: ReadTable, chosen: Chosen, names: list[str], decimal: Decimal | None, *, point_is_decimal: bool
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
                column.dtype.is_nested() or column.dtype.is_temporal() or column.dtype == pl.Boolean
            ):  # a cast would look into it, or count truths or microseconds
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


def _unread(table: ReadTable, chosen: Chosen, decimal: Decimal | None, error: NumbersError) -> ModelError:
    """The sentence for texts that are no numbers, or that may be two: column, value, row and what to do."""
    first, *others = (
        f"{chosen.numbers[cell.column]} {shown(cell.text)} in {table.place_at(cell.row)}"
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


def _check_order(table: ReadTable) -> None:
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
                f"{table.place_at(at)}: the times have lost digits, so export them again, or there are several coins, "
                f"and {option('symbol', 'NAME')}."
            )
    raise ModelError(f"{table.label}: the candle of {_text(times[at])} in {table.place_at(at)} {what}.")


def _check_digits(table: ReadTable) -> None:
    """Refuse times that a spreadsheet has cut to a few digits; asked where they repeat or fit no grid."""
    times = table.frame["open_time"].to_numpy()
    if table.rounded or (len(times) > 2 and not (times % _LOST).any()):
        raise ModelError(
            f"{table.label}: the times have lost digits, as 1.73569E+12 has: export them again, as whole numbers or as "
            "2024-01-31T12:00:00Z."
        )


def _timeframe(table: ReadTable, timeframe: str | None) -> tuple[str, np.ndarray]:
    """The timeframe, given or found as the most frequent step, and whether each candle lies on its grid.

    Raises:
        ModelError: a candle off the grid is none of Binance's own.
    """
    times, label = table.frame["open_time"].to_numpy(), table.label
    steps = np.diff(times)
    if timeframe is None:
        if not len(steps):
            raise ModelError(f"{label}: one candle has no known length: give a timeframe such as 1h.")
        # The most frequent step, not the smallest: one candle out of place would else decide.
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
    # 1970-01-01 was a Thursday, and weekly candles open on Mondays.
    off_grid = (times - (_FIRST_MONDAY if timeframe == "1w" else 0)) % length != 0
    binances = (times >= OFF_GRID[0]) & (times < OFF_GRID[1]) & (not off_grid.all())
    if (wrong := off_grid & ~binances).any():
        _check_digits(table)
        at = int(wrong.argmax())
        raise ModelError(
            f"{label}: the candle of {_text(times[at])} in {table.place_at(at)} is not on the UTC grid of {timeframe} "
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
