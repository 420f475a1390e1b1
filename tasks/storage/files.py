"""Files written whole: a reader, or the next run after a kill, never sees a partial file; and files of one's own."""

import errno
import json
import os
import re
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from cpbmodels.files import read_regular
from schemas.errors import CpbError, UsageError

DRAFT = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{12}")
"""Name of a draft: the final name, hidden, plus 12 hex digits; no reader's `*.parquet` matches it."""

NOTIFY_FILE = "notify"
"""File of a home with the URLs of services that messages are sent to. They hold passwords: it is copied nowhere."""


class DiskFull(CpbError):
    """The disk or the user's quota is full; stored files are intact."""

    default_code = "disk-full"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the name of a draft beside `path`; after the block it is synced and renamed over `path`.

    If the block fails, the draft is deleted and `path` is unchanged. The rename survives a power failure only after a
    `sync` of the folder, which many files can share.

    Raises:
        DiskFull: no space left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # beside the file, not in /tmp: a rename across file systems is a copy, which can end halfway
    draft = draft_name(path)
    try:
        yield draft
        # The content must be on disk before the name is: after a power cut the name may stand without it.
        sync(draft)
        draft.replace(path)
    except BaseException as error:  # also Ctrl-C
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        if is_disk_full(error):
            raise DiskFull(
                f"no space left on the disk at {disk_of(path)}: free some, then run the same command again",
                field=str(path),
            ) from error
        raise


def write_bytes(path: Path, data: bytes | memoryview) -> None:
    """Write `data` so that `path` has either the old or the new content, never a part; errors as in `replacing`."""
    with replacing(path) as draft:
        draft.write_bytes(data)


def final_path(path: str) -> str:
    """Return a relative path with the final name of every draft in it."""
    matches = ((DRAFT.fullmatch(name), name) for name in path.split("/"))
    return "/".join(match["name"] if match else name for match, name in matches)


def delete_files(folder: Path, is_ours: Callable[[str], bool]) -> bool:
    """Delete the files below a folder that cpb wrote, then all folders that are empty; return whether nothing is left.

    Other files stay, and so do links, which are not followed.

    Args:
        is_ours: whether cpb wrote a file, by its path relative to the folder; that of a draft has its final name.
    """
    for path in sorted(folder.rglob("*"), reverse=True):  # what is in a folder before the folder itself
        if path.is_symlink():
            continue
        if path.is_dir():
            remove_empty(path)
        elif is_ours(final_path(path.relative_to(folder).as_posix())):
            path.unlink(missing_ok=True)
    remove_empty(folder)
    return not folder.exists()


def remove_empty(folder: Path) -> None:
    """Remove a folder if it is empty."""
    with suppress(OSError):
        folder.rmdir()


def write_secret(path: Path, text: str) -> None:
    """Write a file that only its owner may read, atomically; an existing file is kept."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = draft_name(path)
    try:
        # The mode is set when the file is made: between making it and chmod others could open it.
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # A hard link, since a rename would replace the secret that another process has begun to use.
        with suppress(FileExistsError):
            path.hardlink_to(draft)
    finally:
        draft.unlink(missing_ok=True)


def read_private(path: Path, max_bytes: int, *, links: bool = False) -> str:
    """Return the text of a file accessible to this user only; `links`: it may be a symbolic link.

    Raises:
        FileNotFoundError: the file is missing.
        OSError: it cannot be read, or is not safe to use; `strerror` is the reason.
    """
    # Opened first, then checked by its handle: another file could take its place between a check and the opening.
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW))
    try:
        status = os.fstat(handle)
        mode = stat.S_IMODE(status.st_mode)
        if not stat.S_ISREG(status.st_mode):
            why = "it is not a regular file"
        elif status.st_uid != os.getuid():
            why = "it belongs to another user"
        elif mode & 0o077:
            why = f"its mode is {mode:o}, so other users may have read it"
        else:
            return os.read(handle, max_bytes).decode(errors="replace")
    finally:
        os.close(handle)
    raise PermissionError(errno.EPERM, why)


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_disk_full(error: BaseException) -> bool:
    """Whether an error means that the disk is full; polars and SQLite report it in their text only."""
    number = getattr(error, "errno", None)
    return (
        number in (errno.ENOSPC, errno.EDQUOT) or "o space left" in str(error) or "disk is full" in str(error)
    )


def disk_of(path: Path) -> Path:
    """Return where the disk is mounted on which a path lies."""
    return next(folder for folder in (path.resolve(), *path.resolve().parents) if folder.is_mount())


def check_writable(folder: Path) -> None:
    """Create the folder and test writing to it; raises `UsageError` before hours of work, not after them."""
    probe = draft_name(folder / "probe")  # named as a draft, so that a killed probe is swept with them
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(
            f"cannot write in {folder} ({error.strerror}); choose a folder that you own or can create"
        ) from error


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically. Paths and dates become strings."""
    write_bytes(path, (json.dumps(value, indent=2, default=str) + "\n").encode())


def read_json_or_none(path: Path) -> Any:
    """Return the JSON value in `path`; None if the file is missing or not JSON."""
    try:
        return json.loads(read_regular(path))
    except (FileNotFoundError, ValueError):
        return None


def open_log(path: Path) -> IO[bytes]:
    """Open a log file for appending, created if missing, never through a symbolic link."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise CpbError(
            f"the log file {path} cannot be written ({error.strerror}); remove it if it is a link, else check the "
            "folder's owner and the free space there",
            code="log",
            field=str(path),
        ) from error
    return os.fdopen(handle, "ab")


def draft_name(path: Path) -> Path:
    """Return a new draft name beside `path`."""
    # Not tempfile's: its files are private to their owner; drafts follow the umask like any other file.
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
