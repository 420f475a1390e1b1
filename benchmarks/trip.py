"""How many files of cpb a reader passes who follows a run: `python -m benchmarks.trip [--table] [-- ARGUMENTS]`.

Runs `cpb train-all` in a folder of its own (one architecture, simulated candles; or what stands after `--`) and counts
the files of cpb in which a function ran, in all threads and processes together. What only an import runs does not
count: the code of modules and classes, and functions that it calls. Benchmarks and tests are no part of cpb.

    to the weights   until the first `model.safetensors` was written
    in all           until the command ended

Which of the driver's files come before the weights differs by a few from run to run, because its threads race
with the trainer.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.size import PRODUCT, ROOT

COMMAND = (
    "train-all --source sim --coins BTC,ETH --timeframes 1h --since 2025-03 --as-of 2025-06-06 --preset smoke "
    "--architectures har"
)
_TRACER = """
import os, sys, threading, time

PLACES = tuple(os.environ["CPB_TRIP_FILES"].split(os.pathsep))
NO_CALLS = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}  # part of the function or module around them
IMPORT = "<frozen importlib._bootstrap>"
seen = set()
log = os.open(os.environ["CPB_TRIP_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
# The clock of the weights' time of change, which ticks a few milliseconds behind the precise one.
CLOCK = getattr(time, "CLOCK_REALTIME_COARSE", time.CLOCK_REALTIME)


def note(frame, event, arg):
    code = frame.f_code
    name = code.co_filename
    if name in seen:
        return
    if not name.startswith(PLACES):
        seen.add(name)
        return
    if not code.co_flags & 1 or code.co_name in NO_CALLS:  # the code of modules and classes has no fast locals
        return
    outer = frame.f_back
    while outer is not None:
        if outer.f_code.co_filename == IMPORT:
            return
        outer = outer.f_back
    seen.add(name)
    os.write(log, f"{time.clock_gettime_ns(CLOCK)} {name}\\n".encode())


threading.settrace(note)
sys.settrace(note)
"""
"""Runs at the start of every Python process of the command, as `sitecustomize`; returns no local trace function, so
that calls alone are seen."""


@dataclass(frozen=True)
class Trip:
    """Files relative to the root, in the order of their first use: up to the weights, and in all."""

    to_the_weights: list[str]
    in_all: list[str]


def follow(command: list[str], folder: Path, root: Path = ROOT) -> Trip:
    """Run a command in an empty folder, with the code in `root`; return the files in which its functions ran.

    Raises:
        SystemExit: it failed, or wrote no weights.
    """
    tracer, log = folder / "tracer", folder / "trip.log"
    tracer.mkdir()
    (tracer / "sitecustomize.py").write_text(_TRACER)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("CPB_", "MLFLOW_"))
    }
    environment |= {
        "PYTHONPATH": f"{tracer}{os.pathsep}{root}",
        "CPB_TRIP_LOG": str(log),
        "CPB_TRIP_FILES": os.pathsep.join(f"{root / name}{os.sep}" for name in PRODUCT),
    }
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    weights = [path.stat().st_mtime_ns for path in folder.rglob("model.safetensors")]
    if not weights:
        raise SystemExit(f"{' '.join(command)} wrote no model.safetensors: there is no trip to count")
    used: dict[str, int] = {}
    calls = (line.split(" ", 1) for line in log.read_text().splitlines())
    for moment, name in sorted(calls, key=lambda call: int(call[0])):
        used.setdefault(Path(name).relative_to(root).as_posix(), int(moment))
    return Trip([name for name, moment in used.items() if moment <= min(weights)], list(used))


def main(argv: list[str] | None = None) -> None:
    """Print both counts, with `--json` all files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--root", type=Path, default=ROOT, help="the clone whose code runs; default: this one"
    )
    parser.add_argument("--json", action="store_true", help="all files, in the order of their first use")
    parser.add_argument("arguments", nargs="*", default=COMMAND.split(), help=f"of cpb; default: {COMMAND}")
    asked = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "flows.cli", *asked.arguments]
        trip = follow(command, Path(folder).resolve(), asked.root.resolve())
    if asked.json:
        print(json.dumps(vars(trip)))
        return
    print(f"to the weights {len(trip.to_the_weights)}, in all {len(trip.in_all)}")


if __name__ == "__main__":
    main()
