"""How long a training takes on this machine: a fleet's step and validation, timed as they would run, times its epochs.

On a GPU one fleet is timed in this process. On a CPU a fleet trains on each core, and cores that share a cache, or are
threads of one core, slow each other down: as many processes as fleets train at once time the same steps at the same
time, by this file as a program.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from cpbmodels.arch.options import Preset
from cpbmodels.device.monitor import MB
from cpbmodels.device.operators import gpu_kernels, operators_on_cpu
from cpbmodels.errors import first_line
from cpbmodels.fleet.graphs import EAGER_RUNS
from cpbmodels.fleet.kernel_check import kernels_off
from cpbmodels.fleet.kernel_switch import described
from cpbmodels.fleet.net import compute_dtype
from cpbmodels.fleet.one_step import fleet_step

MODELS = 40
"""Models of the runs that are estimated: 20 coins at two timeframes."""
BYTES_PER_MEMBER = 0.2e9  # free memory of a GPU for a member of a step: an lstm's takes 0.13 GB
_PRODUCTS = {torch.bfloat16: "bf16", torch.float16: "fp16"}


@dataclass(frozen=True)
class Run:
    """What an application knows of the run that is estimated, and the library does not.

    spans: candles in the training and in the validation span of each model. cpu_members: models that a core trains
    together. environment: of the processes that train on a CPU.
    """

    spans: Sequence[tuple[int, int]] = ((14_000, 1_500),) * MODELS  # two years of hours
    cpu_members: int = 4
    environment: Mapping[str, str] = field(default_factory=dict)


def best_seconds(run: Callable[[], object], device: torch.device, repeats: int = 5, inner: int = 1) -> float:
    """Best time of one `run()` in seconds: `repeats` measurements of `inner` runs each, after a warm-up.

    On a GPU the host waits for the device before and after: launches are asynchronous.
    """

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    run()
    spent = []
    for _ in range(repeats):
        wait()
        start = time.perf_counter()
        for _ in range(inner):
            run()
        wait()
        spent.append(time.perf_counter() - start)
    return min(spent) / inner


def time_fleet(architecture: str, options: Preset, members: int, device: torch.device) -> dict[str, Any]:
    """Time one step of `members` models together, and their validation.

    Returns members, batch, step_ms, windows_per_s, validation_us (of one window of each member), weights of a model,
    products (the dtype of its products) and kernels ("on", or why they are off). On a GPU also gpu_mem_peak_mb,
    gpu_busy (the share of the step in which a kernel ran), longest_kernels, and cpu_operators, which gave CPU tensors.
    """
    gpu = device.type == "cuda"
    reason = kernels_off(architecture, options, device)
    step = fleet_step(architecture, options, members, device, kernels=not reason)
    validate, windows = step.validation()
    if gpu:
        torch.cuda.reset_peak_memory_stats(device)
        for work in (step, validate):
            for _ in range(EAGER_RUNS + 1):  # eager, then the capture
                work()
    # On a GPU steps without a wait between them, as in a training. On a CPU their mean: the best of some would be what
    # the machine can do, not what it does beside other programs.
    often = {"repeats": 3, "inner": 5} if gpu else {"repeats": 1, "inner": 3}
    spent, validation = (best_seconds(work, device, **often) for work in (step, validate))
    seen = gpu_kernels(step, device) if gpu else {}
    return {
        "members": members,
        "batch": options.batch_size,
        "step_ms": spent * 1e3,
        "windows_per_s": members * options.batch_size / spent,
        "validation_us": validation / windows * 1e6,
        "weights": step.fleet.net.layout.size,
        "products": _PRODUCTS.get(compute_dtype(options, architecture, device, torch.float32), "float32"),
        "kernels": described(reason),
        "gpu_mem_peak_mb": torch.cuda.max_memory_allocated(device) / MB if gpu else None,
        "gpu_busy": min(1.0, sum(seen.values()) / 1e6 / spent) if seen else None,
        "longest_kernels": list(seen)[:2],
        "cpu_operators": operators_on_cpu(step.eager) if gpu else [],
    }


def members_on_gpu(options: Preset, free_bytes: float) -> int:
    """How many of `MODELS` a GPU with this much free memory trains together."""
    return max(1, min(options.fleet_size, MODELS, int(free_bytes / BYTES_PER_MEMBER)))


def time_on_cores(
    wanted: Mapping[str, Preset], members: int, lanes: int, run: Run
) -> dict[str, dict[str, Any]]:
    """Time each architecture on `lanes` cores at once, one thread each.

    Returns rows as `time_fleet` does, with the cores' mean times; {"error": reason} where a step failed.
    """
    job = json.dumps({"members": members, "steps": {name: o.as_dict() for name, o in wanted.items()}})
    code = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    # One thread each, or the processes would share the cores that they are to have alone.
    alone = {"PYTHONPATH": code, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "cpbmodels.doctor.pace", job],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **run.environment, **alone},
        )
        for _ in range(lanes)
    ]
    try:
        answers = [_answer(process, wanted) for process in processes]
    finally:
        # Whatever happened: a process that was left would slow down all that follows.
        for process in processes:
            process.kill()
            process.wait()
    return {name: _mean([answer[name] for answer in answers]) for name in wanted}


def _answer(process: "subprocess.Popen[str]", wanted: Mapping[str, Preset]) -> dict[str, dict[str, Any]]:
    out, err = process.communicate()
    if process.returncode == 0:
        answer: dict[str, dict[str, Any]] = json.loads(out)
        return answer
    last = err.strip().splitlines()[-1:] or [f"code {process.returncode}"]
    return {name: {"error": f"its process ended: {last[0]}"} for name in wanted}


def _mean(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One row of the same step on several cores."""
    if failed := [row for row in rows if "error" in row]:
        return dict(failed[0])
    row = {**rows[0]}
    for name in ("step_ms", "validation_us"):
        row[name] = statistics.fmean(row[name] for row in rows)
    return row | {"windows_per_s": row["members"] * row["batch"] / (row["step_ms"] / 1e3)}


