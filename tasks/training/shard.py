"""The files of a fleet's shard: `ROOT/fleets/KEY` with its job, its result, its log and a folder per member.

ROOT is `HOME`, or `HOME/sim`, `HOME/own` for markets other than Binance's (`Scope.root`).

A training can resume from a given checkpoint: another machine's, a backup's, or an earlier epoch's.

The newest shards of each kind stay on disk; otherwise about 10 MB per architecture and run would accumulate every
night. Champions' files are in MLflow's artifacts. A shard's folder is used by its own run, by the same command
repeated (as after a kill), and by users who were given its model folder: so the last few shards of each kind are kept.
"""

import os
import re
import time
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import BusyError, CpbError, DamagedError, UsageError, log
from schemas.handover import ShardJob, ShardResult
from schemas.identity import APART
from tasks.storage.files import delete_files, write_bytes
from tasks.storage.locks import acquire, is_locked, locked, open_lock
from tasks.storage.model_folder import MODEL_FILES, NEEDED
from tasks.storage.records import find_record, read_record, write_record
from tasks.storage.sealed import SEAL, check_sealed
from tasks.training.plan import job_key

JOB, RESULT, PROGRESS, LOG = "job.json", "result.json", "progress.json", "worker.log"
EPOCHS = "epochs.jsonl"
"""Of a shard in training: the cost of each epoch, a line per report (`progress.py`)."""
CHECKPOINTS = "checkpoints"
"""Folder of a shard in training: a checkpoint per epoch, in a folder per fleet that trains separately."""
LATEST = ("latest", "models/checkpoint-latest.pt")
"""The value of `--resume` that continues from the same command's own checkpoints."""
MAX_SHARDS_PER_KIND = 3
"""Shards kept per kind (what makes the models, and the members): the most recently used."""
MAX_UNUSED_DAYS = 90
"""Days without use after which all shards of a kind are removed: the kinds change with every newly listed coin."""

_KEY = re.compile(r"[0-9a-f]{16}")
_CHECKPOINT = re.compile(r"epoch-[0-9]{6}-[0-9a-f]{8}\.safetensors")
_MEMBER_FILE = re.compile(
    rf"model/({'|'.join(map(re.escape, MODEL_FILES))})|(validation|test|score-[0-9a-f]+)\.npz|{re.escape(SEAL)}"
)

TRAINED = "trained before by the same command"
"""What `progress_so_far` says of a shard that has its result."""


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
    if find_record(folder / JOB, ShardJob, of=folder.name) != job:
        write_record(folder / JOB, job, of=folder.name)
    else:
        os.utime(folder / JOB)  # pruning keeps the most recently used shards
    result = find_record(folder / RESULT, ShardResult, of=folder.name)
    damage = _damage(folder, result) if result else ""
    if damage:
        log.warning("this shard is trained again, because %s", damage)
    if damage or not result:
        (folder / RESULT).unlink(missing_ok=True)
    return folder


def _damage(folder: Path, result: ShardResult) -> str:
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
    return read_record(folder / JOB, ShardJob, of=folder.name)


def read_result(folder: Path) -> ShardResult:
    """Return the result of a finished shard; raises `DamagedError` or `FileNotFoundError`."""
    return read_record(folder / RESULT, ShardResult, of=folder.name)


def progress_so_far(folder: Path) -> str:
    """Return the progress of earlier runs in words: trained, started, or "" for none and for a damaged result."""
    result = find_record(folder / RESULT, ShardResult, of=folder.name)
    if result and not _damage(folder, result):
        return TRAINED
    newest = _newest((folder / CHECKPOINTS).rglob("epoch-*.safetensors"))
    epochs = [int(path.name.split("-")[1]) for path, _ in newest.values()]
    return f"from its last checkpoint on, of epoch {max(epochs)}" if epochs else ""


def _newest(files: Iterable[Path]) -> dict[str, tuple[Path, bytes]]:
    """Return the newest undamaged checkpoint of each part of a training, with its content: what a trainer resumes from.

    A checkpoint's name holds the CRC-32 of its content. One copied elsewhere counts as the first part's.
    """
    newest: dict[str, tuple[Path, bytes]] = {}
    for file in sorted(files, reverse=True):
        part = file.parent.name if file.parent.name.startswith("fleet-") else "fleet-0000"
        if _CHECKPOINT.fullmatch(file.name) and part not in newest:
            with suppress(FileNotFoundError):  # a trainer at work replaces its oldest
                content = file.read_bytes()
                if f"-{zlib.crc32(content):08x}." in file.name:
                    newest[part] = file, content
    return newest


def is_training(folder: Path) -> bool:
    """Whether a trainer is active in this shard's folder."""
    return is_locked(folder / "lock")


