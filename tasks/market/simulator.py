"""The built-in market simulator: Binance Vision's layout over loopback HTTP, filled with synthetic candles.

`--source sim` needs no network and no data. The default is eight months up to 2025-06-01; `--since` and `--as-of` move
the ends. A file is generated when it is requested. Tests and benchmarks serve other files, and faults, the same way.

A month of a symbol depends only on its name and date, so any range can be generated separately and a longer range
contains the shorter. Volatility clusters (GARCH around a slow daily component), follows the hour of the week, and has
Student-t shocks; a market factor correlates the coins; there is no drift to discover.
"""

import hashlib
import io
import math
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import numpy as np
import polars as pl

from cpbmodels.data import INTERVAL_SECONDS
from schemas.candles import KLINES
from schemas.coins import COINS, MONTH, symbol_of
from schemas.identity import SeriesId
from tasks.market.layout import (
    CHECKSUM,
    DAY,
    MICROSECONDS_SINCE,
    US,
    Remote,
    day_of,
    days,
    grid_of,
    listed_file,
    listing_prefix,
    month_of,
    months,
    period_bounds,
    source_file,
    to_us,
)

# polars imports numpy at its first use, which fails in two threads simultaneously
pl.DataFrame({"any": np.empty(0)})

STEP = 900 * US
"""15-minute candles are generated; longer candles are aggregated from them."""

_ORIGIN = period_bounds("2017-01")[0]
_PRICES = {
    "BTC": 60_000,
    "ETH": 3_000,
    "BNB": 500,
    "SOL": 120,
    "LTC": 80,
    "PEPE": 1e-5,
    "SHIB": 2e-5,
    "DOGE": 0.12,
}
_SUMS = ("volume", "quote_volume", "count", "taker_buy_volume", "taker_buy_quote_volume")
_SIGMA_15M = 0.0028  # of the calmest coin, at a typical time
_TURNOVER = 3e6  # typical quote volume of a 15-minute candle, in USDT
_SHAPE = 4.0  # Student-t degrees of freedom

SYMBOLS = (*(symbol_of(coin) for coin in COINS), "BTCUPUSDT", "BTCDOWNUSDT", "USDCUSDT")
"""The default universe, and pairs that `--coins exchange` leaves out."""

_INTERVALS = (*(name for name, seconds in INTERVAL_SECONDS.items() if STEP <= seconds * US <= DAY), MONTH)
SERIES = [SeriesId("sim", symbol, interval) for symbol in sorted(SYMBOLS) for interval in sorted(_INTERVALS)]
"""Every series of the simulator, in the order of a listing."""

UNTIL = datetime(2025, 6, 1, tzinfo=UTC)
"""End of the simulated market unless a run requests another time."""

MONTHS = 8
PAGE = 1000  # keys on one page of S3's listing


def _rng(*name: object) -> np.random.Generator:
    # seeded by names, not by a counter: a month is the same whatever was generated before it
    digest = hashlib.sha256("/".join(map(str, ("cpb-sim-1", *name))).encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "big")))


@lru_cache(maxsize=64)
def _slow_volatility(name: str) -> np.ndarray:
    """Return the log of the volatility level for each day since 2017: an AR(1) around zero."""
    # 8,000 days from 2017 on: until 2038
    shocks = _rng("slow", name).standard_normal(8000) * 0.08
    level, path = 0.0, np.empty(len(shocks))
    for day, shock in enumerate(shocks):
        # half-life of 23 days; the stationary deviation is .08 / √(1 - .97²) = .33
        level = 0.97 * level + shock
        path[day] = level
    return path


