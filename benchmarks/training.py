"""How fast and how large training is: the fleet against single models (benchmarks/naive.py).

    python -m benchmarks.training                      # all parts
    python -m benchmarks.training --only proxy --json  # {"proxy": {"transformer": …, "gru": …, "lstm": …}}

Sizes, windows and batch sizes are those of the seed presets unless a part says otherwise; `--rows`,
`--members`, `--epochs` and `--repeats` trade time for steadiness.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks import _kernels, naive
from benchmarks._fleet import fleet_step, train
from benchmarks._paired import main, seconds
from benchmarks._walks import walk, walks
from cpbmodels.device.monitor import OpLog
from tasks.training.runner import MALLOC

SEEDS = ("transformer", "gru", "lstm")
TINY = {"hidden_dim": 8, "n_heads": 2, "ff_dim": 32, "batch_size": 2}


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
                train, series, architecture, epochs=args.epochs, workers=len(os.sched_getaffinity(0)),
                mixed_precision="bf16" if autocast else "off",
            )  # fmt: skip
        turns = [
            {name: seconds(runs[name]) for name in (list(runs) if turn % 2 else reversed(runs))}
            for turn in range(args.repeats)
        ]
        out[f"{architecture}, s"] = {name: statistics.median(turn[name] for turn in turns) for name in runs}
        for name in ("fp32", "bf16"):
            ratios = [turn[f"loop {name}"] / turn[f"fleet {name}"] for turn in turns]
            out[f"{architecture}, loop / fleet {name}"] = {
                "ratio": statistics.median(ratios), "least": min(ratios), "most": max(ratios)
            }  # fmt: skip
    return out


def proxy(args: argparse.Namespace) -> dict[str, float]:
    """Overhead alone, as on a GPU: 40 members of width 8, batch 2; one fleet step against 40 steps of the loop."""
    torch.set_num_threads(1)
    out = {}
    for architecture in SEEDS:
        ways = (_naive_steps(architecture, 40), fleet_step(architecture, 40, **TINY))
        turns = [[seconds(way) for way in ways] for _ in range(max(args.repeats, 9) + 1)]
        out[architecture] = round(statistics.median(slow / fast for slow, fast in turns[1:]), 1)
    return out


def _naive_steps(architecture: str, steps: int) -> Callable[[], None]:
    seed = naive.RECIPES[architecture]
    heads = min(seed.heads, 2)  # one where the preset has one: the same kind of attention as the fleet's
    recipe = naive.Recipe(8, seed.layers, heads, 2, seed.dropout, seed.weight_decay, seed.adamw)
    model, optimizer = naive.build(architecture, recipe)
    x, y = naive.windows(walk(400, seed=0), "train")

    def run() -> None:
        for rows in torch.randperm(len(x))[: steps * recipe.batch].split(recipe.batch):
            naive.train_step(model, optimizer, x[rows], y[rows])

    return run


def launches(args: argparse.Namespace) -> dict[str, dict[str, int]]:
    """GPU kernels of one step of 40 members at seed size and of one part of a validation, by the rules of _kernels.py;
    operators among them that would make the host wait for the device: 0."""
    out = {}
    for architecture in SEEDS:
        out[architecture] = {
            "step": _kernels.launches(architecture).total(),
            "validation_part": _kernels.validation_launches(architecture).total(),
            "host_syncs_in_an_epoch": _syncs(architecture),
        }
    return out


def _syncs(architecture: str) -> int:
    """Syncs of an epoch of 12 steps beyond those of an epoch of 4: what a step costs, not what an epoch ends with."""
    counts = []
    for steps in (4, 12):
        with OpLog() as log:
            train(walks(2, 400), architecture, epochs=1, steps_per_epoch=steps, **TINY)
        counts.append(log.syncs)
    return counts[1] - counts[0]


PARTS = {"cpu": cpu, "proxy": proxy, "launches": launches}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--members", type=int, default=8, help="models trained in the part cpu")
    parser.add_argument("--rows", type=int, default=1000, help="candles per model in the part cpu")
    parser.add_argument("--epochs", type=int, default=1, help="epochs in the part cpu")
    parser.add_argument("--repeats", type=int, default=3, help="pairs per measurement")


if __name__ == "__main__":
    if (
        not MALLOC.items() <= os.environ.items()
    ):  # both sides of a pair run with the allocator of a fleet's process
        again = [sys.executable, "-m", "benchmarks.training", *sys.argv[1:]]
        os.execve(sys.executable, again, os.environ | MALLOC)
    main("training", PARTS, options=options)
