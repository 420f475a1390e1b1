"""A user's own tables of candles, served as the months that Binance Vision would publish of them.

So they pass the same checks, and are stored, mended, reported and verified like Binance's, in a market of their own
(`own`). A month's version says which file it came from and a digest of its candles: only months that have changed are
stored again.

A series of this market belongs to one table: another table of its symbol is refused, never joined to it. A table goes
on with what is stored where both have candles and most of these are the same: so it may grow at its ends, lose its
oldest candles and put some right. Two exchanges' candles of one coin are hardly ever equal.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock

import polars as pl

from schemas.errors import UsageError
from schemas.identity import OWN, SeriesId
from schemas.klines import KLINES, PRICES
from schemas.scope import Scope
from schemas.tables import Table, tables_of
from tasks.market.grid import grid_of
from tasks.market.layout import SourceFile, period_bounds, source_file, text
from tasks.market.manifest import Manifest
from tasks.market.mirror import to_csv
from tasks.market.store import damage_of, part_path, read_part

_TOTAL = {"taker_buy_volume": "volume", "taker_buy_quote_volume": "quote_volume"}
"""Amounts that mean nothing without the one that they are a part of."""


@dataclass(frozen=True)
class Month:
    """A month of a table: the file that it would be, and its candles with the columns of the store."""

    file: SourceFile
    candles: pl.DataFrame = field(repr=False)


@dataclass
class TableSource:
    """A file or folder of tables."""

    root: Path
    requests: int = 0
    waits: list[str] = field(default_factory=list)  # sentences for the report
    _lock: Lock = field(default_factory=Lock, repr=False)
    _months: dict[str, dict[str, Month]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.name, self.tables = str(self.root), tables_of(str(self.root))

    def holds(self, series: SeriesId) -> bool:
        """Whether one of its tables is of a series."""
        return (series.symbol, series.timeframe) in self.tables.series

    def files(self, series: SeriesId) -> list[SourceFile]:
        """Return a month's file for each month in which a series has candles."""
        return [month.file for month in self.months(series).values()] if self.holds(series) else []

    def csv(self, file: SourceFile) -> bytes:
        """Return a month's candles as Binance prints them, with all their digits."""
        month = self.months(SeriesId(OWN, file.series.symbol, file.series.timeframe))[file.period]
        return to_csv(month.candles, file.series.timeframe, decimals=None)

    def months(self, series: SeriesId) -> Mapping[str, Month]:
        """Return the months of a series by their period, oldest first; errors as of `klines`."""
        with self._lock:
            if series.name not in self._months:
                table = self.tables.series[series.symbol, series.timeframe]
                candles, missing = klines(table)
                if "volume" in missing:
                    self.waits.append(f"{series}: {table.path.name} has no volume, so 0 is stored")
                if table.unclosed > 1:  # one is the candle that is being made
                    self.waits.append(
                        f"{series}: {table.path.name} ends with {table.unclosed} candles that close after now, which "
                        "are left out: its times may be shifted, they must be those at which candles open, in UTC"
                    )
                self._months[series.name] = dict(_cut(series, candles, table.path))
            return self._months[series.name]


def klines(table: Table) -> tuple[pl.DataFrame, list[str]]:
    """Return a table's candles with the columns of the store, and the names of those it lacks, which are 0.

    Raises:
        UsageError: the sentence names the file, the row and what to do.
    """
    candles, _ = table.read
    rows = table.frame.head(candles.height)  # a last candle that has not closed is left out
    names = {name.lower(): name for name in rows.columns}
    given = [n for n in KLINES if n in names and _TOTAL.get(n, n) in names]
    for name in (n for n in given if n not in candles.columns):
        candles = candles.with_columns(_amount(rows[names[name]], name, table))
    missing = [name for name in KLINES if name not in candles.columns]
    zeros = [pl.lit(0).cast(KLINES[name]).alias(name) for name in missing]
    return candles.with_columns(zeros).select(*KLINES), missing


def _amount(column: pl.Series, name: str, table: Table) -> pl.Series:
    values = column.cast(KLINES[name], strict=False).alias(name)
    wrong = values.is_null() | (values < 0) | ~values.cast(pl.Float64).is_finite()
    if wrong.any():
        row = int(wrong.arg_max() or 0)
        raise UsageError(
            f"{table.label}: {name} in row {row} is {column[row]!r}: write a number of at least 0, or leave the "
            "column out",
            code="table", field="source",
        )  # fmt: skip
    return values


def _cut(series: SeriesId, candles: pl.DataFrame, path: Path) -> Iterable[tuple[str, Month]]:
    grid = grid_of(series.timeframe)
    times = candles["open_time"].to_physical()
    begin, end = int(times[0]), grid.end(int(times[-1]))
    by_month = candles.with_columns(month=candles["open_time"].dt.strftime("%Y-%m"))
    for (name,), part in by_month.partition_by("month", as_dict=True, include_key=False).items():
        first, last = period_bounds(str(name))
        file = replace(
            source_file(series, str(name)), etag=f"{path.name}@{_digest(part)}",
            since=max(begin, first), until=min(end, last), table=str(path.absolute()),
        )  # fmt: skip
        yield file.period, Month(file, part)


def _digest(part: pl.DataFrame) -> str:
    digest = hashlib.sha256()
    for column in part:
        digest.update(column.to_physical().to_numpy().tobytes())
    return digest.hexdigest()[:16]


def refuse_other_tables(source: TableSource, scope: Scope, manifest: Manifest) -> None:
    """Compare the tables of a scope with what is stored of their series, before anything is stored.

    Raises:
        UsageError: naming both tables and what to do: one is not the table that its series came from.
    """
    for series in scope.series:
        if not manifest.parts(series) or not source.holds(series):
            continue
        if why := _contradiction(source, scope.home, series, list(manifest.parts(series))):
            known = manifest.files(series).values()
            stored = next((one.facts["table"] for one in known if "table" in one.facts), "another file")
            runs = [run for part in manifest.parts(series).values() for run in part.runs]
            raise UsageError(
                f"{series}: {source.files(series)[0].table} {why}, so it is another table than {stored}, from which "
                f"{text(runs[0][0])} to {text(runs[-1][1])} are stored: give its coin another symbol, set CPB_HOME to "
                f"another folder, or remove {scope.root} and all that was learned from it",
                code="another-table", field="source",
            )  # fmt: skip


def _contradiction(source: TableSource, home: Path, series: SeriesId, stored: list[str]) -> str:
    """Return why a table cannot go on with the stored months, empty if it does.

    Damaged months, which are stored again, speak for no table. A stored volume of 0 is one that a table did not have.
    """
    sound = [month for month in stored if not damage_of(part_path(home, series, month))]
    if not sound:
        return ""
    table = pl.concat([month.candles for month in source.months(series).values()])
    old = pl.concat([read_part(home, series, month) for month in sound])
    old = old.filter(pl.col("open_time").is_between(table["open_time"][0], table["open_time"][-1]))
    if old.is_empty():
        why = "has no candle at the time of one of these, by which it would be known as the same"
        return why if sound == stored else ""
    both = old.join(table, on=["open_time", *PRICES], suffix="_now")
    before, now = pl.col("volume"), pl.col("volume_now")
    differing = old.height - both.filter((before == now) | (before == 0) | (now == 0)).height
    return (
        f"differs in {differing:,} of the {old.height:,} candles to compare"
        if 2 * differing > old.height
        else ""
    )
