"""Where a shard of a fleet lies: `ROOT/fleets/KEY` with its job, its result, its log and a folder per member.

ROOT is `HOME`, or `HOME/sim`, `HOME/own` for markets apart from Binance's (`Scope.root`).
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from schemas.errors import DamagedError
from schemas.handover import FleetJob, FleetResult
from schemas.identity import APART
from tasks.storage.locks import is_locked
from tasks.storage.model_folder import trained_file_damage
from tasks.storage.records import find_record, read_record, set_aside, write_record
from tasks.training.planning import job_key
from tasks.training.process import RESULT

JOB = "job.json"
TRAINED = "trained.json"
"""The result between training and judging; then it is renamed to `RESULT`."""

EPOCHS = "epochs.jsonl"
"""Of a fleet in training: what each of its epochs has cost, a line per report (`epochs.py`)."""
_KEY = re.compile(r"[0-9a-f]{16}")


def fleet_folder(root: Path, job: FleetJob) -> Path:
    """Return the folder of a job's fleet."""
    return root / "fleets" / job_key(job)


def fleet_folders(root: Path) -> list[Path]:
    """Return the folders below a market's home that carry a fleet's name, in order; links are left out."""
    fleets = root / "fleets"
    found = fleets.iterdir() if fleets.is_dir() else ()
    return sorted(p for p in found if _KEY.fullmatch(p.name) and p.is_dir() and not p.is_symlink())


def prepare(root: Path, job: FleetJob) -> Path:
    """Make the fleet's folder and write its job; the result of an earlier run is set aside where a file is damaged.

    Without a result the fleet is trained again, and all its members are replaced.
    """
    folder = fleet_folder(root, job)
    folder.mkdir(parents=True, exist_ok=True)
    if find_record(folder / JOB, FleetJob) != job:
        write_record(folder / JOB, job)
    else:
        os.utime(folder / JOB)  # the most recently used fleets survive the pruning
    for name in (TRAINED, RESULT):
        result = find_record(folder / name, FleetResult)
        if result and (path := next((path for path, _ in damaged_files(folder, result)), None)):
            set_aside(folder / name, f"{path} is damaged, so this fleet is trained again")
    return folder


def damaged_files(folder: Path, result: FleetResult) -> Iterator[tuple[Path, str]]:
    """Yield each file of the fleet's models that is not what its trainer wrote, and the reason."""
    for member in result.members:
        for name, digest in member.files.items():
            path = folder / "members" / member.name / "model" / name
            if reason := trained_file_damage(path, digest):
                yield path, reason


def read_job(folder: Path) -> FleetJob:
    """Return the job in a fleet's folder; raises `DamagedError` or `FileNotFoundError`."""
    return read_record(folder / JOB, FleetJob)


def read_result(folder: Path) -> FleetResult:
    """Return the result of a finished fleet; raises `DamagedError` or `FileNotFoundError`."""
    return read_record(folder / RESULT, FleetResult)


def progress_so_far(folder: Path) -> str:
    """Return how far the fleet had come before: trained, begun, or "" for not at all."""
    if (folder / RESULT).exists():
        return "trained before by the same command"
    if (folder / TRAINED).exists():
        return "trained before by the same command, judged from where it stopped"
    checkpoints = folder / "checkpoints"
    return "from its last checkpoint on" if checkpoints.is_dir() and any(checkpoints.iterdir()) else ""


def is_training(folder: Path) -> bool:
    """Whether a trainer is at work in this fleet's folder."""
    return is_locked(folder / "lock")


def home_of(folder: Path, job: FleetJob) -> Path:
    """Return `CPB_HOME` as seen from a fleet's folder: records hold paths relative to it."""
    root = folder.resolve().parents[1]
    return root.parent if job.members[0].model.series.market in APART else root


def member_folder(folder: Path, name: str) -> Path:
    """Return the folder of one member of the fleet in `folder`."""
    found = folder / "members" / name
    if not found.is_dir():
        raise DamagedError(
            f"{found} is gone; remove {folder} and run the same command again", field=str(found)
        )
    return found
