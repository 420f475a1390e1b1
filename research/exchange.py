"""What a series of the whole exchange costs, from 80 to 1,600 series: `python -m research.exchange [--json]`.

    python -m research.exchange --symbols 20,100,400 --timeframes 15m,1h,4h,1d [--out ramp.json]

Each rung of the ramp is one `cpb train-all --source sim --coins exchange --number-assets N` in a process and a home of
its own: ingest, features, plan, training (`har`, `robust-har`), judging, logging, promotion, packaging and the
champions' forecasts. The stages are the flow's own steps, timed where the flow calls them; nothing is left out or run
twice. Two years of candles, because 740 are what daily candles need to be judged (`--since`, `--as-of`). The simulator
makes its files in the driver, so its seconds are part of ingest's.

Of each stage: wall seconds, CPU seconds (with those of the trainers' processes) and the driver's largest memory, and
the first two per series. `flat` compares the CPU seconds a series of the largest rung with those of the smallest rung
of 40 series or more. Bytes of MLflow's database are given for each of its tables and indexes, per member.
"""

import argparse
import json
import os
import resource
import sqlite3
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ARCHITECTURES = "har,robust-har"
_SAMPLE_S = 0.05
_LEAST_SERIES = 40
"""Series from which on the cost of a series must be level: below, what a run costs once weighs too much."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Cost:
    """What a stage has cost so far: seconds, and bytes of memory at its largest."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak: int = 0
    calls: int = 0


class Meter:
    """Seconds and memory of this process by stage; a stage within another stage is taken out of it."""

    def __init__(self) -> None:
        self.costs: dict[str, Cost] = defaultdict(Cost)
        self._open: list[str] = []
        self._ended = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add what the block costs to a stage."""
        outer = self._open[-1] if self._open else None
        self._open.append(name)
        wall, cpu = time.perf_counter(), _cpu_seconds()
        try:
            yield
        finally:
            self._open.pop()
            spent = time.perf_counter() - wall, _cpu_seconds() - cpu
            for stage, sign in ((name, 1), (outer, -1)):
                if stage:
                    self.costs[stage].wall_s += sign * spent[0]
                    self.costs[stage].cpu_s += sign * spent[1]
            self.costs[name].calls += 1
            self._note(name)

    def _watch(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            if self._open:
                self._note(self._open[-1])

    def _note(self, name: str) -> None:
        self.costs[name].peak = max(self.costs[name].peak, _resident())


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def run_rung(symbols: int, options: dict[str, Any]) -> dict[str, Any]:
    """Run `train-all` on so many symbols in this process and return its figures; `CPB_HOME` is empty."""
    from flows.runner import Runner
    from flows.train_all import run_train_all
    from schemas.run import RunSpec
    from tasks import evaluate
    from tasks.tracking.mlflow_store import open_store

    meter = Meter()

    class Timed(Runner):
        def one(self, step: Any, *args: Any) -> Any:
            with meter.stage(step.name):
                return super().one(step, *args)

        def each(
            self, step: Any, calls: Sequence[tuple[Any, ...]], unit: str = "", workers: int | None = None
        ) -> list[Any]:
            with meter.stage(step.name):
                return super().each(step, calls, unit, workers)

    log_members = evaluate.log_members  # type: ignore[attr-defined]

    def logging(*args: Any, **named: Any) -> Any:
        with meter.stage("logging"):
            return log_members(*args, **named)

    evaluate.log_members = logging  # type: ignore[attr-defined]
    open_store()
    empty = sum(database_bytes().values())
    spec = RunSpec(
        source="sim", coins="exchange", number_assets=symbols, architectures=ARCHITECTURES, **options
    )
    with meter.stage("the rest"):
        summary = run_train_all(spec, Timed(), lambda line: print(line, file=sys.stderr))
    found = database_bytes()
    series, members = summary.series, summary.members
    return {
        "symbols": symbols,
        "series": series,
        "members": members,
        "champions": summary.champions,
        "forecast_rows": summary.forecast_rows,
        "failures": len(summary.failures),
        "stages": {
            name: {
                "wall_s": round(cost.wall_s, 2),
                "cpu_s": round(cost.cpu_s, 2),
                "wall_ms_a_series": round(1e3 * cost.wall_s / series, 2),
                "cpu_ms_a_series": round(1e3 * cost.cpu_s / series, 2),
                "peak_mb": round(cost.peak / 1e6),
            }
            for name, cost in meter.costs.items()
        },
        "driver_peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3),
        "trainer_peak_mb": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3),
        "database_bytes_a_member": round((sum(found.values()) - empty) / members),
        "database": {name: round(size / members) for name, size in found.items() if size / members > 100},
        "home_mb": round(_size(Path(os.environ["CPB_HOME"])) / 1e6),
    }


def database_bytes() -> dict[str, int]:
    """Return the bytes of each table and index of MLflow's SQLite database, the largest first."""
    from tasks.tracking.database import sqlite_path
    from tasks.tracking.mlflow_store import open_store

    path = sqlite_path(open_store().uri)
    assert path is not None
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        rows = connection.execute("SELECT name, sum(pgsize) FROM dbstat GROUP BY name ORDER BY 2 DESC")
        return dict(rows.fetchall())


