"""What is being trained on this machine, by the files that trainers write, and the newest runs of the flow."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from schemas.errors import DamagedError
from schemas.handover import FleetJob
from schemas.identity import APART, SPOT, market_home
from tasks.storage.files import read_json_or_none
from tasks.training.fleet_files import JOB, RESULT, fleet_folders, is_training, read_job
from tasks.training.process import PROGRESS
from webapp import registry
from webapp.answers_lists import Runs, Training
from webapp.replies import Answer
from webapp.states import State, file_state


def runs(home: Path, limit: int) -> Answer:
    """Return the trainings at work, and the newest `limit` runs of the flow."""
    found, note = registry.flow_runs(limit)
    trainings = [_training(folder, job) for folder, job in _at_work(home)]
    return Answer(Runs(trainings=trainings, runs=found, note=note), "runs")


def trainings_state(home: Path) -> State:
    """Return the state of the fleets that have no result yet: which are at work, and how far they have come."""
    return tuple(
        (folder.name, file_state(folder / PROGRESS), is_training(folder)) for folder in _unfinished(home)
    )


def _unfinished(home: Path) -> list[Path]:
    roots = [market_home(home, market) for market in (SPOT, *APART)]
    return [f for root in roots for f in fleet_folders(root) if not (f / RESULT).exists()]


def _at_work(home: Path) -> list[tuple[Path, FleetJob]]:
    found = []
    for folder in _unfinished(home):
        if is_training(folder):
            try:
                found.append((folder, read_job(folder)))
            except (DamagedError, FileNotFoundError):  # the flow that started it names it
                continue
    return found


def _training(folder: Path, job: FleetJob) -> Training:
    series = [member.model.series for member in job.members]
    return Training(
        market=series[0].market,
        fleet=folder.name,
        architecture=job.architecture,
        preset=job.preset,
        device=job.device,
        members=len(series),
        symbols=sorted({one.symbol for one in series}),
        timeframes=sorted({one.timeframe for one in series}),
        since=datetime.fromtimestamp((folder / JOB).stat().st_mtime, UTC),
        **_progress(folder),
    )


def _progress(folder: Path) -> dict[str, Any]:
    """Return how far a fleet has come since it was started this time."""
    path = folder / PROGRESS
    known: dict[str, Any] | None = read_json_or_none(path)
    if known is None or path.stat().st_mtime < (folder / JOB).stat().st_mtime:
        return {}  # the trainer has not begun; what an earlier process left is not this one's
    return {
        "epoch": known["epoch"],
        "epochs": known["epochs"],
        "train_loss": known["train_loss"],
        "val_loss": known["val_loss"],
        "windows_per_s": known.get("windows_per_s"),
        "seconds_per_epoch": known.get("seconds"),
        "eta_seconds": known["eta_s"],
    }
