"""Writing files so that a reader, or the next run after a kill, never meets half of one."""

import errno
import json
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from schemas.errors import CpbError, UsageError

_STALE_S = 24 * 3600.0
DRAFT = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{12}")
"""Name of a draft: the name that the file is to get, hidden, with 12 hex digits; no reader's `*.parquet` matches it."""


class DiskFull(CpbError):
    """Nothing more fits on the disk, or in the user's quota; what is stored is whole."""

    default_code = "disk-full"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the name of a draft beside `path`; after the block it is synced and renamed over `path`.

    If the block fails, the draft is deleted and `path` stays as it was. The new name itself survives a power
    failure after a `sync` of the folder, which can be shared by many files.

    Raises:
        DiskFull: no space left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = draft_name(path)
    try:
        yield draft
        sync(draft)
        draft.replace(path)
    except BaseException as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        if is_disk_full(error):
            raise DiskFull(
                f"no space left in {path.parent}: free some, or set CPB_HOME to another disk", field=str(path)
            ) from error
        raise


def write_bytes(path: Path, data: bytes | memoryview) -> None:
    """Write `data` so that `path` has the old content or the new one, never a part; errors as in `replacing`."""
    with replacing(path) as draft:
        draft.write_bytes(data)


def write_secret(path: Path, text: str) -> None:
    """Write a file that its owner alone may read, whole or not at all; one that is there already stays."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = draft_name(path)
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):  # another process was faster
            path.hardlink_to(draft)
    finally:
        draft.unlink(missing_ok=True)


def read_private(path: Path, max_bytes: int, *, links: bool = False) -> str:
    """Return the text of a file that this user alone may read and write; `links`: it may be reached by a link.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be read, or is not safe to use; its `strerror` says why.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW))
    try:
        status = os.fstat(handle)
        mode = stat.S_IMODE(status.st_mode)
        if not stat.S_ISREG(status.st_mode):
            why = "it is no plain file"
        elif status.st_uid != os.getuid():
            why = "it belongs to another user"
        elif mode & 0o077:
            why = f"its mode is {mode:o}, so that others may know it"
        else:
            return os.read(handle, max_bytes).decode(errors="replace")
    finally:
        os.close(handle)
    raise PermissionError(errno.EPERM, why)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def rename(path: Path, final: Path) -> None:
    """Give a file that is on the disk its final name, in the same folder; a power failure leaves one of the two."""
    path.replace(final)
    sync(final.parent)


def is_disk_full(error: BaseException) -> bool:
    """Whether an error means that the disk is full; polars and SQLite say so in their text only."""
    number = getattr(error, "errno", None)
    return (
        number in (errno.ENOSPC, errno.EDQUOT) or "o space left" in str(error) or "disk is full" in str(error)
    )


def check_writable(folder: Path) -> None:
    """Make the folder and write in it, for trial; raises `UsageError`: better now than after hours of work."""
    probe = draft_name(folder / "probe")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(
            f"cannot write in {folder} ({error.strerror}); name a folder you own, or one that can be made"
        ) from error


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically. Paths and dates become texts."""
    write_bytes(path, (json.dumps(value, indent=2, default=str) + "\n").encode())


def read_json(path: Path) -> Any:
    """Return the JSON value in `path`."""
    return json.loads(path.read_text())


def read_json_or_none(path: Path) -> Any:
    """Return the JSON value in `path`; None where there is no file, or none that can be read as JSON."""
    try:
        return read_json(path)
    except (FileNotFoundError, ValueError):
        return None


def open_log(path: Path) -> IO[bytes]:
    """Open a log file to append to, made where missing, never through a symbolic link."""
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


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `path` when the block ends well, and vanishes when it does not.

    `path` is the old folder or the new one, never a part of either; of two writers at once the later one stays. Where
    `path` is a link to a folder, which may be on another disk, that folder is replaced and the link stays.
    """
    path = path.resolve()  # no rename goes from one disk to another
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path)
    draft = draft_name(path)
    draft.mkdir()
    try:
        yield draft
        _swap(draft, path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _swap(draft: Path, path: Path) -> None:
    """Put the draft in the place of `path`, whose old content is deleted once the new one is there."""
    aside = draft_name(path)
    for _ in range(100):  # another writer may put its folder there between the two steps
        try:
            with suppress(FileNotFoundError):
                path.rename(aside)
            draft.rename(path)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        finally:
            _restore(aside, path)
    raise CpbError(
        f"{path} keeps being replaced by another process; try again when that has ended", code="busy"
    )


def _restore(aside: Path, path: Path) -> None:
    """Give `path` its old folder back where nothing took its place; else delete the old folder."""
    if not path.exists():  # an error, or a Ctrl-C, between the two renames
        try:
            aside.rename(path)
        except FileNotFoundError:
            return
        except OSError as error:  # another writer put its folder there after we looked: the later one stays
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
    shutil.rmtree(aside, ignore_errors=True)


def _sweep(path: Path) -> None:
    """Delete drafts of `path` that a killed writer left behind more than a day ago."""
    for old in path.parent.glob(f".{path.name}.{'?' * 12}"):
        with suppress(FileNotFoundError):
            if time.time() - old.stat().st_mtime > _STALE_S:
                shutil.rmtree(old, ignore_errors=True)


def draft_name(path: Path) -> Path:
    """Return a new name beside `path` for what is to become it."""
    # Not tempfile's: its files are for their owner alone, ours follow the umask like any other file.
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
