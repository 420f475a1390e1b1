"""Exclusive access on one machine, by files with `flock`, which the kernel always releases when the holder dies."""

import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from schemas.errors import BusyError, CpbError
from tasks.storage.interrupts import pause

SHARED_FOLDER = Path("/tmp")
"""Folder of lock files for all users of the machine. Not `tempfile.gettempdir()`, which differs between users."""

_POLL_S = 0.05
# O_NONBLOCK: `open` must not block on a named pipe planted there
_OPEN_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@contextmanager
def locked(path: Path, *, shared: bool = False, wait: bool = True) -> Iterator[IO[bytes]]:
    """Hold the lock file at `path`, created if missing; yields the open file.

    Args:
        shared: allow several shared holders at once, but no exclusive holder.
        wait: False to fail at once if another process (or thread) holds it.

    Raises:
        BusyError: it is held, with `wait=False`.
        CpbError: the file cannot be opened, or is a link.
    """
    while True:
        with open_lock(path) as file:
            acquire(file, shared=shared, wait=wait)
            if not _is_at(path, file):  # deleted during the wait: other processes lock the new file
                continue
            yield file
            return


def acquire(file: IO[bytes], *, shared: bool = False, wait: bool = True) -> None:
    """Take the lock of an open lock file, or upgrade a shared lock to an exclusive lock; errors as in `locked`."""
    how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
    while True:  # never a blocking `flock`: a thread that waits in it cannot be interrupted
        try:
            fcntl.flock(file, how)
        except BlockingIOError as error:
            if not wait:
                raise BusyError(
                    f"{file.name} is held by another process; try again when it has ended"
                ) from error
        else:
            return
        pause(_POLL_S)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock exclusively now; False if there is no lock file.

    Concurrent checks, such as by a page that is reloaded, do not mistake each other for the holder.
    """
    if not path.exists():
        return False
    try:
        with locked(path, shared=True, wait=False):
            return False
    except BusyError:
        return True


def open_lock(path: Path) -> IO[bytes]:
    """Open a lock file for locking, never through a symbolic link, and not inherited by child processes."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle, mode = os.open(path, os.O_RDWR | os.O_CREAT | _OPEN_FLAGS, 0o644), "r+b"
        except OSError as error:  # another user's file: reading is enough for a lock, except on NFS
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            handle, mode = os.open(path, os.O_RDONLY | _OPEN_FLAGS), "rb"
        status = os.fstat(handle)
        if path.parent == SHARED_FOLDER and status.st_uid == os.getuid():
            os.fchmod(handle, 0o644)  # regardless of the umask: other users lock it too
    except OSError as error:
        raise CpbError(
            f"the lock file {path} cannot be opened ({error.strerror}); check that its folder can be written, "
            "give yourself access to the file, or remove it if it is not cpb's",
            code="lock",
            field=str(path),
        ) from error
    if not stat.S_ISREG(status.st_mode):
        os.close(handle)
        raise CpbError(f"the lock file {path} is not a regular file; remove it", code="lock", field=str(path))
    return os.fdopen(handle, mode)


def machine_lock(name: str) -> Path:
    """Return a lock file shared by all users of this machine."""
    return SHARED_FOLDER / name


def temporary_lock(name: str) -> Path:
    """Return a lock file in this user's private temp folder, for locks that belong to no store."""
    folder = Path(tempfile.gettempdir()) / f"cpb-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise CpbError(
            f"{folder} belongs to another user; remove it, or set TMPDIR to a folder of your own",
            code="lock",
            field=str(folder),
        )
    return folder / name


def _is_at(path: Path, file: IO[bytes]) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
