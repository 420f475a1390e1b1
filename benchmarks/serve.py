"""What the service does per second, and how long its answers take under load: `cpb serve` itself, over loopback.

    python -m benchmarks.serve [--only throughput|latency|touch|written|runs|queries] [--series 40] [--days 365]
        [--seconds 60] [--nights 70] [--json]

Makes a home of 40 series with a year of hourly forecasts that came true, starts `cpb serve` over it as a user would,
and asks it from a process of its own on the same cores. Clients are threads with a connection each, and read every
byte; the first request to each address is among those that are timed.

throughput: 4 clients ask for `/api/candles/…?limit=5000`, of all series in turn, as fast as they can.
latency: 50 clients ask once a second each at limit=500, all routes of the API in equal shares over all series; a late
    client does not catch up. A row for all and one for each route.
touch: the chances of 1,000 prices by each step of every series' newest forecast, and of 1,000 pairs of a target and a
    stop, without the service.
written: 4 clients ask every route that reads MLflow, of all series in turn, 2,000 times (`--times`), while another
    process logs models without a pause to a store of 70 nights with two fleets of 20 models: 3,010 runs. The first
    answer of each address is a row of its own, asked for before.
runs: CPU seconds of `cpb leaderboard` and of `cpb prune`, which finds nothing, over a store of one night and of all.
queries: memory of the service before and after 8,000 requests to each route with long options that it does not know.
"""

import argparse
import http.client
import multiprocessing
import os
import resource
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import psutil

from benchmarks._clients import Times, ask_each, ask_times, get, load
from benchmarks._live_record import HOUR, hourly_forecasts, store_candles, walk
from benchmarks._paired import main
from cpbmodels import Series, train_fleet
from schemas.identity import ModelId, SeriesId
from tasks.forecasting import chain
from tasks.forecasting.months import latest
from tasks.forecasting.price_chances import PriceChances, chances_of
from tasks.forecasting.record import score_due
from tasks.storage.model_folder import read_config
from tasks.tracking.runs import MemberRecord, finish, log_members, log_metrics, start_fleet, start_parent
from webapp.app import create_app

FIRST = datetime(2024, 1, 10, tzinfo=UTC)


def fill(home: Path, series: Sequence[SeriesId], days: int, **options: Any) -> None:
    """Store candles, hourly forecasts of a version a day with the reference beside them, and what came true.

    `options`: `weights`, as for `hourly_forecasts`.
    """
    rows = 24 * days
    for seed, coin in enumerate(series):
        close = walk(rows + 2, seed)
        store_candles(home, coin, FIRST, close)
        origins = np.arange(rows - 1)
        made = hourly_forecasts(
            coin, FIRST, close, origins, version=lambda at: (at - FIRST).days + 1, **options
        )
        chain.append(home, "spot", "forecasts", {coin: made})
    score_due(home, series, FIRST + HOUR * rows)


@contextmanager
def service(home: Path) -> Iterator[tuple[int, psutil.Process]]:
    """Run `cpb serve` over a home; yields its port and its process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = os.environ | _store_of(home)
    env["PYTHONPATH"] = str(Path(__file__).parents[1])
    command = [sys.executable, "-m", "flows.cli", "serve", "--port", str(port)]
    process = subprocess.Popen(command, env=env, cwd=home, stdout=subprocess.DEVNULL)
    try:
        while process.poll() is None:
            try:
                get(http.client.HTTPConnection("127.0.0.1", port, timeout=60), "/healthz")
                break
            except OSError:
                time.sleep(0.1)
        if process.poll() is not None:
            raise SystemExit(f"`cpb serve` ended with {process.returncode} before it answered; see above")
        yield port, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(20)


def row(times: Times, seconds: float) -> dict[str, float]:
    """A table's row of some answers."""
    ms = sorted(1000 * spent for _, spent, _ in times)
    return {
        "requests/s": len(ms) / seconds,
        "MB/s": sum(size for *_, size in times) / seconds / 1e6,
        "p50 ms": statistics.median(ms),
        "p99 ms": ms[int(0.99 * (len(ms) - 1))],
        "slowest ms": ms[-1],
    }


