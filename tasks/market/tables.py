"""A user's own tables of candles, served as the monthly files that Binance Vision would publish.

So they pass the same checks, and are stored, repaired, reported and verified like Binance's files, in a separate market
(`own`). A month's version contains its file name and a digest of its candles: only changed months are stored again.

A series of this market belongs to one table: another table of its symbol is refused, never joined to it. A table is
recognised as the same if it overlaps with the stored candles and most of the common candles are equal: so it may grow
at its ends, lose its oldest candles and correct some candles. Candles of the same coin from two exchanges are hardly
ever equal.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock

import polars as pl

from cpbmodels.data.columns import PRICES
from schemas.errors import UsageError
from schemas.frames import KLINES
from schemas.identity import OWN, SeriesId
from schemas.scope import Scope
from schemas.tables import Table, tables_of
from tasks.market.klines import damage_of, digest_of, part_path, read_part, split_months
from tasks.market.layout import SourceFile, grid_of, period_bounds, source_file, text
from tasks.market.manifest import Manifest
from tasks.market.simulator import to_csv

_TOTAL = {"taker_buy_volume": "volume", "taker_buy_quote_volume": "quote_volume"}
"""Amounts that are meaningless without their total."""


@dataclass(frozen=True)
class Month:
    """A month of a table: the corresponding source file, and its candles with the columns of the store."""

    file: SourceFile
    candles: pl.DataFrame = field(repr=False)


@dataclass
class TableSource:
    """A file or folder of tables."""

    root: Path
    coins: str = "all"  # of the command
    requests: int = 0
    notes: list[str] = field(default_factory=list)  # sentences for the report
    _lock: Lock = field(default_factory=Lock, repr=False)
    _months: dict[str, dict[str, Month]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.name, self.tables = str(self.root), tables_of(str(self.root), self.coins)

    def holds(self, series: SeriesId) -> bool:
        """Whether any of its tables contains a series."""
        return (series.symbol, series.timeframe) in self.tables.series

    def files(self, series: SeriesId) -> list[SourceFile]:
        """Return a file for each month in which a series has candles."""
        return [month.file for month in self.months(series).values()] if self.holds(series) else []

    def csv(self, file: SourceFile) -> bytes:
        """Return a month's candles in Binance's CSV format, with all digits."""
        month = self.months(SeriesId(OWN, file.series.symbol, file.series.timeframe))[file.period]
        return to_csv(month.candles, file.series.timeframe, decimals=None)

    def months(self, series: SeriesId) -> Mapping[str, Month]:
        """Return the months of a series by their period, oldest first; errors as in `klines`."""
        with self._lock:
            if series.name not in self._months:
                table = self.tables.series[series.symbol, series.timeframe]
                candles, missing = klines(table)
                if "volume" in missing:
                    self.notes.append(f"{series}: {table.path.name} has no volume, so 0 is stored")
                self.notes += [f"{series}: {table.path.name} {note}" for note in table.read.notes]
                self._months[series.name] = dict(_cut(series, candles, table.path))
            return self._months[series.name]


def klines(table: Table) -> tuple[pl.DataFrame, list[str]]:
    """Return a table's candles with the columns of the store, and the names of missing columns, which are set to 0.

    Raises:
        UsageError: a value is invalid; the message names the file, the row and the remedy.
    """
    candles, rows = table.read.frame, table.read.rows
    given = [n for n in KLINES if n in rows.columns and _TOTAL.get(n, n) in rows.columns]
    for name in (n for n in given if n not in candles.columns):
        candles = candles.with_columns(_amount(rows[name], name, table))
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
    for name, part in split_months(candles):
        first, last = period_bounds(name)
        file = replace(
            source_file(series, name), etag=f"{path.name}@{digest_of(part)[:16]}",
            since=max(begin, first), until=min(end, last), table=str(path.absolute()),
        )  # fmt: skip
        yield file.period, Month(file, part)


def refuse_other_tables(source: TableSource, scope: Scope, manifest: Manifest) -> None:
    """Compare the tables of a scope with the stored candles of their series, before anything is stored.

    Raises:
        UsageError: a table is not the source of its stored series; the message names both tables and the remedy.
    """
    for series in scope.series:
        if not manifest.parts(series) or not source.holds(series):
            continue
        if why := _contradiction(source, scope.home, series, list(manifest.parts(series))):
            records = manifest.files(series).values()
            stored = next((r.facts["table"] for r in records if "table" in r.facts), "another file")
            runs = [run for part in manifest.parts(series).values() for run in part.runs]
            raise UsageError(
                f"{series}: {source.files(series)[0].table} {why}, so it is not the table {stored}, from which "
                f"{text(runs[0][0])} to {text(runs[-1][1])} are stored: give its coin another symbol, set CPB_HOME to "
                f"another folder, or remove {scope.root} and all that was learned from it",
                code="another-table", field="source",
            )  # fmt: skip


def _contradiction(source: TableSource, home: Path, series: SeriesId, stored: list[str]) -> str:
    """Return why a table cannot continue the stored months, empty if it can.

    Damaged months, which are stored again, are not compared. A stored volume of 0 may be a missing volume.
    """
    sound = [month for month in stored if not damage_of(part_path(home, series, month))]
    if not sound:
        return ""
    table = pl.concat([month.candles for month in source.months(series).values()])
    old = pl.concat([read_part(home, series, month) for month in sound])
    old = old.filter(pl.col("open_time").is_between(table["open_time"][0], table["open_time"][-1]))
    if old.is_empty():
        why = "has no candle at the time of one of these, which would show that it is the same"
        return why if sound == stored else ""
    both = old.join(table, on=["open_time", *PRICES], suffix="_now")
    before, now = pl.col("volume"), pl.col("volume_now")
    differing = old.height - both.filter((before == now) | (before == 0) | (now == 0)).height
    return (
        f"differs in {differing:,} of the {old.height:,} candles to compare"
        if 2 * differing > old.height
        else ""
    )
