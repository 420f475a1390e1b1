"""The whole job as a user runs it: wall time, and the peak memory of all its processes together.

python -m benchmarks.pipeline --only demo
python -m benchmarks.pipeline --only train-all --source FOLDER --as-of 2025-06-06
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import psutil


def measure(arguments: list[str], folder: Path) -> dict[str, Any]:
    """Run `cpb ARGUMENTS` in `folder`; return seconds, exit code and peak RSS of the process tree in MB."""
    started, peak = time.perf_counter(), 0.0
    with (folder / "out.log").open("ab") as log:
        command = [sys.executable, "-m", "flows.cli", *arguments]
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        while process.poll() is None:
            peak = max(peak, _tree_rss(process.pid))
            time.sleep(0.1)
    seconds = time.perf_counter() - started
    return {"seconds": round(seconds, 2), "exit": process.returncode, "peak_rss_mb": round(peak / 2**20)}


def _tree_rss(pid: int) -> float:
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0.0
    total = 0.0
    for process in family:
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:  # ended between the listing and the look
            continue
    return total


def demo() -> dict[str, Any]:
    """`cpb demo` from nothing, then again with everything done."""
    with tempfile.TemporaryDirectory() as folder:
        first = measure(["demo"], Path(folder))
        return {"first": first, "again": measure(["demo"], Path(folder))}


def train_all(source: str, as_of: str | None) -> dict[str, Any]:
    """All 20 coins x {15m, 1h}, five architectures, preset `smoke`, from a mirror."""
    arguments = ["train-all", "--source", source, "--preset", "smoke", *(["--as-of", as_of] if as_of else [])]
    with tempfile.TemporaryDirectory() as folder:
        return measure(arguments, Path(folder))


def help_page(runs: int = 9) -> dict[str, Any]:
    """`cpb --help`, median of several."""
    seconds = []
    for _ in range(runs):
        started = time.perf_counter()
        subprocess.run([Path(sys.executable).with_name("cpb"), "--help"], capture_output=True, check=True)
        seconds.append(time.perf_counter() - started)
    return {"median_seconds": round(median(seconds), 3), "runs": runs}


def main() -> None:
    """Run the parts and print a line each, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["demo", "train-all", "help"])
    parser.add_argument("--source", help="mirror folder or URL, for train-all")
    parser.add_argument("--as-of")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    if options.only in (None, "help"):
        results["help"] = help_page()
    if options.only in (None, "demo"):
        results["demo"] = demo()
    if options.only == "train-all" or (options.only is None and options.source):
        if not options.source:
            parser.error("train-all needs --source")
        results["train-all"] = train_all(str(Path(options.source).resolve()), options.as_of)
    if options.json:
        print(json.dumps(results))
    else:
        for name, result in results.items():
            print(f"{name}: {result}")


if __name__ == "__main__":
    main()
