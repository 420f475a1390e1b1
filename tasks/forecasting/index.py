"""The recorded sha256 of month files: `index.json` in the folder of a series.

Readers check files against it, because reading the chain for each file would be too slow. It is written before the
file is replaced and includes the old digest, so that a concurrent reader does not take the file for damaged. Only the
holder of the chain's lock writes it. Files older than the index have no digest until they are written to, or until
`cpb verify --repair` records it.
"""

import hashlib
import logging
import os
from pathlib import Path

from pydantic import Field

from schemas.errors import BusyError, DamagedError
from schemas.handover import Record
from tasks.storage.digests import file_digest
from tasks.storage.records import find_record, read_record, write_record
from tasks.storage.verify import VERIFY

log = logging.getLogger("cpb")

INDEX = "index.json"
_TRIES = 10


class FileDigest(Record):
    """The sha256 of a month's file, and of the file that it replaces (empty for the first file)."""

    digest: str
    previous: str = ""


class MonthIndex(Record):
    """The digests of a series' month files, by month."""

    months: dict[str, FileDigest] = Field(default_factory=dict)


def month_files(folder: Path) -> list[Path]:
    """Return the month files of a folder, oldest first."""
    return sorted(folder.glob("????-??.parquet"))


def announce(path: Path, digest: str) -> None:
    """Record the digest of the file about to be renamed to `path`, and that of the current file."""
    previous = file_digest(path) if path.exists() else ""
    known = _to_extend(path.parent)
    known[path.stem] = FileDigest(digest=digest, previous=previous)
    _write(path.parent, known)


def record_missing(folder: Path) -> None:
    """Record the current digests of files that have none."""
    before, known = read_index(folder), _to_extend(folder)
    if before is None or before.months != known:
        _write(folder, known)


def forget(folder: Path, month: str) -> None:
    """Remove the entry of a month whose file is missing."""
    known = dict(_usable(folder).months)
    if known.pop(month, None):
        _write(folder, known)


def read_index(folder: Path) -> MonthIndex | None:
    """Return the recorded digests; None if the index is missing or unusable (which is logged)."""
    path = folder / INDEX
    try:
        return read_record(path, MonthIndex, of=index_subject(folder))
    except FileNotFoundError:
        return None
    except (DamagedError, OSError):
        log_once(
            path, f"{path} cannot be read, so the files beside it go unchecked; `{VERIFY}` makes it again"
        )
        return None


def intact(path: Path) -> bytes:
    """Return a file's bytes if they have the recorded digest, or if none is recorded.

    Hashing costs a third of a read (0.8 ms a month), so a process hashes each state of a file once.

    Raises:
        DamagedError: the digest differs; the message is only the reason.
        BusyError: the file was replaced during every attempt to read it.
    """
    entry: FileDigest | None = None
    for _ in range(_TRIES):
        before, entry = entry, _entry(path)
        content, state = _content(path)
        if entry is None or _checked.get(path) == (state, entry):
            return content
        if hashlib.sha256(content).hexdigest() in (entry.digest, entry.previous):
            _checked[path] = (state, entry)
            return content
        if entry == before:  # the index is unchanged, so no writer is active
            raise DamagedError("its sha256 is not the recorded one")
    raise BusyError(f"{path} is being replaced too often to be read; try again when its writers are done")


def index_subject(folder: Path) -> str:
    """Return the subject of the index in a folder: `forecasts/interval=1h/symbol=BTCUSDT`."""
    return "/".join(folder.parts[-3:])


def _usable(folder: Path) -> MonthIndex:
    """Return the recorded digests; a damaged index is set aside first."""
    return find_record(folder / INDEX, MonthIndex, of=index_subject(folder)) or MonthIndex()


def _write(folder: Path, months: dict[str, FileDigest]) -> None:
    write_record(folder / INDEX, MonthIndex(months=months), of=index_subject(folder))


def log_once(path: Path, text: str) -> None:
    """Log a warning about a file once per state of the file: page reloads must not fill the log."""
    try:
        state = _state(path.stat())
    except OSError:
        state = None
    if (path, state) not in _logged:
        _logged.add((path, state))
        log.warning("%s", text)


_State = tuple[int, int, int]
_checked: dict[Path, tuple[_State, FileDigest]] = {}
_logged: set[tuple[Path, _State | None]] = set()


def _state(status: os.stat_result) -> _State:
    return status.st_ino, status.st_mtime_ns, status.st_size


def _content(path: Path) -> tuple[bytes, _State]:
    with path.open("rb") as file:
        return file.read(), _state(os.fstat(file.fileno()))


def _entry(path: Path) -> FileDigest | None:
    index = read_index(path.parent)
    return index.months.get(path.stem) if index else None


def _to_extend(folder: Path) -> dict[str, FileDigest]:
    """Return the digests by month, computing missing digests; a damaged index is set aside first."""
    found = _usable(folder)
    unknown = [f for f in month_files(folder) if f.stem not in found.months]
    return {**found.months, **{f.stem: FileDigest(digest=file_digest(f)) for f in unknown}}