def _size(folder: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())


def rung_in_its_own_process(symbols: int, options: dict[str, Any], below: Path | None) -> dict[str, Any]:
    """Run one rung in an empty folder and return its figures, with the seconds that importing took."""
    with TemporaryDirectory(dir=below) as folder:
        environment = {name: v for name, v in os.environ.items() if not name.startswith(("MLFLOW_", "CPB_"))}
        root = Path(__file__).parent.parent
        environment |= {"CPB_HOME": f"{folder}/data", "PYTHONPATH": str(root)}
        command = [sys.executable, "-m", "research.exchange", "--rung", str(symbols), json.dumps(options)]
        began = time.perf_counter()
        done = subprocess.run(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
        return json.loads(done.stdout.splitlines()[-1]) | {"seconds": round(time.perf_counter() - began, 1)}


def flatness(rungs: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return, by stage, the CPU seconds a series of the largest rung over those of the smallest rung that counts."""
    counted = [rung for rung in rungs if rung["series"] >= _LEAST_SERIES]
    if len(counted) < 2:
        return {}
    first, last = counted[0]["stages"], counted[-1]["stages"]
    return {
        name: round(last[name]["cpu_ms_a_series"] / first[name]["cpu_ms_a_series"], 3)
        for name in first
        if name in last and first[name]["cpu_ms_a_series"] > 0
    }


def _shown(rungs: Sequence[dict[str, Any]]) -> str:
    """Return the ramp as a table: a line a stage, the rungs side by side."""
    lines = [f"{'':>12}" + "".join(f"{rung['series']:>10} series          " for rung in rungs)]
    lines.append(f"{'stage':>12}" + "   wall s  CPU ms/series  MB" * len(rungs))
    for name in rungs[-1]["stages"]:
        cells = (rung["stages"].get(name) for rung in rungs)
        texts = (
            f"{c['wall_s']:9.1f}{c['cpu_ms_a_series']:14.2f}{c['peak_mb']:6}" if c else " " * 29
            for c in cells
        )
        lines.append(f"{name:>12}" + "".join(texts))
    for key in (
        "seconds",
        "driver_peak_mb",
        "trainer_peak_mb",
        "database_bytes_a_member",
        "home_mb",
        "failures",
    ):
        lines += [f"{key:>24}  " + "  ".join(f"{rung[key]:,}" for rung in rungs)]
    return "\n".join(lines)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--symbols", default="20,100,400")
    parser.add_argument("--timeframes", default="15m,1h,4h,1d")
    parser.add_argument("--since", default="2023-05-15")
    parser.add_argument("--as-of", default="2025-06-06")
    parser.add_argument("--preset", default="smoke")
    parser.add_argument(
        "--below", type=Path, help="folder for the rungs' homes; default: that of temporary files"
    )
    parser.add_argument("--out", type=Path, help="file for the figures as JSON, written after every rung")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rung", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.rung:
        print(json.dumps(run_rung(int(asked.rung[0]), json.loads(asked.rung[1]))))
        return
    options = {name: getattr(asked, name) for name in ("timeframes", "since", "as_of", "preset")}
    rungs: list[dict[str, Any]] = []
    answer: dict[str, Any] = {}
    for symbols in sorted(int(number) for number in asked.symbols.split(",")):
        rungs.append(rung_in_its_own_process(symbols, options, asked.below))
        answer = {**options, "cores": os.cpu_count(), "rungs": rungs, "flat": flatness(rungs)}
        if asked.out:
            asked.out.write_text(json.dumps(answer, indent=1) + "\n")
    print(json.dumps(answer) if asked.json else f"{_shown(rungs)}\nflat: {answer['flat']}")


if __name__ == "__main__":
    main()
