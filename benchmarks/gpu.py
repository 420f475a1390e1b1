"""Everything that a first GPU has to answer, in one call of at most nine minutes.

    python -m benchmarks.gpu --out gpu.json                 # on a GPU; needs torch and numpy only
    python -m benchmarks.gpu --device cpu --tiny            # the same code in seconds; CI runs this

1. machine      its matmul rate today (the roof);
2. gradients    a step's losses and gradient at the seed size against float64 (`cpbmodels.fleet.kernel_check`);
3. correctness  losses per epoch against float64 on a CPU, in every precision, with unequal histories and early stops,
                and that the comparison is alive: losses fall, graphs were replayed, a rate 1 % larger is told apart;
4. kernels      what one replay launches, as the profiler sees it, beside the count of benchmarks/_kernels.py and the
                step's floor (the least bytes over the measured bandwidth);
5. jobs         the three seed jobs whole, 40 members, all epochs; lstm, the longest, last, by the rate of its epochs;
6. naive        one model by the usual loop and by a competent one, scaled up: that loop takes equally long for each.

All but the last with Triton's kernels and without. The JSON file is rewritten after every part and every few seconds
within a job. Each part has a time limit, which Python checks: a kernel that hangs is not ended. If a part fails, its
error is recorded, the others still run, and the exit code is 1.
"""

import argparse
import json
import signal
import statistics
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks import _kernels, _rates, naive
from benchmarks._fleet import train
from benchmarks._flops import floor_bytes, flops_per_window
from benchmarks._paired import table
from benchmarks._walks import walk, walks
from cpbmodels import Member, preset
from cpbmodels.arch.torch_private import DeviceType
from cpbmodels.device.monitor import Monitor
from cpbmodels.doctor.pace import best_seconds
from cpbmodels.fleet import kernel_check, one_step
from cpbmodels.fleet.config import write_whole
from cpbmodels.fleet.graphs import Graphs
from cpbmodels.fleet.kernel_switch import described
from cpbmodels.fleet.records import EpochRecord

JOBS = {"transformer": (5000, 50), "gru": (5000, 100), "lstm": (7000, 200)}
"""Candles and epochs of the seed presets."""
TINY = {"hidden_dim": 16, "n_heads": 2, "ff_dim": 64, "batch_size": 16}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
EXACT = 1e-9  # float64, relative: only the order of sums differs
CLOSE = 0.02
"""Mean relative difference: rounding (TF32 on a GPU), amplified by the optimizer. One loss of a bf16 transformer may
lie 4 % off (on a CPU, too), so the largest difference says little here; it is reported."""
CONTROL = 1e-6  # in float64 a learning rate 1 % larger must differ by more, or the comparison sees nothing
UNEQUAL = (400, 440, 480, 600, 640)  # candles: members finish an epoch one after another, so rows are masked
BUDGET_S, RESERVE_S = 540.0, 15.0  # for all of it; of which for the last write and the way out
OFF = " without Triton kernels"


class OutOfTime(BaseException):
    """Ends a part because its time is spent."""


class Report:
    """The results so far, on disk after every change, and the time that is left."""

    def __init__(self, out: str | None, budget_s: float) -> None:
        self.results: dict[str, Any] = {}
        self.path = Path(out) if out else None
        self.started, self.written, self.budget_s = time.monotonic(), 0.0, budget_s

    def put(self, part: str, key: str, value: object, every_s: float = 0.0) -> None:
        """Keep a value; JSON and table are written at once, or if the last write is `every_s` seconds old."""
        self.results.setdefault(part, {})[key] = value
        if time.monotonic() - self.written < every_s:
            return
        self.written = time.monotonic()
        self.results["seconds"] = round(self.written - self.started, 1)
        if self.path:
            write_whole(self.path, f"{json.dumps(self.results, indent=2)}\n".encode())
            write_whole(self.path.with_suffix(".md"), f"{markdown(self.results)}\n".encode())

    def run(self, part: str, key: str, limit_s: float, work: Callable[[], object]) -> None:
        """One entry of a part; what went wrong, or that a third of its time is not left, stands in its place."""
        left_s = self.budget_s - RESERVE_S - (time.monotonic() - self.started)
        if left_s < limit_s / 3:
            self.put(part, key, {"skipped": f"{left_s:.0f} s are left, {limit_s / 3:.0f} are needed"})
            return

        def end(*_: object) -> None:
            raise OutOfTime(f"it took longer than {limit_s:.0f} s, or than were left")

        before = signal.signal(signal.SIGALRM, end)
        signal.setitimer(signal.ITIMER_REAL, min(limit_s, left_s))
        try:
            self.put(part, key, work())
        except (Exception, OutOfTime):  # noqa: BLE001 - GPU time is lent: a fault must not cost the other parts
            self.put(part, key, {"error": traceback.format_exc()[-800:]})
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def measure_roof(device: torch.device, tiny: bool = False) -> dict[str, Any]:
    """The device's own matmul rate in the precision that a fleet would use, and what the data sheet says."""
    precision, on_gpu = _rates.best_precision(device), device.type == "cuda"
    size = 256 if tiny else 8192 if on_gpu else 512
    name = torch.cuda.get_device_name(device) if on_gpu else "cpu"
    return {
        "device": name,
        "precision": precision,
        "matmul_tflops": _rates.matmul_tflops(device, precision, size),
        "data_sheet_tflops": _rates.data_sheet(name, precision),
    }