def training_seconds(
    options: Preset, row: Mapping[str, Any], spans: Sequence[tuple[int, int]], lanes: int = 1
) -> float:
    """Seconds to train a model on each of these spans for all epochs of the preset: no member stops early.

    Args:
        row: of `time_fleet`, for the same options: so many members train together.
        spans: candles in each model's training and validation span.
        lanes: fleets trained side by side, each as fast as the row says.

    Candles, judging and records around the training are not in it.
    """
    ordered, members = sorted(spans), row["members"]
    fleets = [ordered[start : start + members] for start in range(0, len(ordered), members)]
    busy = [0.0] * lanes
    # Longest first, each on the lane that is free first: a long one at the end would leave the others idle.
    for epoch in sorted((_epoch_seconds(options, row, fleet) for fleet in fleets), reverse=True):
        busy[busy.index(min(busy))] += options.epochs * epoch
    return max(busy)


def _epoch_seconds(options: Preset, row: Mapping[str, Any], fleet: Sequence[tuple[int, int]]) -> float:
    """A fleet's epoch: its members step and validate together, so the one with most windows counts."""
    rows = max(min(train, options.max_train_rows or train) for train, _ in fleet)
    windows = -(-max(rows - options.context + 1 - options.horizon, 0) // options.stride)
    steps = options.steps_per_epoch or -(-windows // options.batch_size)
    validated = min(
        max(validation for _, validation in fleet) - options.horizon, options.max_validation_windows
    )
    return float(steps * row["step_ms"] / 1e3 + max(validated, 0) * row["validation_us"] / 1e6)


def _main(job: Mapping[str, Any]) -> None:
    torch.set_num_threads(1)
    rows: dict[str, dict[str, Any]] = {}
    for name, fields in job["steps"].items():
        values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in fields.items()}
        options = Preset(**values)
        try:
            rows[name] = time_fleet(name, options, job["members"], torch.device("cpu"))
        except Exception as error:  # noqa: BLE001 - the other architectures are wanted all the more
            rows[name] = {"error": first_line(error)}
    print(json.dumps(rows))


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