def measure(
    args: argparse.Namespace, paths: Callable[[Path, list[SeriesId]], list[str]], clients: int, pause: float
) -> tuple[dict[str, Any], Times]:
    """Fill a home, start the service, and ask it from another process, which shares no interpreter with anything."""
    series = [SeriesId("spot", f"C{i:02d}USDT", "1h") for i in range(args.series)]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(args.home or folder)
        if not args.home:
            fill(home, series, args.days)
        with service(home) as (port, process), multiprocessing.get_context("spawn").Pool(1) as pool:
            before = sum(process.cpu_times()[:2])
            times = pool.apply(load, (port, paths(home, series), clients, args.seconds, pause))
            used = {"CPU s": sum(process.cpu_times()[:2]) - before, "MB": process.memory_info().rss / 1e6}
    return row(times, args.seconds) | used, times


def throughput(args: argparse.Namespace) -> dict[str, Any]:
    def candles(home: Path, series: list[SeriesId]) -> list[str]:
        return [f"/api/candles/{coin.symbol}/{coin.timeframe}?limit=5000" for coin in series]

    return {"4 clients, limit=5000": measure(args, candles, 4, 0.0)[0]}


def everything(home: Path, series: list[SeriesId]) -> list[str]:
    """Return an address per route that `/openapi.json` names and series, the routes in turn."""
    routes = [path for path in create_app(home).openapi()["paths"] if "{run_id}" not in path]
    names = {True: ("record", "coverage", "decisions"), False: ("board", "coins")}  # of a series, of a board
    paths = []
    for i, coin in enumerate(series):
        for route in routes:
            of = names["{symbol}" in route]
            path = route.format(symbol=coin.symbol, timeframe=coin.timeframe, chart=of[i % len(of)])
            limit = "limit=200" if path == "/api/runs" else "limit=500"
            # Prices on both sides of any close.
            paths.append(f"{path}?{limit}&models=har,gru&price=1&target=1000000000&stop=0.000001")
    return paths


def latency(args: argparse.Namespace) -> dict[str, Any]:
    total, times = measure(args, everything, 50, 1.0)
    routes = {
        route: [timing for timing in times if timing[0] == route]
        for route in sorted({timing[0] for timing in times})
    }
    rows = {route: row(of_route, args.seconds) for route, of_route in routes.items()}
    return {"50 clients, once a second": total} | rows


def touch(args: argparse.Namespace) -> dict[str, Any]:
    series = [SeriesId("spot", f"C{i:02d}USDT", "1h") for i in range(args.series)]
    close = walk(600, 1)
    spread = np.exp(np.abs(np.random.default_rng(2).normal(0, 0.002, len(close))))
    candles = Series.from_ohlc(
        np.column_stack([close, close * spread, close / spread, close]), timeframe="1h"
    )
    (member,) = train_fleet([candles], "linear", "smoke", device="cpu", epochs=1)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        weights = read_config(member.save(home / "member")).weights_sha256
        fill(home, series, 2, weights=weights)
        for coin in series:
            version = latest(home, coin)["model_version"][0]
            member.save(home / "hub" / coin.label / coin.timeframe, {"model_version": version})
        asked = {"1,000 prices": _touches, "1,000 pairs of target and stop": _firsts}
        times: dict[str, Any] = {}
        for what, ask in asked.items():
            begun = time.perf_counter()
            for coin in series:
                rows = latest(home, coin)
                assert ask(chances_of(home, coin, rows)) == 10_000
            times[f"{args.series} series, {what}"] = {"s": time.perf_counter() - begun}
        return times


def _touches(of: PriceChances) -> int:
    return len(of.touch(np.linspace(50, 200, 1000).tolist()))


