"""How fast and how large training is: the fleet against single models (benchmarks/naive.py).

    python -m benchmarks.training [--json]

Sizes, windows and batch sizes are those of the seed presets; `--rows`, `--members`, `--epochs` and `--repeats` trade
time for steadiness.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks import naive
from benchmarks._fleet import train
from benchmarks._paired import main, seconds
from benchmarks._walks import walks
from tasks.training.trainers import MALLOC

SEEDS = ("transformer", "gru", "lstm")


def cpu(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Wall seconds of the same epochs over the same windows: a loop, model after model, and the fleet.

    All contenders run once per turn, in an order that turns round, and a ratio is taken within its turn: the median,
    then the range over the turns.
    """
    out: dict[str, dict[str, Any]] = {}
    for architecture in SEEDS:
        series = walks(args.members, args.rows)
        runs: dict[str, Callable[[], object]] = {}
        for name, autocast in (("fp32", False), ("bf16", True)):
            runs[f"loop {name}"] = partial(
                naive.train_naive, series, architecture, epochs=args.epochs, autocast=autocast
            )
            runs[f"fleet {name}"] = partial(
                train,
                series,
                architecture,
                epochs=args.epochs,
                workers=len(os.sched_getaffinity(0)),
                mixed_precision="bf16" if autocast else "off",
            )
        turns = [
            {name: seconds(runs[name]) for name in (list(runs) if turn % 2 else reversed(runs))}
            for turn in range(args.repeats)
        ]
        out[f"{architecture}, s"] = {name: statistics.median(turn[name] for turn in turns) for name in runs}
        for name in ("fp32", "bf16"):
            ratios = [turn[f"loop {name}"] / turn[f"fleet {name}"] for turn in turns]
            out[f"{architecture}, loop / fleet {name}"] = {
                "ratio": statistics.median(ratios),
                "least": min(ratios),
                "most": max(ratios),
            }
    return out


PARTS = {"cpu": cpu}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--members", type=int, default=8, help="models trained")
    parser.add_argument("--rows", type=int, default=1000, help="candles per model")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3, help="turns of all contenders")


if __name__ == "__main__":
    # both sides of a pair run with the allocator of a fleet's process
    if not MALLOC.items() <= os.environ.items():
        again = [sys.executable, "-m", "benchmarks.training", *sys.argv[1:]]
        os.execve(sys.executable, again, os.environ | MALLOC)
    main("training", PARTS, options=options)