def _season(times: np.ndarray) -> np.ndarray:
    """Return the volatility factor of the hour of the week: busy New York afternoons, quiet weekends."""
    hour = (times // (3600 * US)) % 24
    weekend = ((times // DAY) + 3) % 7 >= 5  # 1970-01-01 was a Thursday; Monday is 0
    day = 1 + 0.35 * np.exp(-(((hour - 14.5) / 3.5) ** 2)) - 0.2 * np.exp(-(((hour - 5) / 3) ** 2))
    return np.asarray(day * np.where(weekend, 0.75, 1.0))


def _shocks(name: str, month: str, size: int) -> np.ndarray:
    """Return clustered, heavy-tailed returns of unit size: a GARCH(1,1) with Student-t innovations."""
    # a Student-t of 4 degrees has variance 2: scaled to 1
    innovations = _rng("shock", name, month).standard_t(_SHAPE, size) * math.sqrt((_SHAPE - 2) / _SHAPE)
    variance, returns = 1.0, np.empty(size)
    for i, z in enumerate(np.clip(innovations, -7, 7).tolist()):
        r = math.sqrt(variance) * z
        returns[i] = r
        # GARCH(1,1), .04 + .07 + .89 = 1: mean variance 1; the cap keeps one shock from ruling a month
        variance = min(25.0, 0.04 + 0.07 * r * r + 0.89 * variance)
    return returns


@lru_cache(maxsize=64)
def _factor(month: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the month's candle times, the market's unit returns and the expected volatility."""
    start, end = period_bounds(month)
    times = np.arange(start, end, STEP)
    at = (times - _ORIGIN) / DAY
    slow = np.interp(at, np.arange(8000), _slow_volatility("market"))
    return times, _shocks("market", month, len(times)), np.exp(slow) * _season(times)


@lru_cache(maxsize=256)
def _monthly_levels(symbol: str) -> np.ndarray:
    """Return the log price at the start of each month since 2017: the anchor of every month's path."""
    market = _rng("levels", "market").standard_normal(400) * 0.14
    coin = _rng("levels", symbol).standard_normal(400) * 0.10
    path = np.concatenate([[0.0], np.cumsum(0.9 * market + coin)])
    price = _PRICES.get(symbol.removesuffix("USDT")) or 10 ** _rng("price", symbol).uniform(-0.5, 1.5)
    return np.asarray(path - path[_month_index("2025-01")] + math.log(price))


def _month_index(month: str) -> int:
    year, number = month.split("-")
    return (int(year) - 2017) * 12 + int(number) - 1


@lru_cache(maxsize=64)
def quarter_hours(symbol: str, month: str) -> pl.DataFrame:
    """Return a month of 15-minute candles with the columns of `KLINES`."""
    times, market, level = _factor(month)
    size, noise = len(times), _rng("candle", symbol, month)
    sigma = _SIGMA_15M * (1 + 0.6 * _rng("size", symbol).random()) * level
    returns = sigma * (0.7 * market + 0.7 * _shocks(symbol, month, size))
    anchors = _monthly_levels(symbol)[_month_index(month) :][:2]
    # a bridge from this month's anchor to the next one's, so that months fit without knowing each other
    path = anchors[0] + np.cumsum(returns + (anchors[1] - anchors[0] - returns.sum()) / size)
    close = np.exp(path)
    # no gap between candles: an open is the close before it
    open_ = np.concatenate([[np.exp(anchors[0])], close[:-1]])
    reach = np.abs(returns) * 0.25 + sigma * 0.35
    high = np.maximum(open_, close) * np.exp(reach * noise.exponential(1, size))
    low = np.minimum(open_, close) * np.exp(-reach * noise.exponential(1, size))
    # five significant digits, and never finer than the 8 decimals of the files
    tick = 10.0 ** max(-8, math.floor(math.log10(open_[0])) - 4)
    open_, high, low, close = (np.maximum(np.round(x / tick), 1) * tick for x in (open_, high, low, close))
    activity = np.exp(0.6 * noise.standard_normal(size)) * (0.5 + np.abs(returns) / sigma) * level**1.5
    # one price for all of a coin's history: its volume does not shrink as its price grows
    typical_price = float(np.exp(_monthly_levels(symbol)[_month_index("2025-01")]))
    volume = np.round(_TURNOVER / typical_price * activity, 5)
    share = np.clip(0.5 + 0.08 * noise.standard_normal(size), 0.05, 0.95)
    count = np.maximum(1, np.round(activity * 4000)).astype(np.int64)
    quote = volume * (high + low + close) / 3
    columns = (times, open_, high, low, close, volume, quote, count, volume * share, quote * share)
    frame = pl.DataFrame(dict(zip(KLINES, columns, strict=True)))
    return frame.with_columns(pl.col("open_time").cast(KLINES["open_time"]), pl.col(pl.Float64).round(8))


def candles(symbol: str, interval_us: int, start: int, end: int) -> pl.DataFrame:
    """Return the candles that open in `[start, end)`; `start` must be an open time.

    `interval_us` must be a multiple of `STEP`.
    """
    time = pl.col("open_time").to_physical()
    frame = quarter_hours(symbol, month_of(start)).filter(time.is_between(start, end, closed="left"))
    if interval_us == STEP:
        return frame
    return (
        frame.group_by(
            ((time - start) // interval_us * interval_us + start).cast(KLINES["open_time"]).alias("open_time")
        )
        .agg(
            pl.col("open").first(),
            pl.col("high").max(),
            pl.col("low").min(),
            pl.col("close").last(),
            pl.col(_SUMS).sum(),
        )
        .with_columns(pl.col(pl.Float64).round(8))
        .sort("open_time")
        .select(list(KLINES))
    )


class SimulatedMirror:
    """Files that are generated when read.

    Complete months before `until` are published as monthly files, complete days of its last month as daily files.
    Symbols are those of `SYMBOLS`; intervals are from 15 minutes to a day, and months.
    """

    def __init__(self, until: datetime | None = None, since: datetime | None = None) -> None:
        self.end = period_bounds(day_of(to_us(until or UNTIL)))[0]
        self.start = to_us(since) if since else period_bounds(months(0, self.end)[-MONTHS])[0]

    def keys(self, prefix: str) -> list[tuple[str, str, int]]:
        """Return key, ETag and size (-1: not listed) of every file whose key begins with a prefix."""
        return [
            (key, f"sim1-{key.rsplit('/', 1)[-1]}", -1)
            for kind in ("daily", "monthly")
            for series in SERIES
            if (folder := listing_prefix(series, kind)).startswith(prefix) or prefix.startswith(folder)
            for key in self._keys(series, kind)
            if key.startswith(prefix)
        ]

    def _keys(self, series: SeriesId, kind: str) -> list[str]:
        if (kind, series.timeframe) == ("daily", MONTH):
            return []
        month = period_bounds(month_of(self.end))[0]
        periods = months(self.start, month) if kind == "monthly" else days(max(month, self.start), self.end)
        keys = [source_file(series, period).key for period in periods]
        return [name for key in keys for name in (key, f"{key}{CHECKSUM}")]

    def read(self, key: str) -> bytes | None:
        """Return a zip or its CHECKSUM, None if there is no such file."""
        if key not in (listed for listed, *_ in self.keys(key)):
            return None
        zipped = key.removesuffix(CHECKSUM)
        payload = _zip(zipped)
        return payload if zipped == key else to_checksum(zipped.rsplit("/", 1)[-1], payload)


@lru_cache(maxsize=32)
def _zip(key: str) -> bytes:
    symbol, interval = key.split("/")[4:6]
    file = listed_file(SeriesId("sim", symbol, interval), Remote(key))
    assert file is not None
    start, end = file.bounds
    frame = candles(symbol, grid_of(interval).end(start) - start, start, end)
    return to_zip(file.member, to_csv(frame, interval), level=1)


def to_csv(frame: pl.DataFrame, interval: str, decimals: int | None = 8) -> bytes:
    """Return candles in Binance's CSV format: 8 decimals (None: all), no header, microseconds from 2025 on."""
    time = pl.col("open_time").to_physical()
    ends = pl.lit(pl.Series(grid_of(interval).end(frame["open_time"].to_physical().to_numpy())))
    unit = pl.when(time >= MICROSECONDS_SINCE).then(1).otherwise(1000)
    return (
        frame.select(
            (time // unit).alias("open_time"),
            *list(KLINES)[1:6],
            (ends // unit - 1).alias("close_time"),
            *list(KLINES)[6:],
            pl.lit(0).alias("ignore"),
        )
        .write_csv(None, include_header=False, float_precision=decimals)
        .encode()
    )


def to_zip(name: str, csv: bytes, level: int = 6) -> bytes:
    """Return a zip with a single member `name` and a fixed date: equal candles give equal bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as archive:
        member = zipfile.ZipInfo(name, (2025, 1, 1, 0, 0, 0))
        member.compress_type = zipfile.ZIP_DEFLATED
        archive.writestr(member, csv)
    return buffer.getvalue()


def to_checksum(name: str, payload: bytes) -> bytes:
    """Return the contents of a CHECKSUM file."""
    return f"{hashlib.sha256(payload).hexdigest()}  {name}".encode()


def listing_page(entries: list[tuple[str, str, int]], query: dict[str, str]) -> bytes:
    """Return a page of S3's listing of `entries` under the query's `prefix` and after its `marker`."""
    prefix, marker, delimiter = query["prefix"], query.get("marker", ""), query.get("delimiter", "")
    contents, folders = [], []
    for key, etag, size in entries:
        rest = key.removeprefix(prefix)
        if delimiter and delimiter in rest:
            folders.append(prefix + rest.split(delimiter)[0] + delimiter)
        else:
            shown = f"<Size>{size}</Size>" if size >= 0 else ""
            contents.append((key, f"<Key>{escape(key)}</Key><ETag>&quot;{etag}&quot;</ETag>{shown}"))
    # as S3: entries strictly behind the marker, at most a page of them
    after = [item for item in contents if item[0] > marker]
    page, more = after[:PAGE], len(after) > PAGE
    body = "".join(f"<Contents>{text}</Contents>" for _, text in page)
    body += "".join(
        f"<CommonPrefixes><Prefix>{escape(f)}</Prefix></CommonPrefixes>"
        for f in dict.fromkeys(folders)
        if f > marker
    )
    return (
        '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Prefix>{escape(prefix)}</Prefix><IsTruncated>{str(more).lower()}</IsTruncated>"
        + (f"<NextMarker>{escape(page[-1][0])}</NextMarker>" if more else "")
        + f"{body}</ListBucketResult>"
    ).encode()


Hook = Callable[[BaseHTTPRequestHandler, str, dict[str, str]], Any]
"""May respond to a request for a key with a query: status, headers and body, or True if it wrote to the socket.

None passes the request to the mirror.
"""


@contextmanager
def serve(mirror: Any, hook: Hook | None = None, *, lists: bool = True) -> Iterator[str]:
    """Serve a mirror (`keys` and `read` as of `SimulatedMirror`) on a free loopback port and yield its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = 1 << 16  # headers and body in one packet

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            key = unquote(parts.path).lstrip("/")
            query = {k: v[-1] for k, v in parse_qs(parts.query).items()}
            answer = hook(self, key, query) if hook else None
            if answer is True:
                return
            if not answer and not key and "prefix" in query and lists:
                answer = 200, {}, listing_page(mirror.keys(query["prefix"]), query)
            elif not answer:
                content = mirror.read(key) if key else None
                answer = (404, {}, b"<Error/>") if content is None else (200, {}, content)
            status, headers, body = answer
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
