"""Where a fleet lies: `ROOT/fleets/KEY` with its job, its result, its log and a folder per member.

ROOT is `HOME`, or `HOME/sim` for simulated candles (`Scope.root`).
"""

import os
from pathlib import Path

from schemas.errors import DamagedError
from schemas.handover import FleetJob, FleetResult
from schemas.identity import SIM
from tasks.storage.locks import is_locked
from tasks.storage.records import find_record, read_record, write_record
from tasks.training.planning import job_key

JOB, RESULT = "job.json", "result.json"


def fleet_folder(root: Path, job: FleetJob) -> Path:
    """Return the folder of a job's fleet."""
    return root / "fleets" / job_key(job)


def prepare(root: Path, job: FleetJob) -> Path:
    """Make the fleet's folder and write its job; a damaged result of an earlier run is set aside."""
    folder = fleet_folder(root, job)
    folder.mkdir(parents=True, exist_ok=True)
    if find_record(folder / JOB, FleetJob) != job:
        write_record(folder / JOB, job)
    else:
        os.utime(folder / JOB)  # the most recently used fleets survive the pruning
    find_record(folder / RESULT, FleetResult)
    return folder


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
    checkpoints = folder / "checkpoints"
    return "from its last checkpoint on" if checkpoints.is_dir() and any(checkpoints.iterdir()) else ""


def is_training(folder: Path) -> bool:
    """Whether a trainer is at work in this fleet's folder."""
    return is_locked(folder / "lock")


def home_of(folder: Path, job: FleetJob) -> Path:
    """Return `CPB_HOME` as seen from a fleet's folder: records hold paths relative to it."""
    root = folder.resolve().parents[1]
    return root.parent if job.members[0].model.series.market == SIM else root


def member_folder(folder: Path, name: str) -> Path:
    """Return the folder of one member of the fleet in `folder`."""
    found = folder / "members" / name
    if not found.is_dir():
        raise DamagedError(
            f"{found} is gone; remove {folder} and run the same command again", field=str(found)
        )
    return found