def _firsts(of: PriceChances) -> int:
    away = np.linspace(0.001, 0.5, 1000)
    last_close = float(of.chances.last_close)
    return of.chances.first(last_close * (1 + away), last_close * (1 - away[::-1]))[..., 0].size


MEMBERS = 20
"""Of each of a night's two fleets."""


def _store_of(home: Path) -> dict[str, str]:
    """Return the environment variables by which a process uses this home and its store."""
    return {"CPB_HOME": str(home), "MLFLOW_TRACKING_URI": f"sqlite:///{home}/mlflow.db"}


def log_night(key: str, series: Sequence[SeriesId]) -> None:
    """Log what a night logs: a flow, two fleets, and a model of each on the first series, with 25 metrics."""
    parent = start_parent(
        key, {"market": "spot", "preset": "default"}, {"preset": "default", "as_of": "newest"}
    )
    for number, architecture in enumerate(("har", "gru")):
        config = {f"option_{i}": i for i in range(60)} | {"recipe": "default"}
        fleet = start_fleet(parent.run_id, architecture, f"{key}/{architecture}", config)
        log_members(
            fleet.run_id,
            (
                MemberRecord(
                    key=f"{key}/{architecture}/{coin.name}",
                    model=ModelId(architecture, "default", coin, 1),
                    device="cpu",
                    preset="default",
                    data_digest="d",
                    as_of="newest",
                    config={"bounds": {"test": ["2025-01-01T00:00:00Z", "2025-06-01T00:00:00Z"]}},
                    history=[{"epoch": 0, "train_loss": 1.0, "val_loss": 1.0, "lr": 1e-3}],
                    metrics={"test_crps_ratio": 0.9 + number / 10, "windows_per_s": 1e4, "rss_peak_mb": 300.0}
                    | {f"test_{name}_ratio": 1.0 for name in ("mae", "rps", "touch_brier")},
                )
                for coin in series[:MEMBERS]
            ),
        )
        log_metrics(
            fleet.run_id, {f"pooled_crps_ratio_1h{end}": 0.9 + number / 10 for end in ("", "_low", "_high")}
        )
        finish(fleet.run_id)
    finish(parent.run_id)


def fill_store(home: Path, series: Sequence[SeriesId], nights: int) -> None:
    """Log a night, and copy its rows for the nights before it, all within a fortnight."""
    with patch.dict(os.environ, _store_of(home)):
        log_night("night", series)
    tables = ("runs", "tags", "params", "metrics", "latest_metrics")
    with closing(sqlite3.connect(home / "mlflow.db")) as database:
        runs = [run for (run,) in database.execute("SELECT run_uuid FROM runs")]
        copied = {name: database.execute(f"SELECT * FROM {name}") for name in tables}
        columns = {name: [column[0] for column in rows.description] for name, rows in copied.items()}
        night = {
            name: [dict(zip(columns[name], row, strict=True)) for row in rows]
            for name, rows in copied.items()
        }
        for number in range(1, nights):
            ids = {run: uuid.uuid4().hex for run in runs}
            before_ms = number * 13 * 86_400_000 // nights
            for name, rows in night.items():
                changed: list[dict[str, Any]] = [
                    {k: ids.get(v, v) if isinstance(v, str) else v for k, v in row.items()} for row in rows
                ]
                for row in changed:
                    row |= {k: row[k] - before_ms for k in ("start_time", "end_time") if row.get(k)}
                    if row.get("key") == "cpb.key":
                        row["value"] += f" {number}"
                marks = ", ".join(f":{column}" for column in columns[name])
                database.executemany(f"INSERT INTO {name} VALUES ({marks})", changed)
        database.commit()


def _write_on(home: Path, series: Sequence[SeriesId], begun: Any) -> None:
    """Log nights without a pause until the process is ended; `begun` is set once the first was logged."""
    os.environ.update(_store_of(home))
    log_night("later", series[:1])
    begun.set()
    for number in count():
        log_night(f"later {number}", series)


