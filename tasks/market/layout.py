"""Names and periods: how Binance Vision files are called and which time each one covers.

`data/spot/monthly/klines/BTCUSDT/1h/BTCUSDT-1h-2024-01.zip` is the month of January 2024, in UTC.
All times in this package are integers: microseconds since 1970, UTC.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache

import numpy as np

from schemas.universe import INTERVAL_SECONDS, MARKETS
from tasks.market.grid import DAY, US, Grid, grid_of

_SYMBOL = r"\w+"  # Binance also lists coins that are not called in Latin letters
_NAME = re.compile(
    rf"(?P<symbol>{_SYMBOL})-(?P<interval>[0-9]+\w+)-(?P<period>[0-9]{{4}}-[0-9]{{2}}(-[0-9]{{2}})?)\.zip"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_us(moment: datetime) -> int:
    """Return microseconds since 1970 of an aware datetime."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def to_datetime(us: int) -> datetime:
    """Return the aware UTC datetime of microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=us)


def text(us: int) -> str:
    """Return `2024-01-31T12:00:00Z` for people and JSON."""
    return to_datetime(us).isoformat().replace("+00:00", "Z")


def step_us(interval: str) -> int:
    """Return the length of a candle in microseconds; months have none."""
    return INTERVAL_SECONDS[interval] * US


@lru_cache(maxsize=1 << 14)
def period_bounds(period: str) -> tuple[int, int]:
    """Return `[start, end)` of `2024-01` or `2024-01-31`."""
    if len(period) == 10:
        start = to_us(datetime.strptime(period, "%Y-%m-%d").replace(tzinfo=UTC))
        return start, start + DAY
    first = datetime.strptime(period, "%Y-%m").replace(tzinfo=UTC)
    return to_us(first), to_us((first + timedelta(days=32)).replace(day=1))


def opening_days(grid: Grid, start: int, end: int) -> list[str]:
    """Return the days on which a candle opens in `[start, end)`, `start` being an open."""
    return [day_of(int(t)) for t in np.unique(grid.opens(start, end) // DAY * DAY)]


def month_of(us: int) -> str:
    """Return the month `2024-01` that holds an instant."""
    return to_datetime(us).strftime("%Y-%m")


def day_of(us: int) -> str:
    """Return the day `2024-01-31` that holds an instant."""
    return to_datetime(us).strftime("%Y-%m-%d")


def months(start: int, end: int) -> list[str]:
    """Return the months that overlap `[start, end)`."""
    found = []
    while start < end:
        found.append(month_of(start))
        start = period_bounds(found[-1])[1]
    return found


def days(start: int, end: int) -> list[str]:
    """Return the days that overlap `[start, end)`."""
    return [day_of(t) for t in range(start - start % DAY, end, DAY)]


@dataclass(frozen=True, order=True)
class SeriesKey:
    """One series of the store: a market's symbol at an interval."""

    market: str
    symbol: str
    interval: str

    def __str__(self) -> str:
        """Return the name used in messages."""
        prefix = "" if self.market == "spot" else f"{self.market} "
        return f"{prefix}{self.symbol} {self.interval}"

    @property
    def grid(self) -> Grid:
        """When the candles open and end."""
        return grid_of(self.interval)

    def prefix(self, kind: str) -> str:
        """Return the listing prefix of the `monthly` or `daily` files."""
        return f"data/{MARKETS[self.market]}/{kind}/klines/{self.symbol}/{self.interval}/"

    def file(self, period: str, **facts: object) -> "SourceFile":
        """Return the file of a month or a day of this series."""
        kind = "daily" if len(period) == 10 else "monthly"
        key = f"{self.prefix(kind)}{self.symbol}-{self.interval}-{period}.zip"
        return SourceFile(self, kind, period, key, **facts)  # type: ignore[arg-type]


@dataclass(frozen=True, order=True)
class SourceFile:
    """One published zip: what it is called, what it covers and what the listing says of it."""

    series: SeriesKey
    kind: str
    period: str
    key: str
    etag: str = ""
    size: int = -1
    modified: str = ""

    def __str__(self) -> str:
        """Return the name used in messages: `BTCUSDT 1h 2024-01`."""
        return f"{self.series} {self.period}"

    @property
    def bounds(self) -> tuple[int, int]:
        """The time the file covers, `[start, end)`."""
        return period_bounds(self.period)

    @property
    def version(self) -> str:
        """What changes when the file is published again."""
        return f"{self.etag or self.modified}/{self.size}"

    @property
    def member(self) -> str:
        """The name of the only member the zip may hold."""
        return self.key.rsplit("/", 1)[-1].removesuffix(".zip") + ".csv"

    @property
    def rows(self) -> int:
        """Candles in the file when none is missing."""
        start, end = self.bounds
        return max(1, self.series.grid.count(start, end))


def is_symbol(name: str) -> bool:
    """Tell whether a name from a listing can be a symbol, and hence a folder of the store."""
    return re.fullmatch(_SYMBOL, name) is not None


def file_of(series: SeriesKey, key: str, etag: str, size: int, modified: str) -> SourceFile | None:
    """Return the file behind a listed key, or None for CHECKSUMs and anything that is not of the series."""
    match = _NAME.fullmatch(key.rsplit("/", 1)[-1])
    if not match or (match["symbol"], match["interval"]) != (series.symbol, series.interval):
        return None
    found = series.file(match["period"], etag=etag, size=size, modified=modified)
    try:
        found.bounds  # noqa: B018
    except (ValueError, OverflowError):  # there is no such month or day
        return None
    return found if found.key == key else None
