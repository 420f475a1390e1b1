"""The files of a fleet's shard: `ROOT/fleets/KEY` with its job, its result, its log and a folder per member.

ROOT is `HOME`, or `HOME/sim`, `HOME/own` for markets other than Binance's (`Scope.root`).
"""

import os
import re
from pathlib import Path

from schemas.errors import DamagedError, log
from schemas.handover import ShardJob, ShardResult
from schemas.identity import APART
from tasks.storage.locks import is_locked
from tasks.storage.model_folder import NEEDED
from tasks.storage.records import find_record, read_record, write_record
from tasks.storage.sealed import check_sealed
from tasks.training.plan import job_key

JOB, RESULT, PROGRESS, LOG = "job.json", "result.json", "progress.json", "worker.log"
LOCK = "lock"
"""That of the shard's trainer."""
EPOCHS = "epochs.jsonl"
"""Of a shard in training: the cost of each epoch, a line per report (`progress.py`)."""
CHECKPOINTS = "checkpoints"
"""Folder of a shard in training: a checkpoint per epoch, in a folder per fleet that trains separately."""

_KEY = re.compile(r"[0-9a-f]{16}")


def shard_folder(root: Path, job: ShardJob) -> Path:
    """Return the folder of a job's shard."""
    return root / "fleets" / job_key(job)


def shard_folders(root: Path) -> list[Path]:
    """Return the shards' folders below a market's home, sorted by name; links are left out."""
    shards = root / "fleets"
    paths = shards.iterdir() if shards.is_dir() else ()
    return sorted(p for p in paths if _KEY.fullmatch(p.name) and p.is_dir() and not p.is_symlink())


def prepare(root: Path, job: ShardJob) -> Path:
    """Create the shard's folder and write its job; if a file is damaged, the result of an earlier run is deleted.

    Without a result the shard is trained again and all its members are replaced.
    """
    folder = shard_folder(root, job)
    folder.mkdir(parents=True, exist_ok=True)
    # The time of the job is the time of last use, by which old shards are removed: its content stays the same.
    if find_record(folder / JOB, ShardJob) != job:
        write_record(folder / JOB, job)
    else:
        os.utime(folder / JOB)  # pruning keeps the most recently used shards
    result = find_record(folder / RESULT, ShardResult)
    damage = shard_damage(folder, result) if result else ""
    if damage:
        log.warning("a part of this training is done again, because %s", damage)
    if damage or not result:
        (folder / RESULT).unlink(missing_ok=True)
    return folder


def shard_damage(folder: Path, result: ShardResult) -> str:
    """Return the first damage of the shard's models, "" for none; what judging adds to them can be judged again."""
    try:
        for member in result.members:
            check_sealed(folder / "members" / member.name, *(f"model/{name}" for name in NEEDED))
    except FileNotFoundError as error:
        return f"{error.filename} is missing"
    except (DamagedError, OSError) as error:
        return str(error)
    return ""


def read_job(folder: Path) -> ShardJob:
    """Return the job in a shard's folder; raises `DamagedError` or `FileNotFoundError`."""
    return read_record(folder / JOB, ShardJob)


def read_result(folder: Path) -> ShardResult:
    """Return the result of a finished shard; raises `DamagedError` or `FileNotFoundError`."""
    return read_record(folder / RESULT, ShardResult)


def is_training(folder: Path) -> bool:
    """Whether a trainer is active in this shard's folder."""
    return is_locked(folder / LOCK)


def home_of(folder: Path, job: ShardJob) -> Path:
    """Return `CPB_HOME`, derived from a shard's folder: paths in records are relative to it."""
    # Two folders up is the market's home; markets other than Binance's have theirs within the user's.
    root = folder.absolute().parents[1]  # not resolved: `fleets` may be a link to another disk
    return root.parent if job.members[0].model.series.market in APART else root


def member_folder(folder: Path, name: str) -> Path:
    """Return the folder of one member of the shard in `folder`."""
    path = folder / "members" / name
    if not path.is_dir():
        raise DamagedError(f"{path} is gone; remove {folder} and run the same command again", field=str(path))
    return path
