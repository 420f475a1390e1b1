"""The built-in market simulator: Binance Vision's layout over loopback HTTP, filled with synthetic candles.

`--source sim` needs no network and no data. The default is eight months up to 2025-06-01; `--since` and `--as-of` move
the ends. A file is generated when it is requested.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache

from schemas.identity import SeriesId
from schemas.universe import COINS, INTERVAL_SECONDS, MONTH, symbol_of
from tasks.market import mirror
from tasks.market.grid import DAY, US, grid_of
from tasks.market.layout import (
    Remote,
    day_of,
    days,
    listed_file,
    month_of,
    months,
    period_bounds,
    source_file,
    to_us,
)
from tasks.market.synthetic import MINUTE, SMALL_PAIRS, candles

UNTIL = datetime(2025, 6, 1, tzinfo=UTC)
"""End of the simulated market unless a run requests another time."""

MONTHS = 8

SYMBOLS = (*(symbol_of(coin) for coin in COINS), *SMALL_PAIRS, "BTCUPUSDT", "BTCDOWNUSDT", "USDCUSDT")
"""The default universe, smaller pairs as on an exchange, and pairs that `--coins exchange` leaves out."""

_VERSION = "sim1"


@contextmanager
def serve(until: datetime | None = None, since: datetime | None = None) -> Iterator[str]:
    """Run the simulator on a free loopback port and yield its base URL.

    Complete months before `until` are published as monthly files, complete days of its last month as daily files.
    Symbols are those of `SYMBOLS`, intervals from a minute to a day, and months.
    """
    with mirror.serve(SimulatedMirror(until or UNTIL, since)) as url:
        yield url


class SimulatedMirror:
    """Files that are generated when read."""

    def __init__(self, until: datetime, since: datetime | None = None) -> None:
        self.end = period_bounds(day_of(to_us(until)))[0]
        self.start = to_us(since) if since else period_bounds(months(0, self.end)[-MONTHS])[0]
        self.symbols = set(SYMBOLS)
        self.intervals = {iv for iv, s in INTERVAL_SECONDS.items() if MINUTE <= s * US <= DAY} | {MONTH}

    def keys(self, prefix: str) -> list[tuple[str, str, int]]:
        """Return the files of a series, or the folders' first files if no series is named."""
        parts = prefix.strip("/").split("/")
        if parts[:2] != ["data", "spot"] or len(parts) < 4 or parts[3] != "klines":
            return []
        symbols = [parts[4]] if len(parts) > 4 else sorted(self.symbols)
        intervals = [parts[5]] if len(parts) > 5 else sorted(self.intervals)
        named = len(parts) > 5
        found = [
            key
            for s in symbols
            for i in intervals
            for key in self._series_keys(s, i, parts[2])[: None if named else 1]
        ]
        return [(key, f"{_VERSION}-{key.rsplit('/', 1)[-1]}", -1) for key in found if key.startswith(prefix)]

    def _series_keys(self, symbol: str, interval: str, kind: str) -> list[str]:
        if (
            symbol not in self.symbols
            or interval not in self.intervals
            or (kind, interval) == ("daily", MONTH)
        ):
            return []
        series = SeriesId("sim", symbol, interval)
        month = period_bounds(month_of(self.end))[0]
        periods = months(self.start, month) if kind == "monthly" else days(max(month, self.start), self.end)
        keys = [source_file(series, period).key for period in periods]
        return [name for key in keys for name in (key, f"{key}.CHECKSUM")]

    def read(self, key: str) -> bytes | None:
        """Return a zip or its CHECKSUM."""
        zipped = key.removesuffix(".CHECKSUM")
        parts = key.split("/")
        if len(parts) != 7 or zipped not in self._series_keys(parts[4], parts[5], parts[2]):
            return None
        payload = _zip(zipped)
        return payload if zipped == key else mirror.to_checksum(zipped.rsplit("/", 1)[-1], payload)


@lru_cache(maxsize=32)
def _zip(key: str) -> bytes:
    symbol, interval = key.split("/")[4:6]
    file = listed_file(SeriesId("sim", symbol, interval), Remote(key))
    assert file is not None
    start, end = file.bounds
    frame = candles(symbol, grid_of(interval).end(start) - start, start, end)
    return mirror.to_zip(file.member, mirror.to_csv(frame, interval), level=1)
