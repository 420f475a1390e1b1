"""The GPU in one command: is it right, how fast is it, what of it is used? Needs torch, numpy and safetensors alone.

    python -m benchmarks.gpu --out gpu.json               # three seed jobs, 40 members, all epochs
    python -m benchmarks.gpu --device cpu --tiny          # the same code in seconds, for CI

The fleet's jobs are run whole, without early stop. The naive loop would take hours, and takes the same time
for every model and epoch: `--naive-members` x `--naive-epochs` are measured after a warm-up and scaled up.
"""

import argparse
import json
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import naive
from benchmarks._fleet import train
from benchmarks._flops import flops_per_window
from benchmarks._paired import table
from benchmarks._walks import walk, walks
from cpbmodels import Series
from cpbmodels.device import Monitor, chips, probe

JOBS = {"transformer": (5000, 50), "gru": (5000, 100), "lstm": (7000, 200)}  # candles, epochs
TINY = {"hidden_dim": 16, "n_heads": 2, "ff_dim": 64, "batch_size": 16}
EXACT = 1e-9  # float64, relative: only the order of sums differs
CLOSE = 0.05  # float32 (TF32 on a GPU) and mixed precision: rounding, amplified by the optimizer
UNEQUAL = (
    400,
    440,
    480,
)  # candles: members with fewer steps drop out of an epoch, so several graphs are captured


def correctness(device: str, architecture: str, sizes: dict[str, Any]) -> dict[str, Any]:
    """Per-epoch losses on the device, with and without CUDA graph, against float64 on the CPU."""
    series = [walk(rows, seed) for seed, rows in enumerate(UNEQUAL)]
    short = {"epochs": 3, "patience": 3, "max_validation_windows": 32, "dropout": 0.1}

    def losses(**options: Any) -> torch.Tensor:
        return _losses(series, architecture, **{"device": device, **short, **sizes, **options})

    exact = losses(device="cpu", dtype="float64")
    eager, graph = (losses(dtype="float64", cuda_graph=graph) for graph in (False, True))
    single, mixed = losses(mixed_precision="off"), losses()
    found = {
        "graph_against_eager": _apart(graph, eager),
        "eager_against_cpu": _apart(eager, exact),
        "float32_against_float64": _apart(single, exact),
        "mixed_against_float64": _apart(mixed, exact),
    }
    limits = (EXACT, EXACT, CLOSE, CLOSE)
    return found | {"ok": all(apart <= most for apart, most in zip(found.values(), limits, strict=True))}


def _losses(series: list[Series], architecture: str, **options: Any) -> torch.Tensor:
    members = train(series, architecture, **options)
    losses = [[e["train_loss"], e["val_loss"]] for m in members for e in m.history]
    return torch.tensor(losses, dtype=torch.float64)


