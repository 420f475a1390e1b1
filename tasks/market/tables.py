"""A user's own tables of candles, served as the months that Binance Vision would publish of them.

So they pass the same checks, and are stored, mended, reported and verified like Binance's, in a market of their own
(`own`). A month's version says which file it came from and a digest of its candles: only months that have changed are
stored again. Whether a table is the one that a stored series came from is told in `continuity.py`.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from threading import Lock

import polars as pl

from schemas.errors import UsageError
from schemas.identity import OWN, SeriesId
from schemas.klines import KLINES
from schemas.tables import Table, Tables, tables_of
from tasks.market import mirror
from tasks.market.faults import NotFound
from tasks.market.grid import grid_of
from tasks.market.layout import Remote, SourceFile, period_bounds, source_file

_TOTAL = {"taker_buy_volume": "volume", "taker_buy_quote_volume": "quote_volume"}
"""Amounts that mean nothing without the one that they are a part of."""


@dataclass(frozen=True)
class Month:
    """A month of a table: the file that it would be, and its candles with the columns of the store."""

    file: SourceFile
    candles: pl.DataFrame = field(repr=False)


@dataclass
class TableSource:
    """A file or folder of tables, seen as a mirror of Binance Vision's layout."""

    root: Path
    requests: int = 0
    waits: list[str] = field(default_factory=list)  # sentences for the report
    _lock: Lock = field(default_factory=Lock, repr=False)
    _months: dict[str, dict[str, Month]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._zip = lru_cache(maxsize=8)(self._zipped)  # asked for twice: the CHECKSUM, then the zip

    @property
    def name(self) -> str:
        """What messages call this source."""
        return str(self.root)

    @cached_property
    def tables(self) -> Tables:
        """What it holds."""
        return tables_of(str(self.root))

    def files(self, prefix: str) -> Iterable[Remote]:
        """Yield a month's file for each month in which a series has candles; there are no daily ones."""
        self.requests += 1
        _, _, kind, _, symbol, timeframe = prefix.strip("/").split("/")
        if kind != "monthly" or (symbol, timeframe) not in self.tables.series:
            return
        for key, month in self.months(SeriesId(OWN, symbol, timeframe)).items():
            file = month.file
            yield Remote(key, file.etag, since=file.since, until=file.until, table=file.table)

    def folders(self, prefix: str) -> list[str]:
        """Return its symbols."""
        return sorted(self.tables.symbols)

    def get(self, key: str, max_bytes: int = 0) -> bytes:
        """Return the zip of a month, or its CHECKSUM; raises `NotFound`."""
        self.requests += 1
        zipped = key.removesuffix(".CHECKSUM")
        symbol, timeframe = key.split("/")[4:6]
        if zipped not in self.months(SeriesId(OWN, symbol, timeframe)):
            raise NotFound(f"{key} is not there")
        payload = self._zip(zipped, symbol, timeframe)
        return payload if zipped == key else mirror.to_checksum(zipped.rsplit("/", 1)[-1], payload)

    def close(self) -> None:
        """Nothing to close."""

    def _zipped(self, key: str, symbol: str, timeframe: str) -> bytes:
        month = self.months(SeriesId(OWN, symbol, timeframe))[key]
        return mirror.to_zip(
            month.file.member, mirror.to_csv(month.candles, timeframe, decimals=None), level=1
        )

    def months(self, series: SeriesId) -> Mapping[str, Month]:
        """Return the months of a series by the key of their file, oldest first; errors as of `klines`."""
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
        file = source_file(
            series, str(name), etag=f"{path.name}@{_digest(part)}",
            since=max(begin, first), until=min(end, last), table=str(path.absolute()),
        )  # fmt: skip
        yield file.key, Month(file, part)


def _digest(part: pl.DataFrame) -> str:
    digest = hashlib.sha256()
    for column in part:
        digest.update(column.to_physical().to_numpy().tobytes())
    return digest.hexdigest()[:16]
