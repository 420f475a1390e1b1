"""What the service does per second, and how long its answers take under load: `cpb serve` itself, over loopback.

    python -m benchmarks.serve [--only throughput|latency|before] [--series 40] [--days 365] [--seconds 60] [--json]

Makes a home of 40 series with a year of hourly forecasts that came true, starts `cpb serve` over it as a user would,
and asks it from a process of its own on the same cores. Clients are threads with a connection each, and read every
byte; the first request to each address is among those that are timed.

throughput: 4 clients ask for `/api/candles/…?limit=5000`, of all series in turn, as fast as they can.
latency: 50 clients ask once a second each at limit=500, all routes of the API in equal shares over all series.
before: throughput against another commit's, `--commit` (default: the one before this file's), in pairs.
"""

import argparse
import http.client
import multiprocessing
import os
import queue
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks._live_record import HOUR, hourly_forecasts, store_candles, walk
from benchmarks._paired import main
from schemas.identity import SeriesId
from tasks.forecasting import chain
from tasks.forecasting.ledger import score_due
from webapp.app import create_app

FIRST = datetime(2024, 1, 10, tzinfo=UTC)
CLIENTS, PATIENT = 4, 50
_ROOT = Path(__file__).parents[1]


def fill(home: Path, series: Sequence[SeriesId], days: int) -> None:
    """Store candles, hourly forecasts of a version a day with the reference beside them, and what came true."""
    rows = 24 * days
    for seed, one in enumerate(series):
        close = walk(rows + 2, seed)
        store_candles(home, one, FIRST, close)
        origins = np.arange(rows - 1)
        made = hourly_forecasts(one, FIRST, close, origins, version=lambda at: (at - FIRST).days + 1)
        chain.append(home, "spot", "forecasts", {one: made})
    score_due(home, series, FIRST + HOUR * rows)


@contextmanager
def service(home: Path, code: Path = _ROOT) -> Iterator[tuple[int, psutil.Process]]:
    """Run `cpb serve` of the code in a folder over a home; yields its port and its process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = os.environ | {"CPB_HOME": str(home), "PYTHONPATH": str(code), "PYTHONSAFEPATH": "1"}
    env["MLFLOW_TRACKING_URI"] = f"sqlite:///{home}/mlflow.db"
    command = [sys.executable, "-m", "flows.cli", "serve", "--port", str(port)]
    process = subprocess.Popen(command, env=env, cwd=home, stdout=subprocess.DEVNULL)
    try:
        while process.poll() is None:
            try:
                if ask(port, ["/healthz"])[0] == 200:
                    break
            except OSError:
                time.sleep(0.1)
        if process.poll() is not None:
            raise SystemExit(f"`cpb serve` ended with {process.returncode} before it answered; see above")
        yield port, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(20)


def ask(port: int, paths: Sequence[str]) -> list[int]:
    """Return the status of each answer, asked for over one connection and read to the end."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        return [_get(connection, path)[0] for path in paths]
    finally:
        connection.close()


def _get(connection: http.client.HTTPConnection, path: str) -> tuple[int, int]:
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, len(answer.read())


def hurried(port: int, paths: list[str], clients: int, seconds: float) -> dict[str, float]:
    """Return requests per second and MB per second of clients that ask again as soon as they are answered."""
    done: list[int] = []
    turns, end = count(), time.perf_counter() + seconds

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        while time.perf_counter() < end:
            status, size = _get(connection, paths[next(turns) % len(paths)])
            assert status == 200, status
            done.append(size)
        connection.close()

    start = time.perf_counter()
    _together(client, clients)
    took = time.perf_counter() - start
    return {"requests/s": len(done) / took, "MB/s": sum(done) / took / 1e6}


def patient(port: int, paths: list[str], clients: int, seconds: float) -> dict[str, float]:
    """Return the times of answers to clients that ask once a second each; late ones do not catch up."""
    times: list[tuple[float, str]] = []
    turns, start = count(), time.perf_counter()

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        due = start + next(offsets) / clients
        while due < start + seconds:
            time.sleep(max(0.0, due - time.perf_counter()))
            path = paths[next(turns) % len(paths)]
            begun = time.perf_counter()
            status, _ = _get(connection, path)
            assert status == 200, (status, path)
            times.append((time.perf_counter() - begun, path))
            due = max(due + 1, time.perf_counter())
        connection.close()

    offsets = count()
    _together(client, clients)
    slowest = sorted(times)[-1]
    ms = sorted(1000 * one for one, _ in times)
    return {
        "requests/s": len(ms) / seconds,
        "p50 ms": statistics.median(ms),
        "p99 ms": ms[int(0.99 * (len(ms) - 1))],
        "slowest ms": 1000 * slowest[0],
        "slowest": slowest[1],  # type: ignore[dict-item]
    }


