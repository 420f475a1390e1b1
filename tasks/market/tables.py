"""A user's own tables of candles, served as the monthly files that Binance Vision would publish.

So they pass the same checks, and are stored, repaired, reported and verified like Binance's files, in a separate market
(`own`). Of the amounts only the volume is read, the others are stored as 0. A month's version contains its file name
and a digest of its candles: only changed months are stored again.

A series of this market belongs to one table: another table of its symbol is refused, never joined to it. A table is
recognised as the same if it overlaps with the stored candles and most of the common candles are equal: so it may grow
at its ends, lose its oldest candles and correct some candles. Candles of the same coin from two exchanges are hardly
ever equal. More than a few changed candles are stored only with `rewrite`.
"""

import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock

import polars as pl

from cpbmodels.data import TABLE_SUFFIXES
from cpbmodels.data.columns import PRICES
from schemas.candles import KLINES
from schemas.errors import UsageError
from schemas.identity import OWN, SeriesId, market_home
from schemas.reading import REMEMBERED, Reading, remembered
from schemas.scope import Scope
from schemas.tables import tables_of, unread_files
from tasks.market.klines import damage_of, digest_of, part_path, read_part, split_months
from tasks.market.layout import SourceFile, grid_of, period_bounds, source_file
from tasks.market.manifest import Manifest
from tasks.market.simulator import to_csv
from tasks.storage.files import write_bytes

MAX_CHANGED = 0.01
"""Share of the stored candles in a table's time range that it may change without `rewrite`."""


@dataclass
class TableSource:
    """A file or folder of tables."""

    root: Path
    coins: str = "all"  # of the command
    timeframes: str = ""
    reading: Reading = field(default_factory=Reading)
    requests: int = 0
    notes: list[str] = field(default_factory=list)  # sentences for the report
    _lock: Lock = field(default_factory=Lock, repr=False)
    _months: dict[SeriesId, dict[SourceFile, pl.DataFrame]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.name, self.tables = (
            str(self.root),
            tables_of(str(self.root), self.coins, self.timeframes, self.reading),
        )
        if self.root.is_dir() and (names := unread_files(self.root)):
            listed = ", ".join(names[:3]) + ", …" * (len(names) > 3)
            self.notes.append(f"{self.root}: {listed} not read: tables are {', '.join(TABLE_SUFFIXES)}")

    def holds(self, series: SeriesId) -> bool:
        """Whether any of its tables contains a series."""
        return (series.symbol, series.timeframe) in self.tables.series

    def path(self, series: SeriesId) -> Path:
        """Return the file that contains a series."""
        return self.tables.series[series.symbol, series.timeframe].path

    def files(self, series: SeriesId) -> list[SourceFile]:
        """Return a file for each month in which a series has candles."""
        return list(self.months(series)) if self.holds(series) else []

    def csv(self, file: SourceFile) -> bytes:
        """Return a month's candles in Binance's CSV format, with all digits."""
        return to_csv(self.months(file.series)[file], file.series.timeframe, decimals=None)

    def months(self, series: SeriesId) -> dict[SourceFile, pl.DataFrame]:
        """Return the candles of a series by the files of their months; errors as in `SeriesTable.read`."""
        with self._lock:
            if series not in self._months:
                table, grid = self.tables.series[series.symbol, series.timeframe], grid_of(series.timeframe)
                candles, name = table.read.frame, table.path.name
                if "volume" not in candles.columns:
                    self.notes.append(f"{series}: {name} has no volume, so 0 is stored")
                self.notes += [f"{series}: {name} {note}" for note in table.read.notes]
                # 0 for amounts that no table has: a null would break the contract of candles
                missing = {column: kind for column, kind in KLINES.items() if column not in candles.columns}
                candles = candles.with_columns(pl.lit(0, kind).alias(n) for n, kind in missing.items())
                times = candles["open_time"].to_physical()
                begin, end = int(times[0]), grid.end(int(times[-1]))
                self._months[series] = {}
                for month, part in split_months(candles.select(*KLINES)):
                    first, last = period_bounds(month)
                    file = replace(
                        source_file(series, month),
                        # the version of a month changes with its candles, or if another file names them
                        etag=f"{name}@{digest_of(part)[:16]}",
                        since=max(begin, first),
                        until=min(end, last),
                    )
                    self._months[series][file] = part
            return self._months[series]


def remember(source: TableSource, home: Path) -> None:
    """Keep how the source is read, so that later runs without the options read it alike."""
    known, name = remembered(home), os.path.abspath(source.root)  # noqa: PTH100
    # nothing to remember, or known: the file is not written for each run
    if known.get(name, Reading()) == source.reading:
        return
    known |= {name: source.reading}
    sources = {path: reading._asdict() for path, reading in sorted(known.items()) if any(reading)}
    write_bytes(
        market_home(home, OWN) / REMEMBERED, json.dumps(sources, indent=1, ensure_ascii=False).encode()
    )


def refuse_other_tables(source: TableSource, scope: Scope, manifest: Manifest) -> None:
    """Compare the tables of the scope's series with their stored candles, before anything is stored.

    Damaged months, which are stored again, are not compared. A table that differs in most candles is another one, which
    `rewrite` may still store if it replaces every stored candle: two tables never become one series.

    Raises:
        UsageError: a table is not the source of its stored series, or has another history and `rewrite` was not given;
            the message names the table and the remedy.
    """
    for series in filter(source.holds, scope.series):
        months = list(manifest.parts(series))
        # a damaged month is fetched anew whatever the table says
        sound = [month for month in months if not damage_of(part_path(scope.home, series, month))]
        if not sound:
            continue
        table = pl.concat(source.months(series).values())
        every = pl.concat([read_part(scope.home, series, month) for month in sound])
        # only where both have candles: a table may grow, and lose its oldest
        stored = every.filter(pl.col("open_time").is_between(table["open_time"][0], table["open_time"][-1]))
        # by time and prices; volumes are revised more often, and tell less
        differing = stored.join(table, on=["open_time", *PRICES], how="anti").height
        replaces_all = stored.height == every.height and sound == months
        if differing <= MAX_CHANGED * stored.height and not (stored.is_empty() and sound == months):
            continue
        # rewriting replaces all of the series, or corrects the smaller half of what both have
        if scope.rewrite and (replaces_all or 0 < 2 * differing <= stored.height):
            continue
        path = source.path(series).absolute()
        if 0 < 2 * differing <= stored.height:
            raise UsageError(
                f"{series}: {path} has changed {differing:,} of the {stored.height:,} stored candles in its time "
                f"range, more than {MAX_CHANGED:.0%}: check where it came from; with --rewrite its candles replace "
                "them, and what was learned from the old ones stays until it is trained again",
                code="rewritten",
                field="source",
            )
        why = f"differs in {differing:,} of the {stored.height:,}" if differing else "has none of the"
        rewriting = "add --rewrite if it is the same table with another history, " if replaces_all else ""
        raise UsageError(
            f"{series}: {path} {why} stored candles, so it is another table: {rewriting}give its coin another symbol, "
            f"set CPB_HOME to another folder, or remove {market_home(scope.home, OWN)} and all that was "
            "learned from it",
            code="another-table",
            field="source",
        )
