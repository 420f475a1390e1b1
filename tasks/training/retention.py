"""Selects the fleets that stay on disk: otherwise about 10 MB per architecture and run would accumulate every night.

Champions' files are in MLflow's artifacts. A fleet's folder is used by its own run, by the same command repeated (for
example after a kill), and by users who were given its model folder: so the last few fleets of each kind are kept.
"""

import logging
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from schemas.errors import BusyError, CpbError, DamagedError
from schemas.handover import ShardJob
from tasks.storage.files import DRAFT
from tasks.storage.locks import acquire, locked, open_lock
from tasks.storage.model_folder import FILES
from tasks.storage.records import SET_ASIDE
from tasks.training.files import EPOCHS, JOB, RESULT, fleet_folders, read_job

MAX_FLEETS_PER_KIND = 3
"""Fleets kept per kind (architecture, preset and members): the most recently used."""

MAX_UNUSED_DAYS = 90
"""Days without use after which all fleets of a kind are removed: the kinds change with every newly listed coin."""

_RECORDS = "|".join(map(re.escape, (JOB, RESULT, EPOCHS, "progress.json")))
_TOP = re.compile(rf"{_RECORDS}|worker\.log(\.\d+)?|lock")
_MEMBER = re.compile(r"(validation|test|score-[0-9a-f]+)\.npz")

log = logging.getLogger("cpb")


class FleetsInUse:
    """A run's shared lock on `ROOT/fleets`: while any run holds it, nothing there is removed. Ends with the process."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "fleets"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = open_lock(root / "fleets.lock")  # beside the folder, which contains fleets only
        acquire(self._lock, shared=True)

    def release(self) -> list[Path]:
        """Release the lock; the last run to release it removes old fleets. Returns the removed folders."""
        with self._lock as lock:
            try:
                acquire(lock, wait=False)
            except BusyError:  # another run is active; it will remove them at its end
                return []
            return remove_old_fleets(self._folder)


@contextmanager
def no_fleets_in_use(root: Path) -> Iterator[None]:
    """Prevent trainings below `root` during the block; raises `BusyError` if a training is active."""
    if not (root / "fleets").is_dir():
        yield
        return
    with locked(root / "fleets.lock", wait=False):
        yield


def remove_old_fleets(fleets: Path, now: datetime | None = None) -> list[Path]:
    """Remove old fleets and return the removed folders; see `old_fleets`."""
    return [folder for folder in old_fleets(fleets, now) if _remove(folder)]


def old_fleets(fleets: Path, now: datetime | None = None) -> list[Path]:
    """Return all but the newest `MAX_FLEETS_PER_KIND` fleets of each kind, and those unused for `MAX_UNUSED_DAYS`.

    A folder that may not be a fleet of cpb is left out: its job must be cpb's, and it must contain only files written
    by cpb.
    """
    kinds: dict[tuple[str, ...], list[tuple[float, Path, set[str]]]] = defaultdict(list)
    unused_since = (now or datetime.now(UTC)).timestamp() - MAX_UNUSED_DAYS * 86400
    old: list[tuple[Path, set[str]]] = []
    for folder in fleet_folders(fleets.parent):
        try:
            job = read_job(folder)
            members = {member.name for member in job.members}
            kinds[_kind(job)].append(((folder / JOB).stat().st_mtime, folder, members))
        except (OSError, DamagedError) as error:
            log.debug("%s is left as it is: its job cannot be read (%s)", folder, error)
    for found in kinds.values():
        for place, (used, folder, members) in enumerate(sorted(found, key=lambda one: one[0], reverse=True)):
            if place >= MAX_FLEETS_PER_KIND or used < unused_since:
                old.append((folder, members))
    return [folder for folder, members in old if not _is_foreign(folder, members)]


def _kind(job: ShardJob) -> tuple[str, ...]:
    return (job.architecture, job.preset, *sorted(member.name for member in job.members))


def _is_foreign(folder: Path, members: set[str]) -> bool:
    """Whether a fleet's folder contains a file not written by cpb, which is logged."""
    if foreign := _foreign_file(folder, members):
        log.info("%s is kept: it holds %s, which is not a file of cpb", folder, foreign.relative_to(folder))
    return foreign is not None


def _remove(folder: Path) -> bool:
    """Remove one fleet, unless a trainer is active in it."""
    try:
        with locked(folder / "lock", wait=False):
            shutil.rmtree(folder)
    except (OSError, CpbError) as error:  # in use, or owned by another user: the next run tries again
        log.info("%s could not be removed: %s", folder, error)
        return False
    return True


def _foreign_file(folder: Path, members: set[str]) -> Path | None:
    """Return the first file of a fleet's folder that is not a file of cpb, or None."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not (
            path.is_dir() or _is_fleet_file(path.relative_to(folder).parts, members)
        ):
            return path
    return None


def _is_fleet_file(parts: tuple[str, ...], members: set[str]) -> bool:
    top, *rest = (_final_name(part) for part in parts)
    if not rest:
        return _TOP.fullmatch(top) is not None
    if top == "checkpoints":
        return True
    if top != "members" or rest[0] not in members:
        return False
    match rest[1:]:
        case ["model", name]:
            return name in FILES
        case [name]:
            return _MEMBER.fullmatch(name) is not None
    return False


def _final_name(name: str) -> str:
    """Return the final name of a draft, or the original name of a file set aside as damaged."""
    found = DRAFT.fullmatch(name) or SET_ASIDE.fullmatch(name)
    return found["name"] if found else name