def _together(client: Any, clients: int) -> None:
    """Run so many clients side by side, and raise what any of them raises."""
    faults: queue.Queue[BaseException] = queue.Queue()

    def guarded() -> None:
        try:
            client()
        except BaseException as error:  # noqa: BLE001 - a thread's would be printed and forgotten
            faults.put(error)

    threads = [threading.Thread(target=guarded) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not faults.empty():
        raise faults.get()


def apart(run: Any, *given: Any) -> Any:
    """Run a load generator in a process of its own, so that it shares no interpreter with anything."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(run, given)


def candles(series: Sequence[SeriesId]) -> list[str]:
    """Return the addresses of the throughput measurement."""
    return [f"/api/candles/{one.symbol}/{one.timeframe}?limit=5000" for one in series]


def everything(home: Path, series: Sequence[SeriesId]) -> list[str]:
    """Return an address per route that `/openapi.json` names and series, the routes in turn."""
    routes = [path for path in create_app(home).openapi()["paths"] if "{run_id}" not in path]
    names = ("board", "coins", "compare")
    found = []
    for i, one in enumerate(series):
        for route in routes:
            path = route.format(symbol=one.symbol, timeframe=one.timeframe, name=names[i % len(names)])
            limit = "limit=200" if path == "/api/runs" else "limit=500"
            found.append(f"{path}?{limit}&models=har,gru")
    return found


def _used(process: psutil.Process) -> dict[str, float]:
    spent = process.cpu_times()
    return {
        "CPU s": spent.user + spent.system,
        "threads": process.num_threads(),
        "MB": process.memory_info().rss / 1e6,
    }


@contextmanager
def filled(args: argparse.Namespace) -> Iterator[tuple[Path, list[SeriesId]]]:
    """Yield a home with so many series and days, and the series; made anew unless `--home` names one."""
    series = [SeriesId("spot", f"C{i:02d}USDT", "1h") for i in range(args.series)]
    if args.home:
        yield Path(args.home), series
        return
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder), series, args.days)
        yield Path(folder), series


def throughput(args: argparse.Namespace) -> dict[str, Any]:
    with filled(args) as (home, series), service(home) as (port, process):
        before = _used(process)["CPU s"]
        found = apart(hurried, port, candles(series), CLIENTS, args.seconds / 3)
        used = _used(process)
        return {f"{CLIENTS} clients, limit=5000": found | used | {"CPU s": used["CPU s"] - before}}


def latency(args: argparse.Namespace) -> dict[str, Any]:
    with filled(args) as (home, series), service(home) as (port, process):
        before = _used(process)["CPU s"]
        found = apart(patient, port, everything(home, series), PATIENT, args.seconds)
        used = _used(process)
        return {f"{PATIENT} clients, once a second": found | used | {"CPU s": used["CPU s"] - before}}


def before(args: argparse.Namespace) -> dict[str, Any]:
    """Ratio of requests per second, this tree's to the other commit's, in pairs whose order turns round."""
    commit = (
        args.commit
        or subprocess.check_output(
            ["git", "log", "--diff-filter=A", "--format=%H~1", "--", "webapp/replies.py"],
            cwd=_ROOT,
            text=True,
        ).split()[-1]
    )
    commit = subprocess.check_output(["git", "rev-parse", "--short", commit], cwd=_ROOT, text=True).strip()
    with filled(args) as (home, series), tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "code"
        subprocess.run(["git", "worktree", "add", "--detach", "-f", other, commit], cwd=_ROOT, check=True,
                       capture_output=True)  # fmt: skip
        try:
            with service(home, other) as (old, _), service(home) as (new, _):
                pairs: list[dict[int, float]] = []
                for turn in range(args.pairs):
                    ports = (old, new) if turn % 2 == 0 else (new, old)
                    pairs.append({
                        port: apart(hurried, port, candles(series), CLIENTS, args.seconds / 6)["requests/s"]
                        for port in ports
                    })  # fmt: skip
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", other], cwd=_ROOT, check=True)
    ratios = [pair[new] / pair[old] for pair in pairs]
    return {
        f"{commit} against this tree": {
            "before, requests/s": statistics.median(pair[old] for pair in pairs),
            "now, requests/s": statistics.median(pair[new] for pair in pairs),
            "ratio": statistics.median(ratios),
            "lowest": min(ratios),
            "highest": max(ratios),
        }
    }


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--series", type=int, default=40)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--commit", default="", help="of `before`")
    parser.add_argument("--home", default="", help="a home that was filled before, with these series")


if __name__ == "__main__":
    main("serve", {"throughput": throughput, "latency": latency, "before": before}, options=options)