def _apart(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest relative difference; infinite where one training ended before the other."""
    return float(((a - b).abs() / b.abs()).max()) if a.shape == b.shape else float("inf")


def fleet_job(series: list[Series], architecture: str, device: str, **options: Any) -> dict[str, Any]:
    """Train all members once; seconds with everything in them: start-up, graph capture, validation."""
    with Monitor(device, interval=0.1) as monitor:
        start = time.perf_counter()
        members = train(series, architecture, device=device, **options)
        seconds = time.perf_counter() - start
    windows = sum(m.report["train_windows"] * len(m.history) for m in members)
    return {"seconds": seconds, "windows": windows, "compute": members[0].report["compute_dtype"]} | (
        monitor.summary()
    )


def naive_job(
    series: list[Series], architecture: str, device: str, epochs: int, recipe: naive.Recipe | None
) -> dict[str, Any]:
    """Seconds per model and epoch of the naive loop, after one warm-up epoch."""
    naive.train_one(series[0], architecture, epochs=1, seed=0, device=device, recipe=recipe)
    with Monitor(device, interval=0.1) as monitor:
        start = time.perf_counter()
        naive.train_naive(series, architecture, epochs=epochs, device=device, recipe=recipe)
        seconds = time.perf_counter() - start
    return {"seconds_per_model_epoch": seconds / len(series) / epochs} | monitor.summary()


def job(args: argparse.Namespace, architecture: str, roof: float) -> dict[str, Any]:
    """One seed job both ways. `roof` is the device's measured matmul rate in FLOP/s."""
    rows, epochs = (400, 2) if args.tiny else JOBS[architecture]
    epochs = args.epochs or epochs
    sizes = TINY if args.tiny else {}
    recipe = naive.Recipe(16, 2, 2, 16, 0.1) if args.tiny else None
    series = walks(args.members, rows)
    if not args.tiny:  # libraries load and kernels compile once per process, not once per job
        fleet_job(series, architecture, args.device, epochs=1, patience=1, steps_per_epoch=2, **sizes)
    fleet = fleet_job(series, architecture, args.device, epochs=epochs, patience=epochs, **sizes)
    usual = naive_job(series[: args.naive_members], architecture, args.device, args.naive_epochs, recipe)
    naive_s = usual["seconds_per_model_epoch"] * args.members * epochs
    rate = fleet["windows"] * flops_per_window(architecture, **sizes) / fleet["seconds"]
    return {
        "members": args.members,
        "epochs": epochs,
        "fleet_s": fleet["seconds"],
        "naive_s": naive_s,
        "ratio": naive_s / fleet["seconds"],
        "windows_per_s": fleet["windows"] / fleet["seconds"],
        "tflops": rate / 1e12,
        "roof_share": rate / roof,
        "compute": fleet["compute"],
        "mem_mb": fleet["gpu_mem_allocated_peak_mb"],
        "reserved_mb": fleet["gpu_mem_reserved_peak_mb"],
        "util": fleet.get("gpu_util_mean"),
        "power_w": fleet.get("gpu_power_mean_w"),
        "naive_mem_mb": usual["gpu_mem_allocated_peak_mb"],
        "naive_util": usual.get("gpu_util_mean"),
    }


def measure_roof(device: torch.device) -> dict[str, Any]:
    """The device's own matmul rate in the precision that a fleet would use, and what the data sheet says."""
    precision = probe.precisions(device)[-1]
    size = 8192 if device.type == "cuda" else 512
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu"
    chip = chips.reference(name)
    return {
        "device": name,
        "precision": precision,
        "matmul_tflops": probe.matmul_tflops(device, precision, size),
        "data_sheet_tflops": chip.rate(precision) if chip else None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run it all, print one table, write the JSON file; exit code 1 where a result is wrong."""
    args = _parse(argv)
    roof = measure_roof(torch.device(args.device))
    results: dict[str, Any] = {"machine": roof, "correctness": {}, "jobs": {}}
    for name in args.only or JOBS:
        results["correctness"][name] = correctness(args.device, name, TINY | {"batch_size": 48})
        results["jobs"][name] = job(args, name, roof["matmul_tflops"] * 1e12)
        if args.out:
            Path(args.out).write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results) if args.json else _text(results))
    return results


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", choices=list(JOBS), action="append")
    parser.add_argument("--members", type=int, default=None, help="default 40, with --tiny 3")
    parser.add_argument("--epochs", type=int, default=0, help="default: all epochs of the seed preset")
    parser.add_argument("--naive-members", type=int, default=1)
    parser.add_argument("--naive-epochs", type=int, default=1)
    parser.add_argument("--tiny", action="store_true", help="small sizes: seconds, also on a CPU")
    parser.add_argument("--out", help="JSON file, rewritten after every job")
    parser.add_argument("--json", action="store_true", help="JSON on stdout instead of the table")
    args = parser.parse_args(argv)
    args.members = args.members or (3 if args.tiny else 40)
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("no usable GPU here (see `cpb doctor`); try --device cpu --tiny")
    return args


def _text(results: dict[str, Any]) -> str:
    machine = ", ".join(f"{key} {value}" for key, value in results["machine"].items())
    return "\n\n".join([machine, table(results["correctness"]), table(results["jobs"])])


if __name__ == "__main__":
    raise SystemExit(0 if all(c["ok"] for c in main()["correctness"].values()) else 1)
