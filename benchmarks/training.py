"""How fast and how large training is: the fleet against single loops (benchmarks/naive.py) and a peer.

    python -m benchmarks.training                      # all parts
    python -m benchmarks.training --only proxy --json  # {"proxy": {"transformer": …, "gru": …, "lstm": …}}

Sizes, windows and batch sizes are those of the seed presets unless a part says otherwise; `--rows`,
`--members`, `--epochs` and `--repeats` trade time for steadiness.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import _kernels, _peer, naive
from benchmarks._fleet import fleet_step, train
from benchmarks._isolated import isolated, peak_mb
from benchmarks._paired import main, paired, seconds
from benchmarks._walks import walk, walks
from cpbmodels.device.placement import OpLog
from tasks.training.runner import MALLOC

SEEDS = ("transformer", "gru", "lstm")
TINY = {"hidden_dim": 8, "n_heads": 2, "ff_dim": 32, "batch_size": 2}
RAMP = (1, 8, 40, 160, 800)


FLEETS = {"fleet fp32": {"mixed_precision": "off"}, "fleet bf16": {"mixed_precision": "bf16"}}
RATIOS = {
    "usual fp32 / fleet bf16": ("usual fp32", "fleet bf16"),
    "usual fp32 / fleet fp32": ("usual fp32", "fleet fp32"),
    "competent fp32 / fleet fp32": ("competent fp32", "fleet fp32"),
    "competent bf16 / fleet bf16": ("competent bf16", "fleet bf16"),
}
"""Which contender by which fleet; the last two are at equal precision against the best single loop."""


def cpu(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Wall seconds of the same epochs over the same windows: every single loop, model after model, and the fleets.

    All contenders run once per turn, in an order that turns round, and a ratio is taken within its turn: the median,
    then the range over the turns.
    """
    out: dict[str, dict[str, Any]] = {}
    for architecture in SEEDS:
        series = walks(args.members, args.rows)
        runs: dict[str, Callable[[], object]] = {
            name: partial(naive.train_naive, series, architecture, epochs=args.epochs, **how)
            for name, how in naive.WAYS.items()
        }
        for name, precision in FLEETS.items():
            runs[name] = partial(
                train, series, architecture, epochs=args.epochs, workers=_cores(), **precision
            )
        turns = [
            {name: seconds(runs[name]) for name in (list(runs) if turn % 2 else reversed(runs))}
            for turn in range(args.repeats)
        ]
        out[f"{architecture}, s"] = {name: statistics.median(turn[name] for turn in turns) for name in runs}
        for label, (slow, fast) in RATIOS.items():
            ratios = [turn[slow] / turn[fast] for turn in turns]
            out[f"{architecture}, {label}"] = {
                "ratio": statistics.median(ratios), "least": min(ratios), "most": max(ratios)
            }  # fmt: skip
    return out


PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "mkldnn_linear", "mkldnn_rnn_layer", "linear")
"""Operators, by the beginning of their names, that multiply matrices: oneDNN's recurrent layers with their gates."""


