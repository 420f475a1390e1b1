"""Times of candles, and names and periods of Binance Vision's files.

`data/spot/monthly/klines/BTCUSDT/1h/BTCUSDT-1h-2024-01.zip` is the month of January 2024, in UTC.
All times in this package are integers: microseconds since 1970, UTC.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from typing import TypeVar

import numpy as np

from cpbmodels.data import INTERVAL_SECONDS
from cpbmodels.data.series import instant
from schemas.coins import MONTH
from schemas.file_names import BINANCE_NAME
from schemas.identity import MARKET_FOLDERS, SeriesId

US = 1_000_000
DAY = 86_400 * US

CHECKSUM = ".CHECKSUM"
"""Suffix of the file with a zip's sha256."""

Times = TypeVar("Times", int, np.ndarray)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Grid:
    """The open times of an interval: every `step` from `phase` on; with step 0, the first day of each month, 00:00 UTC.

    `anchor` is the open time of any candle; default the interval's `phase`; months need none.
    """

    step: int
    phase: int = 0

    def end(self, opened: Times) -> Times:
        """Return the end of the candle that opens at a time: the open time of the next candle."""
        return opened + self.step if self.step else _month(opened, 1)

    def latest(self, until: Times) -> Times:
        """Return the open time of the last candle that ends by a time, assuming the time is on the grid."""
        return until - self.step if self.step else _month(until, -1)

    def floor(self, time: Times, anchor: int | None = None) -> Times:
        """Return the open time of the candle that contains a time."""
        if not self.step:
            return _month(time, 0)
        anchor = self.phase if anchor is None else anchor
        return (time - anchor) // self.step * self.step + anchor

    def opens(self, start: int, end: int) -> np.ndarray:
        """Return the open times in `[start, end)`; `start` must be an open time."""
        if self.step:
            return np.arange(start, end, self.step)
        # the month after that of the moment before t is the first that opens at t or later
        first, last = np.array([_month(t - 1, 1) for t in (start, end)]).view("M8[us]").astype("M8[M]")
        return np.arange(first, last).astype("M8[us]").view(np.int64)

    def count(self, start: int, end: int) -> int:
        """Return the number of candles between two times on the grid."""
        return (end - start) // self.step if self.step else len(self.opens(start, end))


def _month(time: Times, later: int) -> Times:
    # numpy counts calendar months in M8[M], whatever their length
    months = np.asarray(time, dtype=np.int64).view("M8[us]").astype("M8[M]") + later
    starts = months.astype("M8[us]").view(np.int64)
    return starts if isinstance(time, np.ndarray) else int(starts)


@cache
def grid_of(interval: str) -> Grid:
    """Return the grid of an interval. Weeks open on Mondays (1970-01-01 was a Thursday)."""
    return Grid(
        0 if interval == MONTH else INTERVAL_SECONDS[interval] * US, 4 * DAY if interval == "1w" else 0
    )


def whole_candles(grid: Grid, start: int, end: int, anchor: int) -> tuple[int, int]:
    """Round a time range inwards to whole candles of the grid through `anchor`."""
    first = grid.floor(start, anchor)
    first = first if first == start else grid.end(first)
    return first, max(first, grid.floor(end, anchor))


