"""Trainers left behind by killed runs: `python -m benchmarks.kills [--only PART] [--moments N] [--json]`.

A run is killed with SIGKILL at N moments, evenly over 3 seconds, and its trainer must be gone 2 seconds later.
`slow` is a stand-in for a trainer that imports for 2.5 seconds and then works for ever; moments count from the start
of the run. `real` is `cpb train` on simulated candles; moments count from the start of its trainer, most of them
while that imports torch. Exit code 1 where a trainer was left.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from benchmarks._paired import main
from benchmarks.size import ROOT

MOMENTS, SPAN_S, LIMIT_S = 20, 3.0, 2.0

SLOW_TRAINER = """
import time
time.sleep(2.5)
def serve(requests):
    time.sleep(3600)
"""
RUN = """
import pathlib, sys
from tasks.training import trainers
from tasks.training.trainers import Slots
trainers.TRAINER = "slow_trainer"
trainers.run_trainer(pathlib.Path(sys.argv[1]), Slots((), 1, 1), 3600)
"""
CPB = (
    "flows.cli",
    "train",
    "BTCUSDT",
    "1h",
    "--arch",
    "lstm",
    "--preset",
    "smoke",
    "--max-epochs",
    "100000",
    "--set",
    "patience=100000",
    "--source",
    "sim",
    "--since",
    "2025-01",
    "--as-of",
    "2025-06-06",
)


@dataclass
class Kill:
    """One run that was killed: when, and how long its trainer lived on (None: it was still there after 2 s)."""

    moment_s: float
    trainer_seen: bool
    gone_after_s: float | None


def slow(folder: Path, moments: int) -> list[Kill]:
    (folder / "slow_trainer.py").write_text(SLOW_TRAINER)
    env = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    fleet = folder / "fleet"
    fleet.mkdir()

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", RUN, str(fleet)], cwd=folder, env=env)

    return kills(start, folder, moments)


def real(folder: Path, moments: int) -> list[Kill]:
    outside = ("CPB_", "MLFLOW_TRACKING", "PREFECT_API")
    env = {k: v for k, v in os.environ.items() if not k.startswith(outside)} | {"PYTHONPATH": str(ROOT)}
    log = folder / "run.log"

    def start() -> subprocess.Popen[bytes]:
        with log.open("wb") as output:
            run = subprocess.Popen(
                [sys.executable, "-m", *CPB], cwd=folder, env=env, stdout=output, stderr=output
            )
        while not trainers_in(folder):
            if run.poll() is not None:
                raise RuntimeError(f"`cpb train` ended before it trained: {log.read_text()}")
            time.sleep(0.02)
        return run

    return kills(start, folder, moments)


def kills(start: Callable[[], subprocess.Popen[bytes]], folder: Path, moments: int) -> list[Kill]:
    return [kill(start, folder, SPAN_S * i / max(1, moments - 1)) for i in range(moments)]


def kill(start: Callable[[], subprocess.Popen[bytes]], folder: Path, moment: float) -> Kill:
    run = start()
    time.sleep(moment)
    seen = bool(trainers_in(folder))
    run.kill()
    run.wait()
    last_seen = killed = time.monotonic()
    while time.monotonic() - killed < LIMIT_S:  # to the end: one that was being started comes up late
        if trainers_in(folder):
            last_seen = time.monotonic()
        time.sleep(0.02)
    left = trainers_in(folder)
    for trainer in left:
        trainer.kill()
    return Kill(moment, seen, None if left else last_seen - killed)


def trainers_in(folder: Path) -> list[psutil.Process]:
    """The running trainers that were started in `folder`."""
    trainers = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if "--multiprocessing-fork" in (process.info["cmdline"] or []) and process.info["status"] != "zombie":
            with suppress(psutil.Error):
                trainers += [process] if process.cwd() == str(folder) else []
    return trainers


def part(run: Callable[[Path, int], list[Kill]]) -> Callable[[argparse.Namespace], dict[str, float]]:
    def counted(args: argparse.Namespace) -> dict[str, float]:
        with TemporaryDirectory() as folder:
            killed = run(Path(folder).resolve(), args.moments)
        return {
            "kills": len(killed),
            "with_a_trainer": sum(kill.trainer_seen for kill in killed),
            "trainers_left": sum(kill.gone_after_s is None for kill in killed),
            "longest_s": max((kill.gone_after_s or 0.0 for kill in killed), default=0.0),
        }

    return counted


if __name__ == "__main__":
    results = main(
        "kills",
        {"slow": part(slow), "real": part(real)},
        options=lambda parser: parser.add_argument("--moments", type=int, default=MOMENTS),
    )
    sys.exit(any(result["trainers_left"] for result in results.values()))