def profile(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Where a training step's time goes on one core, at equal precision: what stacking could save at most.

    `products`: share of the time within matrix products and recurrent layers, which both ways must do; `bound`: how
    many times faster than the competent loop a step were that did nothing else, at that loop's speed of products.
    """
    torch.set_num_threads(1)
    out: dict[str, dict[str, Any]] = {}
    for architecture in SEEDS:
        for dtype in (torch.float32, torch.bfloat16):
            batch = naive.RECIPES[architecture].batch
            competent = _profiled(
                _competent_step(architecture, autocast=dtype is torch.bfloat16), batch, args.steps
            )
            fleet = _profiled(
                fleet_step(architecture, args.members, compute=dtype), batch * args.members, args.steps
            )
            name = "bf16" if dtype is torch.bfloat16 else "fp32"
            out[f"{architecture}, competent {name}"] = competent
            out[f"{architecture}, fleet {name}"] = fleet | {
                "ratio": competent["us_per_window"] / fleet["us_per_window"], "bound": 1 / competent["products"],
            }  # fmt: skip
    return out


def _competent_step(architecture: str, *, autocast: bool) -> Callable[[], None]:
    recipe = naive.RECIPES[architecture]
    model = naive.build(architecture, recipe, competent=True)
    kind = torch.optim.AdamW if recipe.adamw else torch.optim.Adam
    optimizer = kind(model.parameters(), lr=1e-3, weight_decay=recipe.weight_decay, fused=True)
    x, y = (part[: recipe.batch] for part in naive.windows(walk(1000, seed=0), "train"))

    def run() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            naive.train_step(model, optimizer, x, y)

    return run


def _profiled(step: Callable[[], object], windows: int, steps: int) -> dict[str, float]:
    """Microseconds per window of a step (without the profiler), and the shares of its operators (with it)."""
    for _ in range(3):
        step()
    each = statistics.median(seconds(step) for _ in range(steps))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(steps):
            step()
    times = {one.key.removeprefix("aten::"): one.self_cpu_time_total for one in profiler.key_averages()}
    within = sum(t for name, t in times.items() if name.startswith(PRODUCTS))
    return {"us_per_window": 1e6 * each / windows, "products": within / sum(times.values())}


def neuralforecast(args: argparse.Namespace) -> dict[str, Any]:
    """Windows per CPU-second, one thread: the marginal cost of a step, start-up taken out on both sides."""
    if reason := _peer.missing():
        return {"skipped": reason}
    torch.set_num_threads(1)
    out, frame = {}, _peer.frame(5000)
    for architecture in SEEDS:
        batch, members = naive.RECIPES[architecture].batch, 8
        step = fleet_step(architecture, members, compute=_compute())
        ours, theirs = [], []
        step()
        for _ in range(args.repeats):
            theirs.append(batch / _marginal(lambda n, a=architecture: _peer.fit(a, n, frame)))
            ours.append(batch * members / _marginal(lambda n, s=step: [s() for _ in range(n)], 3, 28))
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        out[architecture] = {
            "ratio": statistics.median(ratios),
            "least": min(ratios),
            "most": max(ratios),
            "fleet": statistics.median(ours),
            "neuralforecast": statistics.median(theirs),
            "unit": "windows/CPU-s",
        }
    return out


def _marginal(run: Callable[[int], object], few: int = 20, many: int = 220) -> float:
    """CPU seconds per step: a long run minus a short one, 200 steps apart.

    The peer's start-up varies by seconds: over 6 steps the difference of two runs came out negative once. A step of
    the fleet is `members` steps of single models, and it has no start-up, so 25 of them are as many.
    """
    spent = []
    for count in (few, many):
        start = time.process_time()
        run(count)
        spent.append(time.process_time() - start)
    return (spent[1] - spent[0]) / (many - few)


def proxy(args: argparse.Namespace) -> dict[str, float]:
    """Overhead alone, as on a GPU: 40 members of width 8, batch 2; one fleet step against 40 naive steps."""
    torch.set_num_threads(1)
    out = {}
    for architecture in SEEDS:
        step = fleet_step(architecture, 40, **TINY)
        pairs = paired(_naive_steps(architecture, 40), step, repeats=max(args.repeats, 9))
        out[architecture] = round(pairs.ratio, 1)
    return out


def _naive_steps(architecture: str, steps: int) -> Callable[[], None]:
    """`steps` steps of the usual loop, its DataLoader included."""
    seed = naive.RECIPES[architecture]
    heads = min(seed.heads, 2)  # one where the preset has one: the same kind of attention as the fleet's
    recipe = naive.Recipe(8, seed.layers, heads, 2, seed.dropout, seed.weight_decay, seed.adamw)
    model = naive.build(architecture, recipe)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, y = naive.windows(walk(400, seed=0), "train")
    count = steps * recipe.batch
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x[:count], y[:count]), batch_size=recipe.batch, shuffle=True
    )

    def run() -> None:
        for own_x, own_y in loader:
            naive.train_batch(model, optimizer, own_x.to("cpu"), own_y.to("cpu"))

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


def ramp(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Time per member-step and memory as the fleet grows, each size in a process of its own."""
    sizes = [n for n in RAMP if n <= args.largest]
    return {f"{n} members": isolated(ramp_one, n, args.ramp_architecture) for n in sizes}


def ramp_one(members: int, architecture: str) -> dict[str, float]:
    """Train `members` small members for 10 and for 40 steps; the difference is the steps alone."""
    torch.set_num_threads(1)
    series = walks(members, 400)
    small = {"hidden_dim": 32, "batch_size": 32, "max_validation_windows": 32}
    before, spent = peak_mb(), []
    for steps in (10, 40):
        start = time.process_time()
        train(series, architecture, epochs=1, steps_per_epoch=steps, **small)
        spent.append(time.process_time() - start)
    each = (spent[1] - spent[0]) / (30 * members)
    grown = peak_mb() - before
    return {"us_per_member_step": each * 1e6, "rss_grown_mb": grown, "mb_per_member": grown / members}


def forecast(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Forecasts of all 40 members from loaded folders, in ms: one call for all."""
    return {a: isolated(forecast_one, a, args.repeats) for a in SEEDS}


def forecast_one(architecture: str, repeats: int) -> dict[str, float]:
    """Save and load 40 members of the seed size, then forecast from each one's newest candle."""
    from cpbmodels import forecast_all, load

    series = walks(40, 400)
    quick = {"steps_per_epoch": 1, "max_validation_windows": 32}
    trained = train(series, architecture, epochs=1, **quick)
    with tempfile.TemporaryDirectory() as folder:
        for k, member in enumerate(trained):
            member.save(Path(folder) / str(k))
        members = [load(Path(folder) / str(k)) for k in range(40)]
    pairs = paired(
        lambda: [m.forecast(s) for m, s in zip(members, series, strict=True)],
        lambda: forecast_all(members, series),
        repeats=max(repeats, 5),
    )
    return {
        "all_at_once_ms": statistics.median(pairs.fast) * 1e3,
        "one_by_one_ms": statistics.median(pairs.slow) * 1e3,
    }


def memory(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Memory beyond the flat candle tensor and weights + optimizer state, 40 members x `--memory-rows` rows."""
    return {a: isolated(memory_one, a, args.memory_rows) for a in args.memory_architectures.split(",")}


def memory_one(architecture: str, rows: int) -> dict[str, float]:
    """Peak RSS of two training steps, what must be there, and the rest: activations of one batch."""
    torch.set_num_threads(1)
    series = walks(40, rows)
    columns = len(naive.COLUMNS)
    candles = 40 * rows * (columns + 1) * 4 / 1e6
    before = peak_mb()
    members = train(
        series, architecture, epochs=1, steps_per_epoch=2, max_validation_windows=64, max_train_rows=0
    )
    grown = peak_mb() - before
    weights = (
        sum(m.rows.numel() for m in members) * 4 * 5 / 1e6
    )  # weights, gradient, two moments, best snapshot
    return {
        "grown_mb": grown,
        "candles_mb": candles,
        "weights_and_state_mb": weights,
        "beyond_mb": grown - candles - weights,
    }


def checkpoint(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """What a checkpoint per epoch costs, as a share of the epochs' time: the wait of the training loop for the copy,
    and the CPU time of the thread that writes beside it."""
    return {a: isolated(checkpoint_one, a, args.members, args.rows, max(args.epochs, 4)) for a in SEEDS}


def checkpoint_one(architecture: str, members: int, rows: int, epochs: int) -> dict[str, float]:
    """Train with checkpoints; time `save` in the loop and `_write` in its thread."""
    from cpbmodels.fleet.checkpoint import Checkpoints

    spent = {"save": 0.0, "_write": 0.0}

    def timed(name: str, clock: Callable[[], float]) -> None:
        inner = getattr(Checkpoints, name)

        def outer(self: Checkpoints, *rest: Any, **options: Any) -> None:
            start = clock()
            inner(self, *rest, **options)
            spent[name] += clock() - start

        setattr(Checkpoints, name, outer)

    timed("save", time.perf_counter)
    timed("_write", time.thread_time)
    with tempfile.TemporaryDirectory() as folder:
        trained = train(
            walks(members, rows),
            architecture,
            epochs=epochs,
            patience=epochs,
            checkpoint=Path(folder),
            workers=1,
        )
        files = list(Path(folder).rglob("*.safetensors"))
    seconds = trained[0].report["train_seconds"]
    return {
        "epoch_s": seconds / epochs,
        "wait_share": spent["save"] / seconds,
        "writer_cpu_share": spent["_write"] / seconds,
        "files_kept": len(files),
    }


def as_a_worker() -> None:
    """Start again with the allocator settings that the process of a fleet gets; both sides of a pair run in it."""
    if not MALLOC.items() <= os.environ.items():
        again = [sys.executable, "-m", "benchmarks.training", *sys.argv[1:]]
        os.execve(sys.executable, again, os.environ | MALLOC)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _compute() -> torch.dtype:
    from cpbmodels.device import host

    return torch.bfloat16 if host.cpu().fast_bf16 else torch.float32


PARTS: Mapping[str, Callable[[argparse.Namespace], Mapping[str, Any]]] = {
    "cpu": cpu,
    "profile": profile,
    "neuralforecast": neuralforecast,
    "proxy": proxy,
    "launches": launches,
    "ramp": ramp,
    "forecast": forecast,
    "memory": memory,
    "checkpoint": checkpoint,
}


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--members", type=int, default=8, help="models trained in the part cpu")
    parser.add_argument("--rows", type=int, default=1000, help="candles per model in the part cpu")
    parser.add_argument("--epochs", type=int, default=1, help="epochs in the part cpu")
    parser.add_argument("--repeats", type=int, default=3, help="pairs per measurement")
    parser.add_argument("--steps", type=int, default=20, help="steps measured in the part profile")
    parser.add_argument("--largest", type=int, default=800, help="largest fleet of the part ramp")
    parser.add_argument("--ramp-architecture", default="gru", choices=SEEDS)
    parser.add_argument("--memory-rows", type=int, default=300_000)
    parser.add_argument("--memory-architectures", default="gru", help="as in transformer,gru,lstm")


if __name__ == "__main__":
    as_a_worker()
    main("training", PARTS, options=_options)