def to_us(moment: datetime) -> int:
    """Return microseconds since 1970 of an aware datetime."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def utc_text(us: int) -> str:
    """Return `2024-01-31T12:00:00Z` for display and JSON."""
    return instant(us).isoformat().replace("+00:00", "Z")


# asked for each file of a listing; there is room for 44 years of days
@lru_cache(maxsize=1 << 14)
def period_bounds(period: str) -> tuple[int, int]:
    """Return `[start, end)` of `2024-01` or `2024-01-31`."""
    if len(period) == 10:
        start = to_us(datetime.strptime(period, "%Y-%m-%d").replace(tzinfo=UTC))
        return start, start + DAY
    first = datetime.strptime(period, "%Y-%m").replace(tzinfo=UTC)
    # 32 days after the first of a month lies in the next, whatever the month's length
    return to_us(first), to_us((first + timedelta(days=32)).replace(day=1))


MICROSECONDS_SINCE = period_bounds("2025-01-01")[0]
"""From this time on spot files are in microseconds; futures files are still in milliseconds."""


def opening_days(grid: Grid, start: int, end: int) -> list[str]:
    """Return the days on which a candle opens in `[start, end)`; `start` must be an open time."""
    return [day_of(int(t)) for t in np.unique(grid.opens(start, end) // DAY * DAY)]


def month_of(us: int) -> str:
    """Return the month of a time, as `2024-01`."""
    return instant(us).strftime("%Y-%m")


def day_of(us: int) -> str:
    """Return the day of a time, as `2024-01-31`."""
    return instant(us).strftime("%Y-%m-%d")


def months(start: int, end: int) -> list[str]:
    """Return the months that overlap `[start, end)`."""
    names = []
    while start < end:
        names.append(month_of(start))
        start = period_bounds(names[-1])[1]
    return names


def days(start: int, end: int) -> list[str]:
    """Return the days that overlap `[start, end)`."""
    return [day_of(t) for t in range(start - start % DAY, end, DAY)]


def listing_prefix(series: SeriesId, kind: str) -> str:
    """Return the prefix under which the bucket lists a series' `monthly` or `daily` files."""
    return f"data/{MARKET_FOLDERS[series.market]}/{kind}/klines/{series.symbol}/{series.timeframe}/"


@dataclass(frozen=True, order=True)
class SourceFile:
    """A published zip: its name, the period it covers and its metadata in the listing."""

    series: SeriesId
    kind: str
    period: str
    key: str
    etag: str = ""
    size: int = -1  # bytes; -1: not known
    since: int = -1  # start of its candles, for a file cut from a table; -1: start of its period
    until: int = -1  # end of its candles, for a file that may grow; -1: end of its period

    def __str__(self) -> str:
        """Return the name used in messages: `BTCUSDT 1h 2024-01`."""
        return f"{self.series} {self.period}"

    @property
    def bounds(self) -> tuple[int, int]:
        """The time the file covers, `[start, end)`."""
        return period_bounds(self.period)

    @property
    def covered(self) -> tuple[int, int]:
        """The time range in which the file should be complete and replaces stored candles: `[start, end)`."""
        start, end = self.bounds
        return start if self.since < 0 else self.since, end if self.until < 0 else self.until

    @property
    def version(self) -> str:
        """A text that changes when the file is republished."""
        return f"{self.etag}/{self.size}"

    @property
    def member(self) -> str:
        """The name of the only member that the zip may contain."""
        return self.key.rsplit("/", 1)[-1].removesuffix(".zip") + ".csv"

    @property
    def rows(self) -> int:
        """The number of candles in a complete file."""
        start, end = self.bounds
        return max(1, grid_of(self.series.timeframe).count(start, end))


def source_file(series: SeriesId, period: str) -> SourceFile:
    """Return the file of a month or a day of a series, with its name only."""
    kind = "daily" if len(period) == 10 else "monthly"
    key = f"{listing_prefix(series, kind)}{series.symbol}-{series.timeframe}-{period}.zip"
    return SourceFile(series, kind, period, key)


@dataclass(frozen=True)
class Remote:
    """A source's metadata of a file."""

    key: str
    etag: str = ""  # or its time of modification, from a server without ETags
    size: int = -1


def listed_file(series: SeriesId, remote: Remote) -> SourceFile | None:
    """Return the file of a listed key, or None for CHECKSUMs and files of other series."""
    match = BINANCE_NAME.fullmatch(remote.key.rsplit("/", 1)[-1])
    if not match or (match["symbol"], match["interval"]) != (series.symbol, series.timeframe):
        return None
    file = source_file(series, match["period"])
    try:
        file.bounds  # noqa: B018
    except (ValueError, OverflowError):  # no such month or day
        return None
    # the same name in another folder is another file, as a copy in a mirror
    return replace(file, **vars(remote)) if file.key == remote.key else None
