"""Trainings and searches in progress on this machine, from the trainers' files, and the newest runs of the flow."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from schemas.errors import DamagedError
from schemas.identity import APART, SPOT, market_home
from tasks.storage.files import read_json_or_none
from tasks.training.local import PROGRESS
from tasks.training.shard import JOB, RESULT, is_training, read_job, shard_folders
from tasks.tuning.at_work import SEARCH, Search, searches_at_work
from webapp import registry
from webapp.answers import Runs, Training
from webapp.replies import Answer, State, file_state


def runs(home: Path, limit: int) -> Answer:
    """Return the trainings in progress, and the newest `limit` runs of the flow."""
    found, note = registry.flow_runs(limit)
    return Answer(Runs(trainings=list(_trainings(home)), runs=found, note=note), "runs")


def trainings_state(home: Path) -> State:
    """Return the state of the unfinished shards: whether they are being trained, and their progress."""
    shards = ((folder, is_training(folder)) for folder in _unfinished(home))
    searches = ((folder, True) for folder, _ in _searches(home))
    return tuple((folder.name, file_state(folder / PROGRESS), on) for folder, on in (*shards, *searches))


def _roots(home: Path) -> list[Path]:
    return [market_home(home, market) for market in (SPOT, *APART)]


def _unfinished(home: Path) -> list[Path]:
    return [f for root in _roots(home) for f in shard_folders(root) if not (f / RESULT).exists()]


def _searches(home: Path) -> list[tuple[Path, Search]]:
    return [found for root in _roots(home) for found in searches_at_work(root)]


def _trainings(home: Path) -> Iterator[Training]:
    for folder in filter(is_training, _unfinished(home)):
        try:
            job = read_job(folder)
        except (DamagedError, FileNotFoundError):  # reported by the flow that started it
            continue
        series = [member.model.series for member in job.members]
        yield Training(
            market=series[0].market,
            fleet=folder.name,
            architecture=job.architecture,
            preset=job.preset,
            device=job.device,
            members=len(series),
            symbols=sorted({one.symbol for one in series}),
            timeframes=sorted({one.timeframe for one in series}),
            **_progress(folder, folder / JOB),
        )
    for folder, search in _searches(home):
        yield Training(
            market=search.market,
            fleet=folder.name,
            architecture=f"search of {search.architecture}",
            preset=search.preset,
            device=search.device,
            # of the batch: its trials on every series and fold
            members=(read_json_or_none(folder / PROGRESS) or {}).get("members", 0),
            symbols=sorted(search.symbols),
            timeframes=sorted(search.timeframes),
            **_progress(folder, folder / SEARCH),
        )


def _progress(folder: Path, began: Path) -> dict[str, Any]:
    """Return the progress of a training since its current start, when the file `began` was written."""
    path = folder / PROGRESS
    known: dict[str, Any] | None = read_json_or_none(path)
    started = began.stat().st_mtime
    since = {"since": datetime.fromtimestamp(started, UTC)}
    if known is None or path.stat().st_mtime < started:
        return since  # the trainer has not begun; the file is from an earlier process
    return since | {
        "epoch": known["epoch"],
        "epochs": known["epochs"],
        "train_loss": known["train_loss"],
        "val_loss": known["val_loss"],
        "windows_per_s": known.get("windows_per_s"),
        "seconds_per_epoch": known.get("seconds"),
        "eta_seconds": known["eta_s"],
    }