class Captures:
    """Graphs captured and replayed while it is watching, and the seconds that captures took."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.replays = 0

    @contextmanager
    def watching(self) -> Iterator["Captures"]:
        """Count what every `Graphs` does within."""
        capture, run = Graphs.capture, Graphs.run

        def timed(graphs: Graphs, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
            start = time.perf_counter()
            graph = capture(graphs, work)
            self.seconds.append(time.perf_counter() - start)
            return graph

        def counted(graphs: Graphs, key: Any, work: Callable[[], None]) -> None:
            self.replays += key in graphs.captured
            run(graphs, key, work)

        with patch.object(Graphs, "capture", timed), patch.object(Graphs, "run", counted):
            yield self


def gradients(args: argparse.Namespace, architecture: str) -> dict[str, Any]:
    """Distances from float64 of one step at the seed size, by `cpbmodels.fleet.kernel_check`; `ok` if few."""
    device, compute = torch.device(args.device), DTYPES[mixed(args.device)[0]]
    options = preset(f"seed-{architecture}", architecture, **args.sizes)
    off = kernel_check.kernels_off(architecture, options, device, compute)
    shape = architecture, options, device, compute
    row: dict[str, Any] = kernel_check.compare(*shape, kernels=not off or off.startswith(kernel_check.WRONG))
    faults = []
    if "gradient" in row:
        faults = list(kernel_check.faults(row))
        row |= kernel_check.same_bits(*shape)
    ok = (
        not faults
        and False not in row.values()
        and row["torch_gradient"] < kernel_check.MAX_GRADIENT_DISTANCE
    )
    return row | {"kernels": described(off), "ok": ok}


def mixed(device: str) -> list[str]:
    """Mixed precisions of the device, the best first; fp16 is for GPUs."""
    on_gpu = device.startswith("cuda")
    has_bf16 = not on_gpu or torch.cuda.is_bf16_supported(including_emulation=False)
    return ["bf16"] * has_bf16 + ["fp16"] * on_gpu


def distances(computed: list[Member], exact: list[Member]) -> torch.Tensor:
    """Relative difference of every member's and epoch's training and validation loss; infinite if epochs are missing
    or a loss is not finite."""
    losses = [
        [(e["train_loss"], e["val_loss"]) for m in members for e in m.history]
        for members in (computed, exact)
    ]
    ours, theirs = (torch.tensor(values, dtype=torch.float64) for values in losses)
    if ours.shape != theirs.shape or not bool(torch.isfinite(ours).all()):
        return torch.tensor([torch.inf])
    return (ours - theirs).abs() / theirs.abs()


def correctness(device: str, architecture: str, tiny: bool = False) -> dict[str, Any]:
    """Losses per epoch on the device against float64 on the CPU; `ok` where all differ by rounding only."""
    series = [walk(rows, seed) for seed, rows in enumerate(UNEQUAL[:2] if tiny else UNEQUAL)]
    usual = {
        **TINY,
        "batch_size": 48,
        "epochs": 2 if tiny else 4,
        "patience": 2,
        "max_validation_windows": 32,
        "dropout": 0.1,
        "lr": 1e-3,
        "device": device,
    }
    watched = Captures()

    def trained(**options: Any) -> list[Member]:
        with watched.watching():
            return train(series, architecture, **usual | options)

    exact = trained(device="cpu", dtype="float64")
    graph, eager = (trained(dtype="float64", cuda_graph=graph) for graph in (True, False))
    faster = trained(device="cpu", dtype="float64", lr=1.01e-3)
    row: dict[str, Any] = {
        "graph_against_eager": float(distances(graph, eager).max()),
        "float64": float(distances(eager, exact).max()),
    }
    limits = dict.fromkeys(row, EXACT)
    # Rounding may turn an early stop that a near tie decides, and an epoch more is no distance: from here on every
    # member runs all epochs. (The transformer's third member stops so without dropout, on an H100 and in a CPU's bf16.)
    usual["patience"] = usual["epochs"]
    whole = trained(device="cpu", dtype="float64")
    for precision in ("off", *mixed(device)):
        off, name = distances(trained(mixed_precision=precision), whole), precision.replace("off", "float32")
        row[name], row[f"{name}_largest"], limits[name] = float(off.mean()), float(off.max()), CLOSE
    on_gpu = device.startswith("cuda")
    # with options that the kernels know: a transformer's, without dropout
    if "bf16" in mixed(device):
        simple = {"dropout": 0.0} if architecture == "transformer" else {}
        reference = trained(device="cpu", dtype="float64", **simple)
        for name, wanted in (("kernels_on", True), ("kernels_off", False)):
            members = trained(mixed_precision="bf16", kernels=wanted, **simple)
            row[name], limits[name] = float(distances(members, reference).mean()), CLOSE
            row.setdefault("kernels", members[0].report["kernels"])
    alive = {
        "losses_fall": exact[0].history[-1]["train_loss"] < exact[0].history[0]["train_loss"],
        "control_is_told_apart": float(distances(faster, exact).max()) > CONTROL,
        "graphs_replayed": not on_gpu or (len(watched.seconds) > 1 and watched.replays > 10),
    }
    ok = all(alive.values()) and all(row[name] <= limit for name, limit in limits.items())
    return row | alive | {"graphs_captured": len(watched.seconds), "replays": watched.replays, "ok": ok}


def kernel_table(args: argparse.Namespace, architecture: str) -> dict[str, Any]:
    """Launches of one step: counted by rule, and as the profiler sees them eagerly and in a replay.

    With Triton's kernels and (`off_`) without, beside `floor_us`: the least bytes over the measured bandwidth.
    """
    expected = _kernels.launches(architecture, args.members)
    row: dict[str, Any] = {"expected": expected.total(), "by_operator": dict(expected.most_common(12))}
    device, compute = torch.device(args.device), DTYPES[mixed(args.device)[0]]
    options = preset(f"seed-{architecture}", architecture, **args.sizes)
    moved = args.members * floor_bytes(architecture, options.batch_size, **args.sizes)
    row["floor_us"] = moved / _rates.copy_gbs(device, 256 if device.type == "cuda" else 16) / 1e3
    if device.type != "cuda":
        return row
    for way, wanted in (("", True), ("off_", False)):
        begun = time.perf_counter()
        step = one_step.fleet_step(architecture, options, args.members, device, compute, kernels=wanted)
        for _ in range(5):  # warm, then captured
            step()
        row[f"{way}start_s"] = time.perf_counter() - begun  # compiling what is not on disk, and the capture
        for name, run in (("eager", step.eager), ("replay", step)):
            row |= {f"{way}{name}_{key}": value for key, value in profiled(run, device).items()}
        row[f"{way}step_us"] = best_seconds(step, device) * 1e6
    return row


def profiled(run: Callable[[], object], device: torch.device) -> dict[str, Any]:
    """Kernels, copies and fills of one run, their µs together, and the kernels that took longest."""
    from torch.profiler import ProfilerActivity, profile

    run()
    torch.cuda.synchronize(device)
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        run()
        torch.cuda.synchronize(device)
    count: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    for event in trace.events():
        if event.device_type == DeviceType.CUDA:
            count[event.name] += 1
            spent[event.name] += event.time_range.elapsed_us()
    longest = {name[:80]: [count[name], round(us, 1)] for name, us in spent.most_common(12)}
    return {"launches": count.total(), "kernel_us": sum(spent.values()), "longest": longest}


def job(args: argparse.Namespace, architecture: str, report: Report, kernels: bool = True) -> dict[str, Any]:
    """One seed job whole, everything in it: start-up, captures, validation; its whole epochs if time runs out."""
    part = "jobs" if kernels else "jobs" + OFF
    rows, count = args.jobs[architecture]
    series = walks(args.members, rows)
    roof = report.results["machine"]["roof"].get("matmul_tflops", float("nan")) * 1e12
    flops = flops_per_window(architecture, **args.sizes)
    done: list[EpochRecord] = []
    windows = [0]
    start = time.perf_counter()
    out: dict[str, Any] = {"members": args.members, "epochs": count}

    def told(record: EpochRecord) -> None:
        done.append(record)
        windows[0] += sum(len(candles.origins("train", 30, 10)) for candles in series)
        seconds = time.perf_counter() - start
        rate = windows[0] * flops / seconds
        out.update(
            fleet_s=seconds + statistics.median(epoch.seconds for epoch in done) * (count - len(done)),
            measured_epochs=len(done),
            estimated=len(done) < count,
            windows_per_s=windows[0] / seconds,
            tflops=rate / 1e12,
            roof_share=rate / roof,
        )
        report.put(part, architecture, dict(out), every_s=0.0 if len(done) == 1 else 5.0)

    watched = Captures()
    with Monitor(args.device, interval=0.1) as monitor, watched.watching():
        try:
            whole = {"epochs": count, "patience": count, "workers": 1, "on_epoch": told, "kernels": kernels}
            members = train(series, architecture, device=args.device, **whole, **args.sizes)
            out["fleet_s"] = time.perf_counter() - start
            out |= {name: members[0].report[name] for name in ("compute_dtype", "kernels")}
        except OutOfTime:
            if not done:
                raise
        summary = monitor.summary()
    return out | {
        "captures": len(watched.seconds),
        "capture_s": sum(watched.seconds),
        "mem_mb": summary["gpu_mem_allocated_peak_mb"],
        "util": summary.get("gpu_util_mean"),
        "power_w": summary.get("gpu_power_mean_w"),
    }


def naive_job(args: argparse.Namespace, architecture: str) -> dict[str, Any]:
    """Seconds per model and epoch of both loops, each after a warm-up epoch, in fp32 and with autocast."""
    rows, count = args.jobs[architecture]
    candles = walk(rows, seed=0)
    recipe = naive.Recipe(16, 2, 2, 16, 0.1) if args.tiny else None
    out: dict[str, Any] = {}
    for name, how in naive.WAYS.items():
        seconds = []
        for _ in range(2):
            start = time.perf_counter()
            naive.train_one(candles, architecture, epochs=1, seed=0, device=args.device, recipe=recipe, **how)
            if args.device != "cpu":
                torch.cuda.synchronize(args.device)
            seconds.append(time.perf_counter() - start)
        out[name] = seconds[1] * args.members * count
    return out | {"scaled_from": f"1 model x 1 epoch to {args.members} x {count}"}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run all parts in order; print a table."""
    args = _parse(argv)
    if args.device == "cpu":
        torch.set_num_threads(1)  # tiny steps: threads would wait for each other longer than they work
    report = Report(args.out, args.budget)
    device, names = torch.device(args.device), args.only or list(JOBS)
    report.run("machine", "roof", 30, lambda: measure_roof(device, args.tiny))
    parts: dict[str, tuple[float, Callable[[str], object]]] = {
        "gradients": (60, lambda name: gradients(args, name)),
        "correctness": (90, lambda name: correctness(args.device, name, args.tiny)),
        "kernels": (45, lambda name: kernel_table(args, name)),
        "jobs": (120, lambda name: job(args, name, report)),
        f"jobs{OFF}": (120, lambda name: job(args, name, report, kernels=False)),
        "naive": (90, lambda name: naive_job(args, name)),
    }
    jobs = ("jobs", f"jobs{OFF}") if device.type == "cuda" else ("jobs",)
    order = [(part, name) for part in ("gradients", "correctness", "kernels") for name in names]
    order += [(part, name) for name in names if name != "lstm" for part in jobs]
    order += [("naive", name) for name in names]
    order += [(part, "lstm") for part in jobs if "lstm" in names]
    for part, name in order:
        limit_s, work = parts[part]
        report.run(part, name, limit_s, partial(work, name))
    print(markdown(report.results))
    return report.results


