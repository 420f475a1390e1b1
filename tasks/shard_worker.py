"""The process that trains and judges one shard: `python -m tasks.shard_worker FOLDER`, started by `run_trainer`.

It judges what it has trained: torch is loaded and the candles are at hand, and shards are judged side by side. A
backtest's shards, which have folds, are judged by the backtest. `trained.json` becomes `result.json` once all is there,
so a process that is killed while it judges is not trained again.
"""

if __name__ == "__main__":  # before the heavy imports: a parent may die while they last
    from tasks.training.process import die_with_parent

    die_with_parent()

import os
import sys
from pathlib import Path

import torch

from schemas.errors import CpbError
from schemas.handover import FleetResult
from tasks.judging.fleet import judge_shard
from tasks.storage.files import rename
from tasks.storage.locks import locked
from tasks.storage.records import find_record
from tasks.training.fleet_files import RESULT, TRAINED, read_job
from tasks.training.progress import ProgressFile
from tasks.training.worker import train_job


def main(folder: Path) -> int:
    """Train and judge the job in `folder`; returns the exit code."""
    torch.set_num_threads(int(os.environ.get("CPB_THREADS", "1")))
    with locked(folder / "lock"):
        if not (folder / RESULT).exists():
            train_and_judge(folder)
    return 0


def train_and_judge(folder: Path) -> None:
    """Do what of the job in `folder` is not done yet; raises `CpbError` where none of its members can be trained."""
    job = read_job(folder)
    progress = ProgressFile(folder, job.architecture)
    result = find_record(folder / TRAINED, FleetResult, of=folder.name) or train_job(
        folder, TRAINED, progress
    )
    if not any(member.fold for member in job.members):
        judge_shard(folder, job, result, progress.judging)
    rename(folder / TRAINED, folder / RESULT)


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1])))
    except (CpbError, ValueError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(1)
