"""The whole job as a user runs it: wall time, CPU seconds, the peak memory of all its processes together, and what it
adds to the MLflow store.

python -m benchmarks.pipeline --only demo
python -m benchmarks.pipeline --only commands
python -m benchmarks.pipeline --only train-all --source FOLDER --as-of 2025-06-06 [--timeframes 1h]
python -m benchmarks.pipeline --only train-all ... --against CLONE --pairs 3
python -m benchmarks.pipeline --only train-all --source FOLDER --preset default --against CLONE --pairs 1   # a night

With `--against`, the code in another clone runs the same command with the same packages, in turn (A B, B A, ..); each
figure is then the median ratio within the pairs. Memory is the sum of the processes' proportional set sizes (`Pss` of
proc(5), smaps_rollup), in which pages that several share count once. The store's growth is what the first run adds to
an empty one: bytes of the SQLite file's used pages, rows, and files below `artifacts`.

commands: CPU seconds of short commands in the demo's home, medians of nine; MLflow's store is as it was when they last
read it, or (`asked again`) they read it anew.
"""

import argparse
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks._paired import main
from benchmarks.size import ROOT
from tasks.tracking.database import make_sqlite
from tasks.tracking.registry_copy import COPY

_TIMES = 9


def measure(arguments: list[str], folder: Path, root: Path = ROOT) -> dict[str, Any]:
    """Run `cpb ARGUMENTS` of the clone in `root` in a folder; return its figures and its exit code."""
    started, before, peak = time.perf_counter(), _cpu_seconds(), 0.0
    with (folder / "out.log").open("ab") as log:
        command = [sys.executable, "-m", "flows.cli", *arguments]
        env = os.environ | {"PYTHONPATH": str(root)}
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log)
        while process.poll() is None:
            peak = max(peak, _tree_pss_mb(process.pid))
            time.sleep(min(0.25, 0.01 + (time.perf_counter() - started) / 10))  # a short command is seen, too
    return {
        "seconds": round(time.perf_counter() - started, 2),
        "cpu_seconds": round(_cpu_seconds() - before, 2),
        "peak_pss_mb": round(peak),
        "exit": process.returncode,
    }


def growth(store: Path) -> dict[str, int]:
    """Return what runs have added to the MLflow store in a folder since its schema was made."""
    with tempfile.TemporaryDirectory() as folder:
        make_sqlite(Path(folder) / "mlflow.db")
        empty_bytes, empty_rows = _size(Path(folder) / "mlflow.db")
    used, rows = _size(store / "mlflow.db")
    files = [path for path in (store / "artifacts").rglob("*") if path.is_file()]
    return {
        "database_bytes": used - empty_bytes,
        "database_rows": rows - empty_rows,
        "artifact_files": len(files),
        "artifact_bytes": sum(path.stat().st_size for path in files),
    }


def _size(database: Path) -> tuple[int, int]:
    """Return the bytes of a SQLite file's used pages, and the rows of all its tables."""
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as db:
        pages, free, size = (
            db.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = sum(db.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in tables)
    return (pages - free) * size, rows


def _cpu_seconds() -> float:
    """Processor time of all processes that were waited for."""
    times = os.times()
    return times.children_user + times.children_system


def _tree_pss_mb(pid: int) -> float:
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0.0
    total = 0.0
    for process in family:
        try:
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
        except OSError:  # ended between the listing and the look
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def demo(args: argparse.Namespace) -> dict[str, Any]:
    """`cpb demo` from nothing, then again with everything done."""
    with tempfile.TemporaryDirectory() as folder:
        return {name: measure(["demo"], Path(folder)) for name in ("first", "again")}


def commands(args: argparse.Namespace) -> dict[str, Any]:
    """Short commands, once the champions have forecast."""
    asked = {"forecast": ["forecast", "--source", "sim", "--offline"], "champions": ["champions"]}
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for first in (["demo"], asked["forecast"]):
            measure(first, folder)
        for command, words in asked.items():
            rows[command] = _median([measure(words, folder) for _ in range(_TIMES)])
            again = []
            for _ in range(_TIMES):
                (folder / "data" / COPY).unlink()
                again.append(measure(words, folder))
            rows[f"{command}, asked again"] = _median(again)
        misspelt = ["forecast", "BTX", "1h", "--source", "sim"]
        rows["forecast of a misspelt coin"] = _median([measure(misspelt, folder) for _ in range(_TIMES)])
    return rows


def _median(runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: median(run[name] for run in runs) for name in runs[0]}


def train_all(args: argparse.Namespace) -> dict[str, Any]:
    """Coins (all 20) and timeframes (both) of a mirror with a preset: as a night trains them, and what it adds."""
    if not args.source:
        raise SystemExit("train-all needs --source FOLDER")
    arguments = ["train-all", "--source", str(Path(args.source).resolve()), "--preset", args.preset]
    for option in ("coins", "timeframes", "as_of"):
        if value := getattr(args, option):
            arguments += [f"--{option.replace('_', '-')}", value]
    runs: dict[Path, list[dict[str, Any]]] = {ROOT: []} | (
        {args.against.resolve(): []} if args.against else {}
    )
    for pair in range(args.pairs if args.against else 1):
        for root in list(runs)[:: -1 if pair % 2 else 1]:
            with tempfile.TemporaryDirectory() as folder:
                figures = measure(arguments, Path(folder), root)
                runs[root].append(figures | growth(Path(folder) / "mlruns"))
    here, there = runs[ROOT], [*runs.values()][-1]
    figures = _median(here)
    ratios = {
        name: median(a[name] / b[name] for a, b in zip(here, there, strict=True))
        for name in figures
        if name != "exit"
    }
    return {"train-all": figures} | ({"ratio": ratios} if args.against else {})


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--source", help="mirror folder, for train-all")
    parser.add_argument("--as-of")
    parser.add_argument("--coins", help="for train-all, as in BTC,ETH; default: all 20")
    parser.add_argument("--timeframes", help="for train-all; default: both")
    parser.add_argument("--preset", default="smoke", help="for train-all; default: smoke")
    parser.add_argument(
        "--against", type=Path, help="for train-all: another clone, run in turn with this one"
    )
    parser.add_argument("--pairs", type=int, default=3)


if __name__ == "__main__":
    main(
        "pipeline",
        {"demo": demo, "commands": commands, "train-all": train_all},
        options=options,
    )
