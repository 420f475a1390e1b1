"""Sixty nights in a few minutes: `python -m benchmarks.nights [--nights 60] [--keep 14] [--json]`.

Does what is stored stay level when a machine is left running? Each night runs the real flows in this process on
simulated candles (2 coins x 1h x 5 architectures): `train-all`, then `forecast`, which scores what has come due, then
the pruning of a nightly run. `as_of` moves by a day, and `since` with it, so that what a night trains on keeps its
size. Between night and pruning the rows that the night wrote are dated to the simulated day, because MLflow takes
times from the clock; nothing else is pretended.

Exit code 1 where anything grows by more than 100 kB a week from night `--level-from` on.
"""

import argparse
import json
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

FIRST = datetime(2025, 1, 1, tzinfo=UTC)
SPAN = timedelta(days=120)
LIMIT_BYTES = 100_000
"""Growth that a week may bring."""
OPTIONS: dict[str, Any] = {
    "coins": "BTC,ETH", "timeframes": "1h", "preset": "smoke", "source": "sim", "overrides": {"epochs": 2},
}  # fmt: skip
SIZES = ("database", "artifacts", "store")


@contextmanager
def training_in_this_process() -> Iterator[None]:
    """Train and judge without processes of their own, which would take longer to start than their work takes."""
    from tasks.running.resident import Resident

    def call(resident: Resident, order: dict[str, Any], *_: Any) -> Any:
        answers: list[Any] = []
        module = import_module(resident.module)
        module.serve(_OneOrder(order, answers))
        return answers[0]

    before = Resident.call
    Resident.call = call  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Resident.call = before  # type: ignore[method-assign]


@dataclass
class _OneOrder:
    """What a resident's module gets in place of `tasks.running.resident.Orders`."""

    order: dict[str, Any]
    answers: list[Any]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield self.order

    def answer(self, value: object = None) -> None:
        self.answers.append(value)


def night(number: int, keep: int, **options: Any) -> dict[str, Any]:
    """Run one night and return its figures."""
    from flows.forecast import run_forecast
    from flows.runner import Runner
    from flows.train_all import run_train_all
    from schemas.run import RunSpec
    from schemas.scope import ForecastSpec, ScopeSpec, home
    from tasks.tracking.prune import prune

    today = FIRST + timedelta(days=number)
    span = {"since": f"{today - SPAN:%Y-%m-%d}", "as_of": f"{today:%Y-%m-%d}"}
    spec = RunSpec(**OPTIONS | span | options, warm_start="champion")
    said: list[str] = []
    began, clock = time.time(), time.perf_counter()
    summary = run_train_all(spec, Runner(), said.append)
    scope = ForecastSpec(**{name: getattr(spec, name) for name in ScopeSpec.model_fields})
    forecast = run_forecast(scope, Runner(), said.append)
    if summary.failures or forecast["exit"]:
        raise RuntimeError(f"night {number} is not complete: {said}")
    worked = time.perf_counter()
    date_rows(began, today + timedelta(hours=6, minutes=30))
    report = prune(home(), dry_run=False, now=today + timedelta(hours=7), nights=keep)
    return {
        "night": number,
        **sizes(),
        "pruned_runs": report.runs,
        "scored": forecast["scored"],
        "seconds": worked - clock,
        "prune_seconds": time.perf_counter() - worked,
    }


def date_rows(since: float, moment: datetime) -> None:
    """Date what MLflow's database got since `since` to `moment`."""
    from tasks.tracking.database import sqlite_path
    from tasks.tracking.mlflow_store import open_store

    database = sqlite_path(open_store().uri)
    assert database is not None
    first, at = int(since * 1000) - 1, int(moment.timestamp() * 1000)
    with closing(sqlite3.connect(database)) as connection, connection:
        for table, column in (
            ("runs", "start_time"),
            ("runs", "end_time"),
            ("model_versions", "creation_time"),
        ):
            connection.execute(f"UPDATE {table} SET {column} = ? WHERE {column} >= ?", (at, first))


