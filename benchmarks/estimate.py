"""The doctor's estimate of a training against the training itself, with a patience that lets no member stop early.

    python -m benchmarks.estimate --preset seed-gru --epochs 3         # simulated candles, 20 coins x {15m, 1h}
    python -m benchmarks.estimate --preset seed-lstm --epochs 1 --source FOLDER --as-of 2025-06-06

The steps are timed twice after the training, so that a change of the machine's load shows. `training_s` is the time
that the longest lane (a GPU, a core) spent in epochs, which the estimate is of; `wall_s` from the first candles on a
device to the last file of the last shard: forecasts and, beside them, judging are in it. Exit code 1: the mean estimate
is more than 25 % off.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks._paired import table
from benchmarks.pipeline import measure
from cpbmodels import architecture, preset
from cpbmodels.arch.options import Preset, profile_for
from cpbmodels.doctor.examine import ESTIMATED
from cpbmodels.doctor.pace import Run, members_on_gpu, time_fleet, time_on_cores, training_seconds
from schemas.handover import ShardJob, ShardResult
from tasks.running.cores import usable_cores
from tasks.storage.records import read_record
from tasks.training.shard import JOB, RESULT, shard_folders
from tasks.training.trainers import MALLOC

PATIENCE = 100_000
TOLERANCE = 0.25


def spans_of(jobs: list[ShardJob]) -> list[tuple[int, int]]:
    """Candles in the training and the validation span of each member."""
    members = [member for job in jobs for member in job.members]
    return [
        (m.features.candles_in(m.bounds.train), m.features.candles_in(m.bounds.validation)) for m in members
    ]


def estimate(
    kind: str, options: Preset, jobs: list[ShardJob], members: int, lanes: int, device: torch.device
) -> dict[str, float]:
    """Step and whole training of these jobs, as the doctor computes them."""
    if device.type == "cuda":
        members = members_on_gpu(options, torch.cuda.mem_get_info(device)[0])
        row = time_fleet(kind, options, members, device)
    else:
        row = time_on_cores({kind: options}, members, lanes, Run(environment=MALLOC))[kind]
    spent = training_seconds(options, row, spans_of(jobs), lanes)
    return {"members": members, "step_ms": row["step_ms"], "training_s": spent}


def trained(results: list[ShardResult], lanes: int) -> dict[str, float]:
    """What the training took: epochs alone, on the estimate's lanes, and from begin to end.

    A shard that is alone has a fleet in each lane, and each of them reports its epochs.
    """
    busy, shards = [0.0] * lanes, [sum(epoch["epoch_seconds"] for epoch in r.epochs) for r in results]
    for spent in sorted([shards[0] / lanes] * lanes if len(shards) == 1 else shards, reverse=True):
        busy[busy.index(min(busy))] += spent
    work = [result.work for result in results if result.work]
    return {"training_s": max(busy), "wall_s": max(w.end for w in work) - min(w.begin for w in work)}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.estimate")
    parser.add_argument("--preset", choices=list(ESTIMATED), default="seed-gru")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--coins", default="all")
    parser.add_argument("--timeframes", default="15m,1h")
    parser.add_argument("--source", default="sim", help="a mirror's folder; default: simulated candles")
    parser.add_argument("--as-of")
    parser.add_argument("--set", action="append", default=[], help="a field of the preset, for a quick try")
    args = parser.parse_args(argv)
    kind = ESTIMATED[args.preset]
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", 0) if gpu else torch.device("cpu")
    profile = profile_for(torch.cuda.get_device_properties(0).total_memory) if gpu else None
    changed: dict[str, Any] = {"epochs": args.epochs, "patience": PATIENCE}
    changed |= {name: int(value) for name, _, value in (text.partition("=") for text in args.set)}
    options = preset(args.preset, architecture(kind).name, profile, **changed)
    source = args.source if args.source == "sim" else str(Path(args.source).resolve())
    words = ["train-all", "--source", source, "--coins", args.coins, "--timeframes", args.timeframes]
    words += [
        "--preset",
        args.preset,
        "--architectures",
        kind,
        *(["--as-of", args.as_of] if args.as_of else []),
    ]
    words += [word for name, value in changed.items() for word in ("--set", f"{name}={value}")]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "data")
        with patch.dict("os.environ", {"CPB_HOME": str(home), "MLFLOW_TRACKING_URI": ""}):
            figures = measure(words, Path(folder))
        shards = shard_folders(home / "sim" if source == "sim" else home)
        if not shards:
            raise SystemExit(Path(folder, "out.log").read_text()[-2000:])
        jobs = [read_record(path / JOB, ShardJob) for path in shards]
        results = [read_record(path / RESULT, ShardResult) for path in shards]
    # A shard that is alone on a CPU cuts its fleet into one for each core (`train_fleet`).
    members = max(len(job.members) for job in jobs)
    members, lanes = (
        (-(-members // usable_cores()), usable_cores()) if len(jobs) == 1 else (members, len(jobs))
    )
    lanes = torch.cuda.device_count() if gpu else min(usable_cores(), lanes)
    rows: dict[str, dict[str, float]] = {
        "trained": trained(results, min(lanes, len(jobs)))
        | {"command_s": figures["seconds"], "exit": figures["exit"]}
    }
    # Of two, so that a change of the machine's load shows.
    for name in ("estimate", "estimate again"):
        rows[name] = estimate(kind, options, jobs, members, lanes, device)
    ratio = statistics.fmean(row["training_s"] for name, row in rows.items() if name != "trained")
    ratio /= rows["trained"]["training_s"]
    models = sum(len(job.members) for job in jobs)
    print(f"\n## {models} models of {args.preset}, {args.epochs} epochs, {lanes} at once on {device}\n")
    print(table(rows))
    print(f"\nestimate / trained = {ratio:.3f}")
    return int(abs(ratio - 1) > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
