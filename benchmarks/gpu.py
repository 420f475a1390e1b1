"""Everything that a first GPU has to answer, in one call of at most nine minutes.

    python -m benchmarks.gpu --out gpu.json                 # on a GPU; needs torch and numpy only
    python -m benchmarks.gpu --device cpu --tiny            # the same code in seconds; CI runs this

In this order, so that what matters most is there when the call is cut off:

1. machine      the chip, and its matmul rate today (the roof);
2. gradients    a step's losses and gradient at the seed size against float64, with Triton's kernels and on torch's
                path (`torch_`), and the kernels' bits in a repeat, with a member less, beside a NaN and in a graph;
3. correctness  losses per epoch against float64 on a CPU, for every architecture and precision, with unequal
                histories and early stops, and checks that the comparison is alive: losses fall, graphs were captured
                and replayed, and a learning rate 1 % larger is told apart;
4. kernels      what one replay launches, as the profiler sees it, with Triton's kernels and without, beside the count
                of benchmarks/_kernels.py and the step's floor (the least bytes over the measured bandwidth);
5. epochs       three epochs at full size, with Triton's kernels and without: capture cost, and validation's share of an
                epoch after captures;
6. jobs         the three seed jobs whole: 40 members, all epochs, their totals, with Triton's kernels and without; the
                longest, lstm, at the very end, both ways by the rate of the epochs for which there is time;
7. naive        one model by the usual loop and by a competent one, scaled up: that loop takes equally long for each.

The JSON file is rewritten after every part and every few seconds within a job, so that a kill loses nothing but the
part it hits. Each part has a time limit of its own, which Python checks: a kernel that hangs is not ended. A part for
which the time is too short says so; a job that runs out of time reports the epochs it did, and the rest by its own
rate, marked as such. A part that fails is recorded with its error, the others still run, and the exit code is 1.

Where the tool that lends a GPU keeps a folder $OUT: `python -m benchmarks.gpu --out $OUT/gpu.json`.
"""

import argparse
import json
import platform
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
from cpbmodels import Member, Series, preset
from cpbmodels.arch.torch_private import DeviceType
from cpbmodels.device import steps
from cpbmodels.device.doctor import seconds as best_seconds
from cpbmodels.device.monitor import Monitor
from cpbmodels.fleet.graphs import Graphs, ValidationRunner
from cpbmodels.fleet.results import EpochRecord
from cpbmodels.kernels import check
from cpbmodels.kernels.support import described

JOBS = {
    "transformer": (5000, 50),
    "gru": (5000, 100),
    "lstm": (7000, 200),
}  # candles, epochs of the seed presets
TINY = {"hidden_dim": 16, "n_heads": 2, "ff_dim": 64, "batch_size": 16}
EXACT = 1e-9  # float64, relative: only the order of sums differs
CLOSE = {"float32": 0.02, "bf16": 0.02, "fp16": 0.02, "kernels_on": 0.02, "kernels_off": 0.02}
"""Mean relative difference: rounding (TF32 on a GPU), amplified by the optimizer. One loss of a bf16 transformer may
lie 4 % off (on a CPU, too), so the largest difference says little here; it is reported."""
CONTROL = 1e-6  # in float64 a learning rate 1 % larger must differ by more, or the comparison sees nothing
UNEQUAL = (400, 440, 480, 600, 640)  # candles: members finish an epoch one after another, so rows are masked
BUDGET_S = 540.0
RESERVE_S = 15.0  # left for the last write and the way out
OFF = " without Triton kernels"


class OutOfTime(BaseException):
    """Ends a part because its time is spent."""