def home_of(folder: Path, job: ShardJob) -> Path:
    """Return `CPB_HOME`, derived from a shard's folder: paths in records are relative to it."""
    root = folder.absolute().parents[1]  # not resolved: `fleets` may be a link to another disk
    return root.parent if job.members[0].model.series.market in APART else root


def member_folder(folder: Path, name: str) -> Path:
    """Return the folder of one member of the shard in `folder`."""
    path = folder / "members" / name
    if not path.is_dir():
        raise DamagedError(f"{path} is gone; remove {folder} and run the same command again", field=str(path))
    return path


@dataclass(frozen=True)
class Checkpoint:
    """The newest state of each part of a training, in memory: its folder may be the folder to train in again.

    `files`: by name below a shard's `checkpoints`. The trainer checks whether they match the training: options, seeds
    and windows must agree.
    """

    files: Mapping[str, bytes]

    @classmethod
    def at(cls, path: Path) -> "Checkpoint":
        """Return the checkpoint in a file, or the newest checkpoint in or below a folder.

        Raises:
            UsageError: there is no checkpoint, it cannot be read, or all are damaged.
        """
        files = [path] if path.is_file() else list(path.rglob("epoch-*.safetensors"))
        try:
            newest = _newest(files)
        except OSError as error:
            message = f"resume: {error.filename} cannot be read ({error.strerror}); choose another"
            raise UsageError(message, code="resume") from error
        if not newest and any(_CHECKPOINT.fullmatch(file.name) for file in files):
            raise UsageError(
                f"resume {str(path)!r} holds damaged checkpoints alone: their bytes are not those that were written; "
                "copy it again, or choose another",
                code="resume",
            )
        if not newest:
            raise UsageError(
                f"resume {str(path)!r} is not a checkpoint and holds none: give latest, a file "
                "fleets/KEY/checkpoints/…/epoch-….safetensors, or its shard's folder",
                code="resume",
            )
        return cls({f"{part}/{file.name}": content for part, (file, content) in newest.items()})

    def put_into(self, shard: Path) -> None:
        """Write it to the folder of checkpoints of the shard in a folder."""
        for name, content in self.files.items():
            path = shard / CHECKPOINTS / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, content)

    def take_out_of(self, shard: Path) -> None:
        """Remove the files of `put_into` after a training failed to resume from them: no later run must use them."""
        for name in self.files:
            (shard / CHECKPOINTS / name).unlink(missing_ok=True)


class ShardsInUse:
    """A run's shared lock on `ROOT/fleets`: while any run holds it, nothing there is removed. Ends with the process."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "fleets"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = open_lock(root / "fleets.lock")  # beside the folder, which contains shards only
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


def remove_old_shards(shards: Path) -> list[Path]:
    """Remove the shards beyond the newest `MAX_SHARDS_PER_KIND` of each kind, and those unused for `MAX_UNUSED_DAYS`.

    A folder without a job of cpb is left alone; of the others only the files that cpb wrote are deleted.

    Returns:
        The folders that are gone.
    """
    kinds: dict[tuple[str, ...], list[tuple[float, Path, list[str]]]] = defaultdict(list)
    unused_since = time.time() - MAX_UNUSED_DAYS * 86400
    for folder in shard_folders(shards.parent):
        try:
            job = read_job(folder)
            members = sorted(member.name for member in job.members)
            used = (folder / JOB).stat().st_mtime
        except (OSError, DamagedError) as error:
            log.debug("%s is not removed: its job cannot be read (%s)", folder, error)
        else:
            kinds[job.spec.model_dump_json(), *members].append((used, folder, members))
    return [
        folder
        for kind in kinds.values()
        for place, (used, folder, members) in enumerate(sorted(kind, reverse=True))
        if (place >= MAX_SHARDS_PER_KIND or used < unused_since) and _remove(folder, members)
    ]


def _remove(folder: Path, members: Collection[str]) -> bool:
    """Remove one shard, unless a trainer is active in it; its job goes last, so that a kill does not hide the rest."""

    def is_ours(path: str) -> bool:
        top, _, below = path.partition("/")
        member, _, name = below.partition("/")
        return (
            path in (RESULT, EPOCHS, PROGRESS, LOG, "lock")
            or top == CHECKPOINTS
            or (top == "members" and member in members and _MEMBER_FILE.fullmatch(name) is not None)
        )

    try:
        with locked(folder / "lock", wait=False):
            delete_files(folder, is_ours)
            return delete_files(folder, JOB.__eq__)
    except (OSError, CpbError) as error:  # in use, or owned by another user: the next run tries again
        log.info("%s could not be removed: %s", folder, error)
        return False