def right(results: Mapping[str, Any]) -> bool:
    """Whether every comparison held and no part failed."""
    rows = [row for part in results.values() if isinstance(part, dict) for row in part.values()]
    return all("error" not in row and row.get("ok", True) for row in rows if isinstance(row, dict))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", choices=list(JOBS), action="append")
    parser.add_argument("--members", type=int, default=None, help="default 40, with --tiny 3")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds for all of it")
    parser.add_argument("--tiny", action="store_true", help="small sizes: seconds, also on a CPU")
    parser.add_argument("--out", help="JSON file, rewritten after every part; a table is written beside it")
    args = parser.parse_args(argv)
    args.members = args.members or (3 if args.tiny else 40)
    args.sizes = TINY if args.tiny else {}
    args.jobs = dict.fromkeys(JOBS, (400, 2)) if args.tiny else JOBS
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("no usable GPU here (see `cpb doctor`); try --device cpu --tiny")
    return args


def markdown(results: Mapping[str, Any]) -> str:
    """The results as tables for RESULTS.md; lists and nested figures stay in the JSON."""
    text = []
    for part in [name for name in results if name != "seconds"]:
        flat = {
            name: {key: value for key, value in row.items() if not isinstance(value, (dict, list))}
            for name, row in results[part].items()
        }
        text.append(f"### {part}\n\n{table(flat)}")
    return "\n\n".join([*text, f"{results['seconds']:.0f} s in all."])


if __name__ == "__main__":
    raise SystemExit(0 if right(main()) else 1)
