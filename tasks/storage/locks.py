"""Exclusive access on one machine, waits for it that Ctrl-C can end, and storable identities of processes.

A lock is a file with `flock`, which the kernel always releases when the holder dies.

Python raises `KeyboardInterrupt` only in the main thread. The other threads poll: a call started by
`tasks.running.parallel.run_each` has a stop event in its context, which `pause` and `check_interrupted` check.
"""

import errno
import fcntl
import os
import signal
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

import psutil

from schemas.errors import BusyError, CpbError

SHARED_FOLDER = Path("/tmp")
"""Folder of lock files for all users of the machine. Not `tempfile.gettempdir()`, which differs between users."""

_POLL_S = 0.05
# O_NONBLOCK: `open` must not block on a named pipe planted there
_OPEN_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_START_FIELD = 22 - 3  # of /proc/PID/stat, counted after the name in parentheses, which may contain spaces


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


_stop: ContextVar[threading.Event | None] = ContextVar("cpb_stop", default=None)


class Interrupted(BaseException):
    """This call was asked to stop. Not an `Exception`: it must not be mistaken for a failure of the work."""


def pause(seconds: float) -> None:
    """Sleep; raises `Interrupted` as soon as the calling thread's work was asked to stop."""
    if stop := _stop.get():
        stop.wait(seconds)
        check_interrupted()
    else:
        time.sleep(seconds)


def check_interrupted() -> None:
    """Raise `Interrupted` if the calling thread's work was asked to stop."""
    if (stop := _stop.get()) and stop.is_set():
        raise Interrupted("stopped because the run was interrupted")


@contextmanager
def stoppable(stop: threading.Event) -> Iterator[None]:
    """Make `pause` and `check_interrupted` check this event inside the block (and in copies of its context)."""
    token = _stop.set(stop)
    try:
        yield
    finally:
        _stop.reset(token)


def let_ctrl_c_end_waits() -> None:
    """Make Ctrl-C end system calls in which the main thread waits, such as an untimed `future.result()`.

    polars (seen with 2.1) takes over SIGINT on import, in two ways unsuitable for threads: its handler is installed
    with SA_RESTART, so the kernel continues the wait and the main thread notices the signal only when the wait ends by
    itself; and it raises `KeyboardInterrupt` in every thread that is in a query. This reinstalls Python's own handler,
    whatever function it calls. polars takes over only once, so call this after its import. It works only in the main
    thread; a call from another thread does nothing.
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)


@dataclass(frozen=True)
class ProcessId:
    """A process of one boot of one host: pids are reused, and have no meaning on another machine.

    Args:
        boot_id: the kernel's id of this boot; empty if the system has none.
        started: start time in seconds: since boot on Linux, unaffected by clock changes, else since 1970.
    """

    host: str
    boot_id: str
    pid: int
    started: float

    @classmethod
    def current(cls) -> "ProcessId":
        """Return the calling process."""
        return cls(socket.gethostname(), _boot_id(), os.getpid(), _start_time(os.getpid()) or 0.0)

    @classmethod
    def parse(cls, text: str) -> "ProcessId":
        """Return the process of a text made by `str`; raises `ValueError` for any other text."""
        host, boot_id, pid, started = text.split("|")
        return cls(host, boot_id, int(pid), float(started))

    def __str__(self) -> str:
        """Return `HOST|BOOT|PID|STARTED`, for labels and tags."""
        return f"{self.host}|{self.boot_id}|{self.pid}|{self.started:.2f}"

    def is_alive(self) -> bool | None:
        """Whether this process is still running; None if it belongs to another host, so that it is unknown."""
        if self.host != socket.gethostname():
            return None
        if self.boot_id != _boot_id():
            return False
        started = _start_time(self.pid)
        return started is not None and abs(started - self.started) < 0.02


def _start_time(pid: int) -> float | None:
    """Return the start time of a process, as in `ProcessId`; None if it has ended or is a zombie."""
    try:
        if not _BOOT_ID.exists():  # no Linux
            process = psutil.Process(pid)
            return None if process.status() == psutil.STATUS_ZOMBIE else round(process.create_time(), 2)
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, psutil.NoSuchProcess):
        return None
    return None if fields[0] in "ZX" else int(fields[_START_FIELD]) / os.sysconf("SC_CLK_TCK")


@cache
def _boot_id() -> str:
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
