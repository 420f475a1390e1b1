"""Locks between processes of one machine: `flock`, which the kernel frees when its holder dies, however it dies."""

import errno
import fcntl
import logging
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from schemas.errors import BusyError, CpbError
from tasks.storage.waiting import pause

log = logging.getLogger("cpb")

SHARED_FOLDER = Path("/tmp")
"""Where lock files for all users of the machine lie. Not `tempfile.gettempdir()`, which differs between users."""

_POLL_S = 0.05
# the last: a planted pipe must not make `open` wait
_OPEN_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@contextmanager
def locked(
    path: Path, *, shared: bool = False, wait: bool = True, everyone: bool = False
) -> Iterator[IO[bytes]]:
    """Hold the lock file at `path`, made where missing; yields the open file.

    The lock ends when every copy of the file's descriptor is closed: a child process that is handed the descriptor
    holds the lock as well.

    Args:
        shared: several holders at once, and none that is not shared.
        wait: False to give up at once where another process (or thread) holds it.
        everyone: other users of the machine may take the lock as well (for files that `machine_lock` names).

    Raises:
        BusyError: it is held, with `wait=False`.
        CpbError: the file cannot be opened, or is a link.
    """
    while True:
        with open_lock(path, everyone) as file:
            acquire(file, shared=shared, wait=wait)
            if not _still_at(path, file):  # deleted while this process waited: others lock the new file
                continue
            yield file
            return


def acquire(file: IO[bytes], *, shared: bool = False, wait: bool = True) -> None:
    """Take the lock of an open lock file, or turn a shared hold into an exclusive one; errors as in `locked`."""
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


def release(file: IO[bytes]) -> None:
    """End the hold of an open lock file, which stays open; of all processes that were handed its descriptor."""
    fcntl.flock(file, fcntl.LOCK_UN)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock for itself now; False where there is no lock file.

    Several may look at once, a page that is reloaded for one, and do not take one another for the holder.
    """
    if not path.exists():
        return False
    try:
        with locked(path, shared=True, wait=False):
            return False
    except BusyError:
        return True


def open_lock(path: Path, everyone: bool = False) -> IO[bytes]:
    """Open a lock file for locking, never through a symbolic link, and let no child process inherit it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return _open_regular(path, everyone)
    except OSError as error:
        raise CpbError(
            f"the lock file {path} cannot be opened ({error.strerror}); remove it if it is not cpb's, "
            "or give yourself access to it",
            code="lock",
            field=str(path),
        ) from error


def machine_lock(name: str) -> Path:
    """Return a lock file that all users of this machine lock; this user's own one where that is impossible."""
    path = SHARED_FOLDER / name
    try:
        open_lock(path, everyone=True).close()
    except CpbError as error:
        log.warning("%s; until then the lock %s holds for this user's processes only", error, name)
        return temporary_lock(name)
    return path


def temporary_lock(name: str) -> Path:
    """Return a lock file in this user's own part of the temp folder, for locks that belong to no store."""
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


def _open_regular(path: Path, everyone: bool) -> IO[bytes]:
    handle, how = _open_or_create(path, everyone)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a plain file")
    return os.fdopen(handle, how)


def _open_or_create(path: Path, everyone: bool) -> tuple[int, str]:
    """Return a descriptor and Python's mode for it; a file that others replace meanwhile is tried again."""
    for last in (False, False, False, False, True):
        try:
            return os.open(
                path, os.O_RDWR | _OPEN_FLAGS
            ), "r+b"  # O_CREAT is refused on others' files in /tmp
        except FileNotFoundError:
            try:
                handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN_FLAGS, 0o644)
            except FileExistsError:  # made by another process a moment ago
                continue
            if everyone:
                os.fchmod(handle, 0o644)  # whatever the umask says: reading is enough to lock
            return handle, "r+b"
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            try:
                return os.open(path, os.O_RDONLY | _OPEN_FLAGS), "rb"  # enough for a lock, except on NFS
            except PermissionError:
                if last:
                    raise
                pause(_POLL_S)  # its maker may be about to set its permissions
    raise OSError(errno.EAGAIN, "it keeps being removed and made again")


def _still_at(path: Path, file: IO[bytes]) -> bool:
    try:
        now = path.lstat()
    except FileNotFoundError:
        return False
    mine = os.fstat(file.fileno())
    return (now.st_dev, now.st_ino) == (mine.st_dev, mine.st_ino)
