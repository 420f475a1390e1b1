"""Ingestion against the naive way, on a synthetic mirror served from loopback.

    python -m benchmarks.ingest [--only throughput] [--coins 20] [--json]

The mirror has 20 coins x 15m and 1h x 24 months (960 zips, 1.75 million candles), made once into the
temporary folder. The server is a process of its own; `latency` delays every request by 50 ms and a new
connection by two more round trips, as TCP and TLS do. Every figure of ours comes from a fresh process, so
that peak memory is its own; imports are not counted. Naive: one request after another, a session for each
file, pandas, one parquet file for each series, no checks at all.
"""

import argparse
import io
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks._paired import main
from schemas.coins import COINS, symbol_of
from tasks.market import simulator
from tasks.market.layout import SeriesId, months, period_bounds, source_file
from tasks.market.simulator import candles

INTERVALS = ["15m", "1h"]
FIRST, LAST, AS_OF = "2023-05", "2025-04", "2025-05-01"
LATENCY = 0.05


def _folder(name: str) -> Path:
    return Path(tempfile.gettempdir()) / "cpb-benchmarks" / name


def build(root: Path, symbols: list[str]) -> int:
    """Publish synthetic monthly files under `root` (what is there stays); return the number of candles."""
    rows = 0
    for symbol in symbols:
        for month in months(period_bounds(FIRST)[0], period_bounds(LAST)[1]):
            for interval in INTERVALS:
                file = source_file(SeriesId("spot", symbol, interval), month)
                rows += file.rows
                path = root / file.key
                if path.exists():
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                csv = simulator.to_csv(
                    candles(symbol, file.series.seconds * 1_000_000, *file.bounds), interval
                )
                body = simulator.to_zip(file.member, csv)
                path.with_name(f"{path.name}.CHECKSUM").write_bytes(simulator.to_checksum(path.name, body))
                path.write_bytes(body)
    return rows


@dataclass
class Files:
    """A folder as a mirror."""

    root: Path

    def keys(self, prefix: str) -> list[tuple[str, str, int]]:  # noqa: D102 - of `simulator.SimulatedMirror`
        return [
            (str(path.relative_to(self.root)), f"{path.stat().st_size:032x}", path.stat().st_size)
            for path in sorted((self.root / prefix).glob("*"))
        ]

    def read(self, key: str) -> bytes | None:  # noqa: D102 - of `simulator.SimulatedMirror`
        path = self.root / key
        return path.read_bytes() if path.is_file() else None


def _serve(root: Path, latency: float, port: Connection) -> None:
    # a handler lives as long as its connection
    def delay(handler: Any, key: str, query: Mapping[str, str]) -> None:
        time.sleep(latency if hasattr(handler, "met") else 3 * latency)
        handler.met = True

    with simulator.serve(Files(root), delay) as url:
        port.send(url)
        port.poll(None)  # until the benchmark ends


@contextmanager
def served(root: Path, latency: float) -> Iterator[str]:
    """Serve `root` from another process; `latency` seconds a request, two more for a new connection (TCP and TLS)."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(root, latency, theirs), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join()


def ours(url: str, symbols: list[str], twice: bool) -> dict[str, Any]:
    """Ingest into an empty home, or again into a full one, in this process."""
    from schemas.scope import IngestSpec
    from tasks.market.ingest import update_store

    home = _folder("ours")
    spec = IngestSpec(coins=",".join(symbols), timeframes=",".join(INTERVALS), source=url, as_of=AS_OF)
    if not twice:
        shutil.rmtree(home, ignore_errors=True)
    wall, cpu = time.perf_counter(), time.process_time()
    report = update_store(spec.scope.model_copy(update={"home": home}))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    if report.exit:
        raise SystemExit(f"the benchmark's own mirror came in incomplete: {report.notes[:3]}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"wall_s": wall, "cpu_s": cpu, "requests": report.requests, "peak_mb": peak}


def naive(url: str, symbols: list[str]) -> float:
    """Seconds of the usual script."""
    import pandas as pd
    import requests

    home = _folder("naive")
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    names = ["open_time", "open", "high", "low", "close", "volume", *"abcdef"]
    begin = time.perf_counter()
    for symbol in symbols:
        for interval in INTERVALS:
            frames = []
            for month in months(period_bounds(FIRST)[0], period_bounds(LAST)[1]):
                file = source_file(SeriesId("spot", symbol, interval), month)
                with requests.Session() as session:
                    body = session.get(f"{url}/{file.key}", timeout=30).content
                frames.append(pd.read_csv(io.BytesIO(body), compression="zip", header=None, names=names))
            pd.concat(frames).sort_values("open_time").to_parquet(home / f"{symbol}-{interval}.parquet")
    return time.perf_counter() - begin


def apart(run: Callable[..., Any], *arguments: Any) -> Any:
    """Run in a process of its own, so that its peak memory is its own."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(run, arguments)


def measure(args: argparse.Namespace, delay: float, repeats: int) -> Mapping[str, Any]:
    """Both ways in turn, each in a process of its own, then ours once more with nothing new."""
    symbols = [symbol_of(coin) for coin in COINS][: args.coins]
    root = _folder(f"mirror-{len(symbols)}")
    rows = build(root, symbols)
    runs, slow = [], []
    with served(root, delay) as url:
        for _ in range(repeats):
            runs.append(apart(ours, url, symbols, False))
            slow.append(apart(naive, url, symbols))
        again = apart(ours, url, symbols, True)
    wall, usual = statistics.median(run["wall_s"] for run in runs), statistics.median(slow)
    return {
        "cpb": {
            "wall_s": wall,
            "cpu_s": statistics.median(run["cpu_s"] for run in runs),
            "krows_per_s": rows / wall / 1e3,
            "peak_mb": max(run["peak_mb"] for run in runs),
            "times_faster": statistics.median(s / run["wall_s"] for s, run in zip(slow, runs, strict=True)),
        },
        "cpb, nothing new": {"wall_s": again["wall_s"], "requests": again["requests"]},
        "naive": {"wall_s": usual, "krows_per_s": rows / usual / 1e3},
    }


PARTS = {
    "throughput": lambda args: measure(args, 0.0, args.repeats),  # what parsing, checking and writing cost
    "latency": lambda args: measure(args, LATENCY, 1),  # 50 ms a request: what running ahead is worth
}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--coins", type=int, default=len(COINS), help="in the mirror (two intervals each)")
    parser.add_argument("--repeats", type=int, default=3)


if __name__ == "__main__":
    main("ingest", PARTS, options=options)