def sizes() -> dict[str, Any]:
    """Return bytes of database, artifacts, store and the store's trees, and the number of runs and versions."""
    from schemas.scope import home
    from tasks.tracking.database import sqlite_path
    from tasks.tracking.mlflow_store import open_store

    database = sqlite_path(open_store().uri)
    assert database is not None
    with closing(sqlite3.connect(database)) as connection:
        rows = {
            t: connection.execute(f"SELECT count(*) FROM {t}").fetchone()[0]
            for t in ("runs", "model_versions")
        }
    return {
        "database": sum(f.stat().st_size for f in database.parent.glob(f"{database.name}*")),
        "artifacts": tree_size(database.parent / "artifacts"),
        "store": tree_size(home()),
        "trees": trees(home()),
        "runs": rows["runs"],
        "versions": rows["model_versions"],
    }


def tree_size(folder: Path) -> int:
    """Return the bytes of all files below a folder; what is linked several times counts once, as on the disk."""
    found = {(s.st_dev, s.st_ino): s.st_size for f in folder.rglob("*") if f.is_file() for s in [f.lstat()]}
    return sum(found.values())


def trees(home: Path) -> dict[str, int]:
    """Return the bytes of each folder of the simulator's home."""
    return {
        f.name: tree_size(f) if f.is_dir() else f.stat().st_size for f in sorted((home / "sim").iterdir())
    }


def growth(rows: list[dict[str, Any]], first: int) -> dict[str, float]:
    """Return bytes a week of each size and tree: the slope of a line through the nights from `first` on."""
    level = [
        r | {f"store: {tree}": size for tree, size in r["trees"].items()} for r in rows if r["night"] >= first
    ]
    names = (*SIZES, *(name for name in level[-1] if name.startswith("store: ")))
    return {name: weekly([r["night"] for r in level], [r.get(name, 0) for r in level]) for name in names}


def weekly(nights: list[int], values: list[float]) -> float:
    """Return the slope of the least-squares line per seven nights."""
    import numpy as np

    return 7 * float(np.polyfit(nights, values, 1)[0])


def simulate(nights: int, keep: int, show: Any = None, **options: Any) -> list[dict[str, Any]]:
    """Run the nights in the store and home of the environment, and return the figures of each."""
    rows = []
    with training_in_this_process():
        for number in range(1, nights + 1):
            rows.append(night(number, keep, **options))
            if show:
                show(rows[-1])
    return rows


def _show(row: dict[str, Any]) -> None:
    kb = "  ".join(f"{name} {row[name] / 1000:7,.0f} kB" for name in SIZES)
    print(
        f"night {row['night']:3}  {kb}  runs {row['runs']:4}  versions {row['versions']:3}  "
        f"pruned {row['pruned_runs']:3}  {row['seconds']:5.1f} s + {row['prune_seconds']:.2f} s",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nights", type=int, default=60)
    parser.add_argument("--keep", type=int, default=14, help="nights that are kept whole")
    parser.add_argument("--level-from", type=int, default=20, help="night from which sizes must stay level")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with TemporaryDirectory() as folder:
        os.environ |= {
            "CPB_HOME": f"{folder}/data",
            "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlruns/mlflow.db",
        }
        os.chdir(folder)
        rows = simulate(asked.nights, asked.keep, None if asked.json else _show)
        os.chdir("/")
    found = growth(rows, asked.level_from)
    seconds = {name: _times(rows, name, asked.level_from) for name in ("seconds", "prune_seconds")}
    if asked.json:
        print(json.dumps({"nights": rows, "bytes_a_week": found, "medians": seconds}))
    else:
        print(f"growth a week from night {asked.level_from} on, kB:")
        for name, size in found.items():
            print(f"{name:>20}: {size / 1000:+8.1f}")
        for name, (early, late) in seconds.items():
            print(
                f"{name:>20}: median {early:.1f} in the first half of these nights, {late:.1f} in the second"
            )
    return int(max(found[name] for name in SIZES) > LIMIT_BYTES)


def _times(rows: list[dict[str, Any]], name: str, first: int) -> tuple[float, float]:
    """Return the medians of both halves of the nights from `first` on."""
    values = [r[name] for r in rows if r["night"] >= first]
    half = len(values) // 2
    return median(values[:half]), median(values[half:])


if __name__ == "__main__":
    raise SystemExit(main())
