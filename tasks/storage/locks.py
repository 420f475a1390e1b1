"""Locks between processes of one machine: `flock`, which the kernel frees when its holder dies, however it dies."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from schemas.errors import BusyError, CpbError


@contextmanager
def locked(path: Path, *, shared: bool = False, wait: bool = True) -> Iterator[IO[bytes]]:
    """Hold the lock file at `path`, made where missing; yields the open file.

    Args:
        shared: several holders at once, and none that is not shared.
        wait: False to give up at once where another process (or thread) holds it.

    Raises:
        BusyError: it is held, with `wait=False`.
        CpbError: the file cannot be opened, or is a link.
    """
    with open_lock(path) as file:
        acquire(file, shared=shared, wait=wait)
        yield file


def acquire(file: IO[bytes], *, shared: bool = False, wait: bool = True) -> None:
    """Take the lock of an open lock file, or turn a shared hold into an exclusive one; errors as in `locked`."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError as error:
        raise BusyError(f"{file.name} is held by another process; try again when it has ended") from error


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock now; False where there is no lock file."""
    if not path.exists():
        return False
    try:
        with locked(path, wait=False):
            return False
    except BusyError:
        return True


def open_lock(path: Path, mode: int = 0o644) -> IO[bytes]:
    """Open a lock file for locking, never through a symbolic link, and let no child process inherit it."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(path, flags)  # without O_CREAT: Linux refuses it on another user's file in /tmp
        except FileNotFoundError:
            handle = os.open(path, flags | os.O_CREAT, mode)
    except OSError as error:
        raise CpbError(
            f"the lock file {path} cannot be opened ({error.strerror}); remove it if it is foreign, or mend its owner",
            code="lock",
        ) from error
    return os.fdopen(handle, "r+b")


def temporary_lock(name: str) -> Path:
    """Return a lock file in this user's own part of the temp folder, for locks that belong to no store."""
    folder = Path(tempfile.gettempdir()) / f"cpb-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if folder.is_symlink() or status.st_uid != os.getuid():
        raise CpbError(
            f"{folder} belongs to another user; remove it, or set TMPDIR to a folder of your own", code="lock"
        )
    return folder / name