def written(args: argparse.Namespace) -> dict[str, Any]:
    series = [SeriesId("spot", f"C{i:02d}USDT", "1h") for i in range(args.series)]
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        fill(home, series, 2)
        fill_store(home, series, args.nights)
        board = ["/api/leaderboard", "/api/runs", "/api/overview", "/api/figures/board", "/api/figures/coins"]
        names = [f"{coin.symbol}/{coin.timeframe}" for coin in series]
        paths = [
            path
            for name in names
            for path in (
                *board,
                f"/api/models/{name}",
                f"/api/decisions/{name}",
                f"/api/figures/decisions/{name}",
            )
        ]
        with service(home) as (port, process), spawn.Pool(1) as pool:
            first = pool.apply(ask_each, (port, list(dict.fromkeys(paths))))
            begun = spawn.Event()
            writer = spawn.Process(target=_write_on, args=(home, series, begun))
            writer.start()
            try:
                begun.wait()
                start = time.perf_counter()
                times = pool.apply(ask_times, (port, paths, 4, args.times))
                seconds = time.perf_counter() - start
                memory = process.memory_info().rss / 1e6
            finally:
                writer.terminate()
                writer.join()
    rows = {"first answers, nothing written": row(first, sum(spent for _, spent, _ in first))}
    rows["answers while models are logged"] = row(times, seconds) | {"MB": memory}
    for route in sorted({timing[0] for timing in times}):
        rows[route] = row([timing for timing in times if timing[0] == route], seconds)
    return rows


def runs(args: argparse.Namespace) -> dict[str, Any]:
    series = [SeriesId("spot", f"C{i:02d}USDT", "1h") for i in range(args.series)]
    rows = {}
    for nights in dict.fromkeys((1, args.nights)):
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder)
            fill_store(home, series, nights)
            spent = {}
            for command in ("leaderboard", "prune"):
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                subprocess.run(
                    [sys.executable, "-m", "flows.cli", command],
                    cwd=home,
                    check=True,
                    capture_output=True,
                    env=os.environ | _store_of(home) | {"PYTHONPATH": str(Path(__file__).parents[1])},
                )
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                spent[f"cpb {command}, CPU s"] = (
                    after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
                )
            rows[f"{nights * (3 + 2 * min(MEMBERS, args.series)):,} runs"] = spent
    return rows


def queries(args: argparse.Namespace) -> dict[str, Any]:
    series = [SeriesId("spot", f"C{i:02d}USDT", "1h") for i in range(args.series)]
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        fill(home, series, 2)
        fill_store(home, series, 1)
        with service(home) as (port, process), multiprocessing.get_context("spawn").Pool(1) as pool:
            paths = everything(home, series[:2])
            pool.apply(ask_each, (port, paths))
            rows["at first"] = {"MB": process.memory_info().rss / 1e6}
            for path in paths[: len(paths) // 2]:
                longer = [f"{path}&{i}={'x' * 14_000}" for i in range(args.queries)]
                pool.apply(ask_each, (port, longer))
                rows[path.partition("?")[0]] = {"MB": process.memory_info().rss / 1e6}
    return rows


PARTS = {
    "throughput": throughput,
    "latency": latency,
    "touch": touch,
    "written": written,
    "runs": runs,
    "queries": queries,
}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--series", type=int, default=40)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--times", type=int, default=2000, help="requests of the part `written`")
    parser.add_argument("--nights", type=int, default=70, help="nights of the MLflow store, 43 runs each")
    parser.add_argument(
        "--queries", type=int, default=8000, help="long queries for each route of the part `queries`"
    )
    parser.add_argument("--home", default="", help="a home that was filled before, with these series")


if __name__ == "__main__":
    main("serve", PARTS, options=options)
