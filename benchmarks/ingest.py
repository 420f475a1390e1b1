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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks._mirror_server import build, served
from benchmarks._paired import main
from schemas.identity import COINS, symbol_of
from tasks.market.layout import source_file

INTERVALS = ["15m", "1h"]
FIRST, LAST, AS_OF = "2023-05", "2025-04", "2025-05-01"
LATENCY = 0.05
RAMP = (20, 100, 400)


def _folder(name: str) -> Path:
    return Path(tempfile.gettempdir()) / "cpb-benchmarks" / name


def _mirror(args: argparse.Namespace) -> tuple[Path, list[str], int]:
    symbols = [symbol_of(c) for c in COINS][: args.coins]
    root = _folder(f"mirror-{len(symbols)}")
    return root, symbols, build(root, symbols, INTERVALS, FIRST, LAST)


def isolated(measure: Callable[..., Any], *arguments: Any) -> Any:
    """Run a measurement in a process of its own (imported late: it brings torch, which the child must not have)."""
    from benchmarks._isolated import isolated as run

    return run(measure, *arguments)


def ours(
    url: str, symbols: list[str], intervals: list[str], home: str, connections: int, twice: bool
) -> dict[str, Any]:
    """Ingest into an empty home, or again into a full one, in this process."""
    from schemas.scope import IngestSpec
    from tasks.market.ingest import ingest

    spec = IngestSpec(coins=",".join(symbols), timeframes=",".join(intervals), source=url, as_of=AS_OF)
    made = spec.scope.model_copy(update={"home": Path(home)})
    if not twice:
        shutil.rmtree(home, ignore_errors=True)
    wall, cpu = time.perf_counter(), time.process_time()
    report = ingest(made, connections=connections)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    rows = sum(s.rows for s in report.series)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if report.exit:
        raise SystemExit(f"the benchmark's own mirror came in incomplete: {report.notes[:3]}")
    return {"wall_s": wall, "cpu_s": cpu, "rows": rows, "requests": report.requests, "peak_mb": peak}


def naive(url: str, symbols: list[str], home: str) -> float:
    """Seconds of the usual script."""
    import pandas as pd
    import requests

    from tasks.market.layout import SeriesId, months, period_bounds

    shutil.rmtree(home, ignore_errors=True)
    Path(home).mkdir(parents=True)
    names = ["open_time", "open", "high", "low", "close", "volume", *"abcdef"]
    span = months(period_bounds(FIRST)[0], period_bounds(LAST)[1])
    begin = time.perf_counter()
    for symbol in symbols:
        for interval in INTERVALS:
            frames = []
            for month in span:
                file = source_file(SeriesId("spot", symbol, interval), month)
                with requests.Session() as session:
                    body = session.get(f"{url}/{file.key}", timeout=30).content
                frames.append(pd.read_csv(io.BytesIO(body), compression="zip", header=None, names=names))
            pd.concat(frames).sort_values("open_time").to_parquet(f"{home}/{symbol}-{interval}.parquet")
    return time.perf_counter() - begin


def _home(name: str) -> str:
    return str(_folder("home") / name)


def throughput(args: argparse.Namespace) -> Mapping[str, Any]:
    """No latency: what parsing, checking and writing cost."""
    root, symbols, rows = _mirror(args)
    with served(root) as url:
        runs, slow = [], []
        for _ in range(args.repeats):
            runs.append(isolated(ours, url, symbols, INTERVALS, _home("ours"), args.connections, False))
            slow.append(isolated(naive, url, symbols, _home("naive")))
    wall = statistics.median(r["wall_s"] for r in runs)
    return {
        "cpb": {
            "wall_s": wall,
            "cpu_s": statistics.median(r["cpu_s"] for r in runs),
            "krows_per_s": rows / wall / 1e3,
            "peak_mb": max(r["peak_mb"] for r in runs),
            "times_faster": statistics.median(s / r["wall_s"] for s, r in zip(slow, runs, strict=True)),
        },
        "naive": {"wall_s": statistics.median(slow), "krows_per_s": rows / statistics.median(slow) / 1e3},
    }


def latency(args: argparse.Namespace) -> Mapping[str, Any]:
    """50 ms a request: what running ahead is worth, and what a second run costs."""
    root, symbols, rows = _mirror(args)
    with served(root, LATENCY) as url:
        first = isolated(ours, url, symbols, INTERVALS, _home("slow"), args.connections, False)
        again = isolated(ours, url, symbols, INTERVALS, _home("slow"), args.connections, True)
        slow = isolated(naive, url, symbols, _home("naive"))
    return {
        "cpb": {
            "wall_s": first["wall_s"],
            "krows_per_s": rows / first["wall_s"] / 1e3,
            "peak_mb": first["peak_mb"],
            "times_faster": slow / first["wall_s"],
        },
        "cpb, nothing new": {"wall_s": again["wall_s"], "requests": again["requests"]},
        "naive": {"wall_s": slow, "krows_per_s": rows / slow / 1e3},
    }


def _read(home: str, symbol: str, repeats: int) -> dict[str, float]:
    from schemas.identity import SeriesId
    from tasks.market.klines import read_klines

    rows, walls = 0, []
    for _ in range(repeats):
        begin = time.perf_counter()
        rows = read_klines(Path(home), SeriesId("spot", symbol, "15m")).height
        walls.append(time.perf_counter() - begin)
    wall = statistics.median(walls)
    return {"rows": rows, "ms": wall * 1e3, "million_rows_per_s": rows / wall / 1e6}


def read(args: argparse.Namespace) -> Mapping[str, Any]:
    """One 15m series of 24 months back into a frame, all columns."""
    root, symbols, _ = _mirror(args)
    home = _home("read")
    with served(root) as url:
        isolated(ours, url, symbols[:1], INTERVALS, home, args.connections, False)
    return {"one series": isolated(_read, home, symbols[0], 30)}


def ramp(args: argparse.Namespace) -> Mapping[str, Any]:
    """Time for each row, and memory, as symbols are added (15m, four months each)."""
    symbols = [f"A{i:03}USDT" for i in range(max(RAMP))]
    root = _folder("ramp")
    build(root, symbols, ["15m"], "2025-01", LAST)
    found = {}
    with served(root) as url:
        for count in RAMP:
            run = isolated(ours, url, symbols[:count], ["15m"], _home("ramp"), args.connections, False)
            us = run["wall_s"] / run["rows"] * 1e6
            found[f"{count} symbols"] = {"rows": run["rows"], "us_per_row": us, "peak_mb": run["peak_mb"]}
    return found


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--coins", type=int, default=len(COINS), help="coins in the mirror (two intervals each)"
    )
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)


if __name__ == "__main__":
    main(
        "ingest", {"throughput": throughput, "latency": latency, "read": read, "ramp": ramp}, options=_options
    )
