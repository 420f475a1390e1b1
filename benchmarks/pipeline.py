"""The whole job as a user runs it: wall time, CPU seconds, and the peak memory of all its processes together.

python -m benchmarks.pipeline --only demo
python -m benchmarks.pipeline --only train-all --source FOLDER --as-of 2025-06-06 [--timeframes 1h]
python -m benchmarks.pipeline --only train-all ... --against CLONE --pairs 3

With `--against`, the code in another clone runs the same command, one after the other in turn (A B, B A, ..), each in
an empty folder and with the same packages; the ratios are within each pair. Memory is the sum of the processes'
proportional set sizes (`Pss` of proc(5), smaps_rollup), in which pages that several share count once.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks._paired import main, seconds
from benchmarks.size import ROOT

FIGURES = ("seconds", "cpu_seconds", "peak_pss_mb")


def measure(arguments: list[str], folder: Path, root: Path) -> dict[str, Any]:
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
        "seconds": round(time.perf_counter() - started, 2), "cpu_seconds": round(_cpu_seconds() - before, 1),
        "peak_pss_mb": round(peak), "exit": process.returncode,
    }  # fmt: skip


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


def demo(args: argparse.Namespace, root: Path) -> dict[str, Any]:
    """`cpb demo` from nothing, then again with everything done."""
    with tempfile.TemporaryDirectory() as folder:
        return {name: measure(["demo"], Path(folder), root) for name in ("first", "again")}


def train_all(args: argparse.Namespace, root: Path) -> dict[str, Any]:
    """All 20 coins, five architectures, preset `smoke`, from a mirror."""
    if not args.source:
        raise SystemExit("train-all needs --source FOLDER")
    arguments = ["train-all", "--source", str(Path(args.source).resolve()), "--preset", "smoke"]
    arguments += ["--as-of", args.as_of] if args.as_of else []
    arguments += ["--timeframes", args.timeframes] if args.timeframes else []
    with tempfile.TemporaryDirectory() as folder:
        return {"train-all": measure(arguments, Path(folder), root)}


def against(other: Path, pairs: int, run: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Run both clones in turn; return the median figures of each, and the median ratio of this one to the other."""
    found: dict[Path, list[dict[str, Any]]] = {ROOT: [], other: []}
    for number in range(pairs):
        for root in (ROOT, other) if number % 2 else (other, ROOT):
            found[root].append(run(root))
    return {
        f"{part}, {name}": {
            "here": median(one[part][name] for one in found[ROOT]),
            "there": median(one[part][name] for one in found[other]),
            "ratio": round(
                median(a[part][name] / b[part][name] for a, b in zip(*found.values(), strict=True)), 3
            ),
        }
        for part in found[ROOT][0]
        for name in FIGURES
    }


def compared(run: Callable[[argparse.Namespace, Path], dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """A part that runs here alone, or with `--against` in both clones."""

    def part(args: argparse.Namespace) -> dict[str, Any]:
        if args.against:
            return against(args.against.resolve(), args.pairs, lambda root: run(args, root))
        return run(args, ROOT)

    return part


def help_page(args: argparse.Namespace) -> dict[str, float]:
    """`cpb --help`, median of nine."""
    command = [Path(sys.executable).with_name("cpb"), "--help"]
    spent = [seconds(lambda: subprocess.run(command, capture_output=True, check=True)) for _ in range(9)]
    return {"median_seconds": round(median(spent), 3)}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--source", help="mirror folder, for train-all")
    parser.add_argument("--as-of")
    parser.add_argument("--timeframes", help="for train-all; default: both")
    parser.add_argument("--against", type=Path, help="another clone, run in turn with this one")
    parser.add_argument("--pairs", type=int, default=3)


if __name__ == "__main__":
    main(
        "pipeline",
        {"help": help_page, "demo": compared(demo), "train-all": compared(train_all)},
        options=options,
    )