class Report:
    """The results so far, on disk after every change, and the time that is left."""

    def __init__(self, out: str | None, budget_s: float) -> None:
        self.results: dict[str, Any] = {}
        self.path = Path(out) if out else None
        self.started, self.written = time.monotonic(), 0.0
        self.budget_s = budget_s

    @property
    def left_s(self) -> float:
        """Seconds until the budget is spent, less a reserve for the way out."""
        return self.budget_s - RESERVE_S - (time.monotonic() - self.started)

    def put(self, part: str, key: str, value: object, every_s: float = 0.0) -> None:
        """Keep a value; written at once, or if the last write is `every_s` seconds old."""
        self.results.setdefault(part, {})[key] = value
        if time.monotonic() - self.written >= every_s:
            self.write()

    def write(self) -> None:
        """JSON and table, whole or not at all."""
        self.results["seconds"] = round(time.monotonic() - self.started, 1)
        self.written = time.monotonic()
        if self.path is None:
            return
        for path, text in (
            (self.path, json.dumps(self.results, indent=2) + "\n"),
            (self.path.with_suffix(".md"), markdown(self.results) + "\n"),
        ):
            draft = path.with_name(path.name + ".draft")
            draft.write_text(text)
            draft.replace(path)

    def run(self, part: str, key: str, limit_s: float, work: Callable[[], object]) -> None:
        """One entry of a part; what went wrong, or that a third of its time is not left, stands in its place."""
        if self.left_s < limit_s / 3:
            self.put(part, key, {"skipped": f"{self.left_s:.0f} s are left, {limit_s / 3:.0f} are needed"})
            return

        def end(*_: object) -> None:
            raise OutOfTime(f"it took longer than {limit_s:.0f} s, or than were left")

        before = signal.signal(signal.SIGALRM, end)
        signal.setitimer(signal.ITIMER_REAL, min(limit_s, self.left_s))
        try:
            self.put(part, key, work())
        except (Exception, OutOfTime) as error:  # noqa: BLE001 - GPU time is lent: one fault must not cost the other parts
            where = traceback.format_exc().strip().splitlines()[-6:]
            self.put(part, key, {"error": f"{type(error).__name__}: {error}"[:400], "where": where})
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def measure_roof(device: torch.device, tiny: bool = False) -> dict[str, Any]:
    """The device's own matmul rate in the precision that a fleet would use, and what the data sheet says."""
    precision = _rates.best_precision(device)
    size = 256 if tiny else 8192 if device.type == "cuda" else 512
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu"
    return {
        "device": name,
        "precision": precision,
        "matmul_tflops": _rates.matmul_tflops(device, precision, size),
        "data_sheet_tflops": _rates.data_sheet(name, precision),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
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
    """Distances from float64 of one step at the seed size, as `cpbmodels.kernels.check` measures them; `ok` if few."""
    device, compute = torch.device(args.device), torch.bfloat16 if _has_bf16(args.device) else torch.float16
    options = preset(f"seed-{architecture}", architecture, **(TINY if args.tiny else {}))
    off = check.kernels_off(architecture, options, device, compute)
    shape = architecture, options, device, compute
    found: dict[str, Any] = check.compare(*shape, kernels=not off or off.startswith(check.WRONG))
    faults = []
    if "gradient" in found:
        faults = list(check.faults(found))
        found |= check.same_bits(*shape)
    ok = not faults and False not in found.values() and found["torch_gradient"] < check.MAX_GRADIENT_DISTANCE
    return found | {"kernels": described(off), "ok": ok}


def correctness(device: str, architecture: str, tiny: bool = False) -> dict[str, Any]:
    """Losses per epoch on the device against float64 on the CPU; `ok` where all differ by rounding only."""
    on_gpu = device.startswith("cuda")
    series = [walk(rows, seed) for seed, rows in enumerate(UNEQUAL[:2] if tiny else UNEQUAL)]
    short = {
        "epochs": 2 if tiny else 4,
        "patience": 2,
        "max_validation_windows": 32,
        "dropout": 0.1,
        "lr": 1e-3,
    }
    sizes = TINY | {"batch_size": 48}
    watched = Captures()

    def losses(**options: Any) -> torch.Tensor:
        with watched.watching():
            return _losses(train(series, architecture, **{"device": device, **short, **sizes, **options}))

    exact = losses(device="cpu", dtype="float64")
    graph, eager = (losses(dtype="float64", cuda_graph=graph) for graph in (True, False))
    faster = losses(device="cpu", dtype="float64", lr=short["lr"] * 1.01)
    mixed = [name for name, there in (("bf16", _has_bf16(device)), ("fp16", on_gpu)) if there]
    found = {
        "graph_against_eager": _apart(graph, eager),
        "float64": _apart(eager, exact),
    }
    largest = {}
    for name, precision in (("float32", "off"), *((name, name) for name in mixed)):
        rounded = losses(mixed_precision=precision)
        found[name], largest[f"{name}_largest"] = _mean_apart(rounded, exact), _apart(rounded, exact)
    kernels = ""
    if on_gpu and "bf16" in mixed:  # with options that they know: a transformer's, without dropout
        known = {"dropout": 0.0} if architecture == "transformer" else {}
        reference = losses(device="cpu", dtype="float64", **known)
        for name, wanted in (("kernels_on", True), ("kernels_off", False)):
            how = {"device": device, **short, **sizes, "mixed_precision": "bf16", "kernels": wanted, **known}
            with watched.watching():
                members = train(series, architecture, **how)
            found[name] = _mean_apart(_losses(members), reference)
            kernels = kernels or members[0].report["kernels"]
    limits = {"graph_against_eager": EXACT, "float64": EXACT, **CLOSE}
    first, last = exact[0, 0], exact[-1, 0]
    alive = {
        "losses_fall": bool(exact[:, 0].min() < first) and bool(torch.isfinite(exact).all()),
        "control_is_told_apart": _apart(faster, exact) > CONTROL,
        "graphs_captured": len(watched.seconds),
        "replays": watched.replays,
        "kernels": kernels,
    }
    ok = all(found[name] <= limits[name] for name in found)
    ok = ok and alive["losses_fall"] and alive["control_is_told_apart"]
    ok = ok and (not on_gpu or (len(watched.seconds) > 1 and watched.replays > 10))
    return found | largest | alive | {"first_loss": float(first), "last_loss": float(last), "ok": ok}


def _has_bf16(device: str) -> bool:
    return not device.startswith("cuda") or torch.cuda.is_bf16_supported(including_emulation=False)


def _losses(members: list[Member]) -> torch.Tensor:
    """[members x epochs, 2]: training and validation loss, float64."""
    losses = [[e["train_loss"], e["val_loss"]] for m in members for e in m.history]
    return torch.tensor(losses, dtype=torch.float64)


def _apart(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest relative difference; infinite where one training ended before the other, or is not finite."""
    if a.shape != b.shape or not bool(torch.isfinite(a).all()):
        return float("inf")
    return float(((a - b).abs() / b.abs()).max())


def _mean_apart(a: torch.Tensor, b: torch.Tensor) -> float:
    """Mean relative difference; infinite as `_apart`."""
    if a.shape != b.shape or not bool(torch.isfinite(a).all()):
        return float("inf")
    return float(((a - b).abs() / b.abs()).mean())


def kernel_table(args: argparse.Namespace, architecture: str) -> dict[str, Any]:
    """Launches of one step: counted by rule, and as the profiler sees them eagerly and in a replay.

    With Triton's kernels and (`off_`) without, beside `floor_us`: the least bytes over the measured bandwidth.
    """
    expected = _kernels.launches(architecture, args.members)
    row: dict[str, Any] = {"expected": expected.total(), "by_operator": dict(expected.most_common(12))}
    device = torch.device(args.device)
    megabytes = 256 if device.type == "cuda" else 16
    row["floor_us"] = _floor_bytes(args, architecture) / _rates.copy_gbs(device, megabytes) / 1e3
    if device.type != "cuda":
        return row
    for way, wanted in (("", True), ("off_", False)):
        begun = time.perf_counter()
        step = _step(args, architecture, kernels=wanted)
        row[f"{way}start_s"] = (
            time.perf_counter() - begun
        )  # compiling kernels that are not on disk, and the capture
        for name, run in (("eager", step.eager), ("replay", step)):
            row |= {f"{way}{name}_{key}": value for key, value in profiled(run, device).items()}
        row[f"{way}step_us"] = best_seconds(step, device) * 1e6
    return row


def _floor_bytes(args: argparse.Namespace, architecture: str) -> float:
    """Bytes that a step of all members moves at least."""
    sizes = TINY if args.tiny else {}
    batch = preset(f"seed-{architecture}", architecture, **sizes).batch_size
    return args.members * floor_bytes(architecture, batch, **sizes)


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


def _step(args: argparse.Namespace, architecture: str, kernels: bool) -> steps.FleetStep:
    """A step that is warm and, on a GPU, captured."""
    compute = torch.bfloat16 if _has_bf16(args.device) else torch.float16
    sizes: dict[str, Any] = TINY if args.tiny else {}
    options, device = preset(f"seed-{architecture}", architecture, **sizes), torch.device(args.device)
    step = steps.fleet_step(architecture, options, args.members, device, compute, kernels=kernels)
    for _ in range(5):
        step()
    return step


def epochs(args: argparse.Namespace, architecture: str, kernels: bool = True) -> dict[str, Any]:
    """Three epochs: seconds of the last, validation's share of it, and what captures cost before."""
    series, sizes, rows = _job_series(args, architecture)
    device, seconds, checks = torch.device(args.device), list[float](), list[float]()
    check = ValidationRunner.run

    def timed(runner: ValidationRunner, count: int) -> torch.Tensor:
        _wait(device)
        start = time.perf_counter()
        losses = check(runner, count)
        _wait(device)
        checks.append(time.perf_counter() - start)
        return losses

    watched = Captures()
    with watched.watching(), patch.object(ValidationRunner, "run", timed):
        train(
            series,
            architecture,
            device=args.device,
            epochs=3,
            patience=3,
            workers=1,
            kernels=kernels,
            on_epoch=lambda record: seconds.append(record.seconds),
            **sizes,
        )
    return {
        "members": args.members,
        "candles": rows,
        "first_epoch_s": seconds[0],
        "epoch_s": seconds[-1],
        "validation_s": checks[-1],
        "validation_share": checks[-1] / seconds[-1],
        "captures": len(watched.seconds),
        "capture_s": sum(watched.seconds),
        "replays": watched.replays,
    }


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _job_series(args: argparse.Namespace, architecture: str) -> tuple[list[Series], dict[str, Any], int]:
    rows = 400 if args.tiny else JOBS[architecture][0]
    return walks(args.members, rows), TINY if args.tiny else {}, rows


def job(args: argparse.Namespace, architecture: str, report: Report, kernels: bool = True) -> dict[str, Any]:
    """One seed job whole, everything in it: start-up, captures, validation; its whole epochs if time runs out."""
    part = "jobs" if kernels else "jobs" + OFF
    series, sizes, _ = _job_series(args, architecture)
    count = args.epochs or (2 if args.tiny else JOBS[architecture][1])
    roof = report.results["machine"]["roof"].get("matmul_tflops", float("nan")) * 1e12
    flops = flops_per_window(architecture, **sizes)
    done: list[EpochRecord] = []
    windows = [0]
    start = time.perf_counter()
    out: dict[str, Any] = {"members": args.members, "epochs": count}

    def told(record: EpochRecord) -> None:
        done.append(record)
        windows[0] += sum(len(one.origins("train", 30, 10)) for one in series)
        seconds = time.perf_counter() - start
        complete = len(done) == count
        rate = windows[0] * flops / seconds
        each = statistics.median(one.seconds for one in done)
        out.update(
            fleet_s=seconds if complete else seconds + each * (count - len(done)),
            measured_epochs=len(done),
            estimated=not complete,
            windows_per_s=windows[0] / seconds,
            tflops=rate / 1e12,
            roof_share=rate / roof,
        )
        report.put(part, architecture, dict(out), every_s=0.0 if len(done) == 1 else 5.0)

    watched = Captures()
    with Monitor(args.device, interval=0.1) as monitor, watched.watching():
        try:
            whole = {"epochs": count, "patience": count, "workers": 1, "on_epoch": told, "kernels": kernels}
            members = train(series, architecture, device=args.device, **whole, **sizes)
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
        "reserved_mb": summary["gpu_mem_reserved_peak_mb"],
        "util": summary.get("gpu_util_mean"),
        "power_w": summary.get("gpu_power_mean_w"),
    }


def naive_job(args: argparse.Namespace, architecture: str) -> dict[str, Any]:
    """Seconds per model and epoch of both loops, each after a warm-up epoch, in fp32 and with autocast."""
    series, _, _ = _job_series(args, architecture)
    recipe = naive.Recipe(16, 2, 2, 16, 0.1) if args.tiny else None
    count = args.epochs or (2 if args.tiny else JOBS[architecture][1])
    out: dict[str, Any] = {}
    for name, how in naive.WAYS.items():
        seconds = []
        for _ in range(2):
            start = time.perf_counter()
            naive.train_one(
                series[0], architecture, epochs=1, seed=0, device=args.device, recipe=recipe, **how
            )
            _wait(torch.device(args.device))
            seconds.append(time.perf_counter() - start)
        out[name] = seconds[1] * args.members * count
    return out | {"scaled_from": f"1 model x 1 epoch to {args.members} x {count}"}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run all parts in order; print one table or the JSON."""
    args = _parse(argv)
    if (
        args.device == "cpu"
    ):  # tiny steps: on a busy machine threads wait for each other longer than they work
        torch.set_num_threads(1)
    report = Report(args.out, args.budget)
    device, names = torch.device(args.device), args.only or list(JOBS)
    report.run("machine", "roof", 30, lambda: measure_roof(device, args.tiny))
    parts: dict[str, tuple[float, Callable[[str], object]]] = {
        "gradients": (60, lambda name: gradients(args, name)),
        "correctness": (90, lambda name: correctness(args.device, name, args.tiny)),
        "kernels": (45, lambda name: kernel_table(args, name)),
        "epochs": (60, lambda name: epochs(args, name)),
        f"epochs{OFF}": (60, lambda name: epochs(args, name, kernels=False)),
        "jobs": (120, lambda name: job(args, name, report)),
        f"jobs{OFF}": (120, lambda name: job(args, name, report, kernels=False)),
        "naive": (90, lambda name: naive_job(args, name)),
    }
    ways = ("", OFF) if device.type == "cuda" else ("",)
    comparisons = ["gradients", "correctness", "kernels", *(f"epochs{way}" for way in ways)]
    first = [(part, name) for part in comparisons for name in names]
    short = [(f"jobs{way}", name) for name in names if name != "lstm" for way in ways]
    usual = [("naive", name) for name in names if not args.skip_naive]
    long = [(f"jobs{way}", name) for name in names if name == "lstm" for way in ways]
    for part, name in [*first, *short, *usual, *long]:
        limit_s, work = parts[part]
        report.run(part, name, limit_s, partial(work, name))
    report.write()
    print(json.dumps(report.results) if args.json else markdown(report.results))
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
    parser.add_argument("--epochs", type=int, default=0, help="default: all epochs of the seed preset")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds for all of it")
    parser.add_argument("--skip-naive", action="store_true", help="the fleet alone")
    parser.add_argument("--tiny", action="store_true", help="small sizes: seconds, also on a CPU")
    parser.add_argument("--out", help="JSON file, rewritten after every part; a table is written beside it")
    parser.add_argument("--json", action="store_true", help="JSON on stdout instead of the table")
    args = parser.parse_args(argv)
    args.members = args.members or (3 if args.tiny else 40)
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("no usable GPU here (see `cpb doctor`); try --device cpu --tiny")
    return args


def markdown(results: Mapping[str, Any]) -> str:
    """The results as tables for RESULTS.md; lists and nested figures stay in the JSON."""
    text = []
    for part, rows in results.items():
        if not isinstance(rows, dict):
            continue
        flat = {
            name: {k: v for k, v in row.items() if not isinstance(v, (dict, list))}
            for name, row in rows.items()
        }
        text.append(f"### {part}\n\n{table(flat)}")
    return "\n\n".join([*text, f"{results.get('seconds', 0):.0f} s in all."])


if __name__ == "__main__":
    raise SystemExit(0 if right(main()) else 1)
