"""A mirror for benchmarks: synthetic zips on disk, served by a process of its own with a given round trip.

asyncio, because the server shares two cores with what it measures: about 0.1 ms of CPU a request.
"""

import asyncio
import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from tasks.market import mirror
from tasks.market.layout import SeriesId, months, period_bounds, source_file
from tasks.market.simulator import candles


def build(root: Path, symbols: list[str], intervals: list[str], first: str, last: str) -> int:
    """Publish synthetic monthly files under `root` (what is there stays); return the number of candles."""
    rows = 0
    span = months(period_bounds(first)[0], period_bounds(last)[1])
    for symbol in symbols:
        for month in span:
            for interval in intervals:
                file = source_file(SeriesId("spot", symbol, interval), month)
                rows += file.rows
                path = root / file.key
                if path.exists():
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                csv = mirror.to_csv(candles(symbol, file.series.seconds * 1_000_000, *file.bounds), interval)
                body = mirror.to_zip(file.member, csv)
                path.with_name(f"{path.name}.CHECKSUM").write_bytes(mirror.to_checksum(path.name, body))
                path.write_bytes(body)
    return rows


@contextmanager
def served(root: Path, latency: float = 0.0) -> Iterator[str]:
    """Serve `root` from another process; `latency` seconds a request, twice that for a new connection."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_main, args=(root, latency, theirs), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.terminate()
        process.join()


def _main(root: Path, latency: float, port: Connection) -> None:
    asyncio.run(_serve(root, latency, port))


async def _serve(root: Path, latency: float, port: Connection) -> None:
    listings: dict[str, list[tuple[str, str, int]]] = {}
    for path in sorted(root.rglob("*")):
        if path.is_file():
            body, key = path.read_bytes(), str(path.relative_to(root))
            entry = (key, hashlib.md5(body, usedforsecurity=False).hexdigest(), len(body))
            listings.setdefault(key.rsplit("/", 1)[0] + "/", []).append(entry)

    def answer(target: str) -> tuple[int, bytes]:
        parts = urlsplit(target)
        query = {k: v[0] for k, v in parse_qs(parts.query).items()}
        if "prefix" in query:
            entries = listings.get(query["prefix"], [])
            return 200, mirror.listing_page(entries, query["prefix"], query.get("marker", ""), "/")
        path = root / unquote(parts.path).lstrip("/")
        return (200, path.read_bytes()) if path.is_file() else (404, b"")

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(2 * latency)  # TCP and TLS take two round trips before the first request
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await asyncio.sleep(latency)
                status, body = answer(head.split(b" ", 2)[1].decode())
                writer.write(b"HTTP/1.1 %d OK\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0, backlog=256)
    port.send(server.sockets[0].getsockname()[1])
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    sys.exit("used by benchmarks.ingest")
