"""A node's cache of what lies in the shared store: a small home of its own, bounded in bytes.

One folder per user and machine, for all processes on it. An entry (a file or a folder) is fetched by one process at a
time, and is not removed while a process uses it; the least recently used go first. Nothing is removed that cpb cannot
prove to be its own: the folder bears cpb's marker, and entries are found by their names by who fills the cache.
"""

import errno
import json
import os
import shutil
import tempfile
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import UsageError
from tasks.storage.files import draft_name, write_bytes
from tasks.storage.locks import is_locked, locked

CACHE_HOME, CACHE_GB = "CPB_CACHE_HOME", "CPB_CACHE_GB"
"""Environment variables: the cache's folder (default: one of the user's below the temporary folder), and its size."""

DEFAULT_GB = 20.0

_MARKER, _LOCK, _LOCKS, _IN_USE = "cpb-cache", "lock", "locks", "in-use"
_STRIPES = 64
"""Lock files for entries that are being fetched; two entries that share one wait for each other, which does no harm."""


@dataclass(frozen=True)
class NodeCache:
    """The cache in the folder `home`, of at most `max_bytes` once nothing in it is used."""

    home: Path
    max_bytes: int

    @classmethod
    def open(cls) -> "NodeCache":
        """Return the cache of this node, made where it is missing.

        Raises:
            UsageError: `CPB_CACHE_HOME` is another user's, a link, or a folder that holds other things; `CPB_CACHE_GB`
                is no size.
        """
        named = os.environ.get(CACHE_HOME)
        home = Path(named or Path(tempfile.gettempdir()) / f"cpb-cache-{os.geteuid()}").absolute()
        _claim(home)
        return cls(home, cache_bytes())

    @contextmanager
    def using(self, names: Sequence[str]) -> Iterator[None]:
        """Keep entries from being removed for the length of the block, also those that are fetched within it."""
        note = self.home / _IN_USE / uuid.uuid4().hex
        with locked(self.home / _LOCK):  # no `trim` between the note and its lock
            write_bytes(note, json.dumps(list(names)).encode())
            hold = locked(note)
            hold.__enter__()
        try:
            yield
        finally:
            note.unlink(missing_ok=True)
            hold.__exit__(None, None, None)

    @contextmanager
    def filling(self, name: str) -> Iterator[Path]:
        """Hold off other processes that would fetch the same entry; marks it as used now."""
        path = self.home / name
        with locked(self.home / _LOCKS / f"{zlib.crc32(name.encode()) % _STRIPES:02d}"):
            yield path
            if path.exists():
                os.utime(path)

    def trim(self, entries: Iterable[Path]) -> list[Path]:
        """Remove the least recently used entries until the rest fits; returns what was removed.

        Args:
            entries: files and folders below the cache's home that are cpb's own.
        """
        with locked(self.home / _LOCK):
            used = self._in_use()
            found = sorted((_used_at(path), path, size_of(path)) for path in entries)
            total, removed = sum(size for _, _, size in found), []
            for _, path, size in found:
                if total <= self.max_bytes:
                    break
                if path.relative_to(self.home).as_posix() not in used:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                    total -= size
                    removed.append(path)
        return removed

    def _in_use(self) -> set[str]:
        """Return the entries that running processes use; the notes of dead ones are removed."""
        names: set[str] = set()
        folder = self.home / _IN_USE
        for note in folder.iterdir() if folder.is_dir() else ():
            if is_locked(note):
                with suppress(FileNotFoundError):  # just ended
                    names |= set(json.loads(note.read_bytes()))
            else:
                note.unlink(missing_ok=True)
        return names


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    files = path.rglob("*") if path.is_dir() else (path,)
    return sum(file.lstat().st_size for file in files if not file.is_dir())


def _used_at(path: Path) -> float:
    return path.stat().st_mtime


def _claim(home: Path) -> None:
    if home.is_symlink() or (home.exists() and not home.is_dir()):
        raise _refused(home, "is no folder")
    if home.is_dir() and home.stat().st_uid != os.geteuid():
        raise _refused(home, "belongs to another user")
    if (home / _MARKER).is_file():
        return
    draft = draft_name(home)
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        draft.mkdir(mode=0o700)
        (draft / _MARKER).write_text(
            "cpb's cache of a shared store: it can be removed while nothing trains\n"
        )
        draft.rename(home)  # also over an empty folder, and never over one that holds something
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        if not (home / _MARKER).is_file():  # else another process was faster
            why = (
                "holds other things"
                if error.errno == errno.ENOTEMPTY
                else f"cannot be made ({error.strerror})"
            )
            raise _refused(home, why) from error


def _refused(home: Path, why: str) -> UsageError:
    return UsageError(
        f"{CACHE_HOME}: {home} {why}; name an empty folder, or one that is not there yet",
        code="cache",
        field=CACHE_HOME,
    )


def cache_bytes() -> int:
    """Return the largest size of a node's cache; raises `UsageError` where `CPB_CACHE_GB` is none."""
    text = os.environ.get(CACHE_GB) or str(DEFAULT_GB)
    try:
        size = float(text)
    except ValueError:
        size = -1.0
    if not 0 < size < 1e6:
        raise UsageError(
            f"{CACHE_GB} {text!r} is no size: give gigabytes, as in {DEFAULT_GB:g}", field=CACHE_GB
        )
    return round(size * 1e9)
