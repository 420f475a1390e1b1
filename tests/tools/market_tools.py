"""Small mirrors to ingest from, and the ways in which servers and files go wrong."""

import time
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from schemas.identity import SeriesId
from schemas.scope import IngestSpec
from tasks.market import simulator
from tasks.market.client import Limits
from tasks.market.layout import grid_of, source_file
from tasks.market.listing import with_listed_pairs
from tasks.market.simulator import candles
from tasks.storage.files import DRAFT

FAST = Limits(connect=10, read=10, deadline=60, tries=3, backoff=0.01, longest_wait=5)
"""Quick to try again; an answer has time also where other processes take all cores."""
IMPATIENT = replace(FAST, deadline=0.8)
"""For servers whose answers never end."""
AS_OF = datetime(2024, 4, 1, tzinfo=UTC)


def key(symbol="BTCUSDT", interval="1h", market="spot"):
    return SeriesId(market, symbol, interval)


@cache
def frame(file, symbol=None):
    """The synthetic candles of a file's period."""
    start, end = file.bounds
    return candles(
        symbol or file.series.symbol, grid_of(file.series.timeframe).end(start) - start, start, end
    )


def csv_of(file, rows=None):
    return simulator.to_csv(frame(file) if rows is None else rows, file.series.timeframe)


@cache
def zip_of(file):
    """The archive of a file with its synthetic candles, made once per process: most tests publish the same files."""
    return simulator.to_zip(file.member, csv_of(file), 1)


def put(root: Path, file, csv=None, *, payload=None, checksum=True):
    """Publish a file in a mirror folder; by default with its synthetic candles."""
    path = root / file.key
    path.parent.mkdir(parents=True, exist_ok=True)
    if payload is None:
        payload = zip_of(file) if csv is None else simulator.to_zip(file.member, csv, 1)
    path.write_bytes(payload)
    if checksum:
        path.with_name(path.name + ".CHECKSUM").write_bytes(simulator.to_checksum(path.name, payload))
    return payload


class Flood:
    """A server's hook: answers a key with this head and then up to 800 MB; `sent`: megabytes that were accepted."""

    def __init__(self, key: str, head: bytes):
        self.key, self.head, self.sent = key, head, 0

    def __call__(self, handler, key, query):
        if key != self.key:
            return None
        handler.wfile.write(self.head)
        try:
            for _ in range(800):
                handler.wfile.write(b"P" * 1_000_000)
                self.sent += 1
        except OSError:
            pass
        handler.close_connection = True
        return True


def build(
    root: Path, symbols=("BTCUSDT", "ETHUSDT"), months=("2024-01", "2024-02", "2024-03"), interval="1h"
):
    for symbol in symbols:
        for month in months:
            put(root, source_file(key(symbol, interval), month))
    return root


def scope(home: Path, source, coins="BTC,ETH", timeframes="1h", as_of="2024-04-01", **more):
    made = IngestSpec(coins=coins, timeframes=timeframes, source=str(source), as_of=as_of, **more)
    return made.scope.model_copy(update={"home": home})


def stored(home: Path) -> dict[str, bytes]:
    """Every file of a store except the manifest, for comparing before and after."""
    names = [p for p in home.rglob("*") if p.is_file() and not p.name.startswith(("manifest", "writer"))]
    return {str(p.relative_to(home)): p.read_bytes() for p in names}


def lines(csv: bytes) -> list[bytes]:
    return csv.splitlines(keepends=True)


RETRY_AFTER = {"429": {"Retry-After": "1"}, "418": {"Retry-After": "120"}}


@dataclass
class Misbehaving:
    """A server's hook: answers requests for keys that contain `where` in the way of `fault`, or with that status.

    `times` limits how often; the requests of every key are counted.
    """

    where: str
    fault: str
    times: int = 10**9
    asked: Counter = field(default_factory=Counter)
    body: bytes = b""

    def __call__(self, handler, key, query):
        self.asked[key or query.get("prefix", "")] += 1
        if (
            self.where not in key
            or key.endswith(".CHECKSUM") != self.where.endswith(".CHECKSUM")
            or self.times <= 0
        ):
            return None
        self.times -= 1
        if self.fault.isdigit():
            return int(self.fault), RETRY_AFTER.get(self.fault, {}), b"<html>sorry</html>"
        return getattr(self, f"_{self.fault}")(handler)

    def _html(self, handler):
        return 200, {}, b"<!DOCTYPE html><html>maintenance</html>"

    def _bytes(self, handler):
        return 200, {}, self.body

    def _reset(self, handler):
        """Close in mid-body."""
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nPK\x03\x04half")
        handler.wfile.flush()
        handler.close_connection = True
        return True

    def _trickle(self, handler):
        """Send a byte now and then: every read succeeds, the whole never ends."""
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        for _ in range(60):
            try:
                handler.wfile.write(b"P")
                handler.wfile.flush()
            except OSError:
                break
            time.sleep(0.1)
        handler.close_connection = True
        return True


def drafts(home: Path) -> list[Path]:
    """What a writer left half-written."""
    return [p for p in home.rglob("*") if DRAFT.fullmatch(p.name) or p.name.endswith(".tmp")]


def btc(report):
    return report.series[0]


def listing(market, change):
    """A hook that passes every page of the listing through `change(xml, query)`."""

    def hook(handler, name, query):
        if name or "prefix" not in query:
            return None
        entries = market.folder.keys(query["prefix"])
        page = simulator.listing_page(entries, query)
        answer = change(page.decode(), query)
        return answer if isinstance(answer, tuple) else (200, {}, answer.encode())

    return hook


def listed(source):
    """The coins of the whole exchange at a source."""
    return list(with_listed_pairs(IngestSpec(coins="exchange", source=source), print).scope.symbols)
