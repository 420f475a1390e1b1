"""Folders replaced as a whole: a reader finds the old folder or the new one, also after a kill, never a mix."""

import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from schemas.errors import CpbError
from schemas.retention import DRAFT_S
from tasks.storage.files import draft_name, sync
from tasks.storage.locks import locked, temporary_lock

T = TypeVar("T")
_AT_CWD, _EXCHANGE = -100, 2  # of fcntl.h and stdio.h
_READINGS, _BETWEEN_READINGS_S = 10, 0.02


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `path` if the block succeeds, and is removed if it fails.

    `path` is either the old or the new folder, never a mix. A second writer waits for the first, so what it reads of
    the folder is what it replaces. If `path` is a link to a folder, possibly on another disk, that folder is replaced
    and the link is kept.
    """
    path = path.resolve()  # a rename cannot move across disks
    path.parent.mkdir(parents=True, exist_ok=True)
    with folder_lock(path):
        _recover(path)  # before the block: it may read the old folder to make the new one
        _sweep(path)
        draft = draft_name(path)
        draft.mkdir()
        try:
            yield draft
            _swap(draft, path)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _swap(draft: Path, path: Path) -> None:
    """Replace `path` by the draft; the old folder is deleted once the new folder is in place, also after a power cut.

    In a single step where the file system can; otherwise the old folder moves aside first, from where `recover_folder`
    brings it back after a kill between the two steps.
    """
    try:
        if not path.exists():
            draft.rename(path)
        elif not _exchange(draft, path):
            path.rename(path.with_name(f".{path.name}.old.{uuid.uuid4().hex[:12]}"))
            draft.rename(path)
    finally:
        _recover(path)  # after an error, or a Ctrl-C, between the two renames
        sync(path.parent)  # a power cut must not bring back the old name after its files are gone
        for old in folders_aside(path):
            shutil.rmtree(old, ignore_errors=True)


@contextmanager
def folder_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a folder that several commands may write."""
    # Not beside the folder, which others may list or publish: by its path, so that all its writers agree.
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    with locked(temporary_lock(f"folder-{name}.lock")):
        yield


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step (Linux's renameat2); False if system or file system cannot."""
    import ctypes  # `cpb --help` imports this module

    call = getattr(ctypes.CDLL(None), "renameat2", None)
    return call is not None and call(_AT_CWD, os.fsencode(one), _AT_CWD, os.fsencode(other), _EXCHANGE) == 0


def folders_aside(path: Path) -> list[Path]:
    """Return the old folders of `path` that a killed writer left aside, oldest first."""
    # The pattern of a draft, with `.old` before its digits, so that `_sweep` never takes one for a stale draft.
    aside = path.parent.glob(f".{path.name}.old.{'?' * 12}")
    return sorted(aside, key=lambda folder: folder.stat().st_mtime)


def recover_folder(path: Path) -> None:
    """Bring the old folder back if a writer was killed between the two steps of `_swap`; else do nothing."""
    path = path.resolve()
    if not path.exists() and folders_aside(path):
        with folder_lock(path):
            _recover(path)


def _recover(path: Path) -> None:
    if not path.exists() and (aside := folders_aside(path)):
        aside[-1].rename(path)


def settled(folder: Path, read: Callable[[Path], T], names: Sequence[str] = ()) -> T:
    """Return what `read` gives of a folder that `new_folder` may replace meanwhile: of the old or of the new one.

    It is read again where the folder, or a file in it, was replaced during the reading: an error is then an effect of
    that. Without a folder an error counts only if none appears, as between the two renames of a replacement.

    Args:
        names: the files in it that `read` opens.

    Raises:
        CpbError, OSError: from `read`, or (code `busy`) the folder was replaced each time.
    """
    error: CpbError | OSError | None = None
    for _ in range(_READINGS):
        before, error = _state(folder, names), None
        try:
            found = read(folder)
        except (CpbError, OSError) as raised:
            error = raised
        # An error counts if nothing changed meanwhile, and there was a folder: else its writer is between two renames.
        if _state(folder, names) == before and (error is None or before is not None):
            break
        time.sleep(_BETWEEN_READINGS_S)
    else:
        error = error or CpbError(
            f"{folder} was replaced each time that it was read; run the same command again",
            code="busy",
            field=str(folder),
        )
    if error is not None:
        raise error
    return found


def _state(folder: Path, names: Sequence[str]) -> list[tuple[int, ...] | None] | None:
    """Return what differs after a folder or one of the files in it was replaced or written to; None without it."""
    state: list[tuple[int, ...] | None] = []
    for path in (folder, *(folder / name for name in names)):
        try:
            status = path.stat()
            state.append((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))
        except OSError:
            state.append(None)
    return state if state[0] else None


def _sweep(path: Path) -> None:
    """Delete drafts of `path` left by killed writers more than a day ago."""
    for old in path.parent.glob(f".{path.name}.{'?' * 12}"):
        with suppress(FileNotFoundError):
            # Younger ones may be of a writer on another machine, whose lock is not seen here.
            if time.time() - old.stat().st_mtime > DRAFT_S:
                shutil.rmtree(old, ignore_errors=True)
