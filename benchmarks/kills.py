"""Trainers left behind by killed runs: `python -m benchmarks.kills [--only PART] [--moments N] [--json]`.

A run is killed with SIGKILL at N moments, evenly over 3 seconds, and its trainer must be gone 2 seconds later.
`slow` is a stand-in for a trainer that imports for 2.5 seconds and then works for ever; moments count from the start
of the run. `real` is `cpb train` on simulated candles; moments count from the start of its trainer, most of them
while that imports torch. Exit code 1 where a trainer was left.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

MOMENTS, SPAN_S, LIMIT_S = 20, 3.0, 2.0

SLOW_TRAINER = """
import time
time.sleep(2.5)
def serve(orders):
    time.sleep(3600)
"""
RUN = """
import pathlib, sys
from tasks.training import runner
from tasks.training.devices import Slots
runner.TRAINER = "slow_trainer"
runner.run_trainer(pathlib.Path(sys.argv[1]), Slots((), 1, 1), 3600)
"""
CPB = ("flows.cli", "train", "BTCUSDT", "1h", "--arch", "lstm", "--preset", "smoke", "--max-epochs", "100000",
       "--patience", "100000", "--source", "sim", "--since", "2025-01", "--as-of", "2025-06-06")  # fmt: skip


@dataclass
class Kill:
    """One run that was killed: when, and how long its trainer lived on (None: it was still there after 2 s)."""

    moment_s: float
    trainer_seen: bool
    gone_after_s: float | None


def slow(folder: Path, moments: int) -> list[Kill]:
    (folder / "slow_trainer.py").write_text(SLOW_TRAINER)
    env = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{Path(__file__).parents[1]}"}
    fleet = folder / "fleet"
    fleet.mkdir()

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", RUN, str(fleet)], env=env)

    return [kill(start, folder, moment) for moment in spread(moments)]


def real(folder: Path, moments: int) -> list[Kill]:
    env = {
        k: v for k, v in os.environ.items() if not k.startswith(("CPB_", "MLFLOW_TRACKING", "PREFECT_API"))
    }
    env |= {"PYTHONPATH": str(Path(__file__).parents[1])}
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

    return [kill(start, folder, moment) for moment in spread(moments)]


def spread(moments: int) -> list[float]:
    return [SPAN_S * i / max(1, moments - 1) for i in range(moments)]


def kill(start: Callable[[], subprocess.Popen[bytes]], folder: Path, moment: float) -> Kill:
    run = start()
    time.sleep(moment)
    seen = bool(trainers_in(folder))
    run.kill()
    run.wait()
    killed = time.monotonic()
    last_seen = killed
    while time.monotonic() - killed < LIMIT_S:  # to the end: one that was being started comes up late
        if trainers_in(folder):
            last_seen = time.monotonic()
        time.sleep(0.02)
    left = trainers_in(folder)
    for trainer in left:
        trainer.kill()
    return Kill(moment, seen, None if left else last_seen - killed)


def trainers_in(folder: Path) -> list[psutil.Process]:
    """The running `python -m MODULE FOLDER` whose last argument lies in `folder`."""
    found = []
    for one in psutil.process_iter(["cmdline", "status"]):
        command = one.info["cmdline"] or []
        if "-m" in command and command[-1].startswith(str(folder)) and one.info["status"] != "zombie":
            found.append(one)
    return found


PARTS = {"slow": slow, "real": real}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", choices=list(PARTS))
    parser.add_argument("--moments", type=int, default=MOMENTS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = {}
    for name in [options.only] if options.only else list(PARTS):
        with TemporaryDirectory() as folder:
            kills = PARTS[name](Path(folder).resolve(), options.moments)
        results[name] = {
            "kills": len(kills),
            "with_a_trainer": sum(k.trainer_seen for k in kills),
            "trainers_left": sum(k.gone_after_s is None for k in kills),
            "longest_s": max((k.gone_after_s or 0.0 for k in kills), default=0.0),
        }
    left = sum(int(result["trainers_left"]) for result in results.values())
    if options.json:
        print(json.dumps(results | {"exit": int(left > 0)}))
    else:
        for name, result in results.items():
            print(name, *(f"{key}={value:.3g}" for key, value in result.items()))
    return int(left > 0)


if __name__ == "__main__":
    sys.exit(main())
