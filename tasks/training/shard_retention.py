"""Which shards stay on disk; otherwise about 10 MB per architecture and run would accumulate every night.

Champions' files are in MLflow's artifacts. A shard's folder is used by its own run, by the same command repeated (as
after a kill), and by users who were given its model folder: so the last few shards of each kind are kept.
"""

import re
import time
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

from schemas.errors import BusyError, CpbError, DamagedError, log
from schemas.retention import SHARD_UNUSED_DAYS, SHARDS_PER_KIND
from tasks.storage.files import delete_files
from tasks.storage.locks import acquire, locked, open_lock
from tasks.storage.model_folder import MODEL_FILES
from tasks.storage.sealed import SEAL, SEAL_LOCK
from tasks.training.shard import (
    CHECKPOINTS,
    EPOCHS,
    JOB,
    LOCK,
    LOG,
    PROGRESS,
    RESULT,
    read_job,
    shard_folders,
)

_MEMBER_FILE = re.compile(
    rf"model/({'|'.join(map(re.escape, MODEL_FILES))})|(validation|test|score-[0-9a-f]+)\.npz"
    rf"|{re.escape(SEAL)}|{SEAL_LOCK}"
)


class ShardsInUse:
    """A run's shared lock on `ROOT/fleets`: while any run holds it, nothing there is removed. Ends with the process."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "fleets"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = open_lock(root / "fleets.lock")  # beside the folder, which contains shards only
        # Shared by runs, exclusive for removal: a run that begins while shards are removed waits, and finds no half
        # of one.
        acquire(self._lock, shared=True)

    def __enter__(self) -> "ShardsInUse":
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()

    def release(self) -> list[Path]:
        """Release the lock; the last run to release it removes old shards. Returns the removed folders."""
        with self._lock as lock:
            try:
                acquire(lock, wait=False)
            except BusyError:  # another run is active; it will remove them at its end
                return []
            return remove_old_shards(self._folder)


def are_in_use(root: Path) -> bool:
    """Whether a run, a backtest too, holds the shards below a market's home now."""
    lock = root / "fleets.lock"
    if not lock.exists():
        return False
    try:
        with locked(lock, wait=False):
            return False
    except BusyError:
        return True
    except CpbError:  # a home that may only be read
        return False


def remove_old_shards(shards: Path) -> list[Path]:
    """Remove the shards beyond the newest `SHARDS_PER_KIND` of each kind, and those unused for `SHARD_UNUSED_DAYS`.

    A folder without a job of cpb is left alone; of the others only the files that cpb wrote are deleted.

    Returns:
        The folders that are gone.
    """
    kinds: dict[tuple[str, ...], list[tuple[float, Path, list[str]]]] = defaultdict(list)
    unused_since = time.time() - SHARD_UNUSED_DAYS * 86400
    for folder in shard_folders(shards.parent):
        try:
            job = read_job(folder)
            members = sorted(member.name for member in job.members)
            used = (folder / JOB).stat().st_mtime
        except (OSError, DamagedError) as error:
            log.debug("%s is not removed: its job cannot be read (%s)", folder, error)
        else:
            # A kind is what makes the models and whom they are of: yesterday's shard and today's differ in candles
            # and bounds alone.
            kinds[job.spec.model_dump_json(), *members].append((used, folder, members))
    return [
        folder
        for kind in kinds.values()
        for place, (used, folder, members) in enumerate(sorted(kind, reverse=True))
        if (place >= SHARDS_PER_KIND or used < unused_since) and _remove(folder, members)
    ]


def _remove(folder: Path, members: Collection[str]) -> bool:
    """Remove one shard, unless a trainer is active in it; its job goes last, so that a kill does not hide the rest."""

    def is_ours(path: str) -> bool:
        top, _, below = path.partition("/")
        member, _, name = below.partition("/")
        return (
            path in (RESULT, EPOCHS, PROGRESS, LOG, LOCK)
            or top == CHECKPOINTS
            or (top == "members" and member in members and _MEMBER_FILE.fullmatch(name) is not None)
        )

    try:
        with locked(folder / LOCK, wait=False):
            # Files that cpb did not write stay, and the folder with them: somebody has put them there.
            delete_files(folder, is_ours)
            return delete_files(folder, JOB.__eq__)
    except (OSError, CpbError) as error:  # in use, or owned by another user: the next run tries again
        log.info("%s could not be removed: %s", folder, error)
        return False
