"""The cache of what was read of MLflow's store: answered at once, and read anew by one thread after a change.

Reading MLflow's store takes tenths of a second to seconds, and it changes all the time while a fleet is logged. Only
the first request for a result waits for it. If the store cannot be read later, the last result stays, with a note that
says of when it is. A result that nobody has asked for in `_UNUSED_S` is dropped, so that the next answer is no old one.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from schemas.errors import CpbError, counted, log
from tasks.tracking.experiment import Store
from tasks.tracking.home_store import sqlite_path, tracking_uri
from tasks.tracking.store import read_store
from tasks.tracking.store_errors import UNUSABLE, store_errors

T = TypeVar("T")

_CHECK_S = 1.0
"""Between two checks of the store's files."""
_PAUSE = 3
"""How many times as long as a reading took the refreshing thread pauses, for the requests of the same interpreter."""
_MAX_AGE_S, _UNUSED_S = 60, 600
"""A result is read again after `_MAX_AGE_S`, since processes of runs end without a write, and a server's changes are
not seen; and dropped when nobody has asked for it in `_UNUSED_S`."""
_MAX_RESULTS = 500

_opening = threading.Lock()
_lock = threading.Lock()
"""Guards `_results`; never held during a reading."""


class _Result:
    """A result; `error`: why it could not be read the last time, `tried` by the monotonic clock."""

    def __init__(self, read: Callable[[Store], Any]) -> None:
        self.read, self.reading = read, threading.Lock()
        self.value: Any = None
        self.error: CpbError | None = None
        self.read_at: datetime | None = None
        self.token, self.tried = "", 0.0
        self.asked = time.monotonic()


_Key = tuple[Any, ...]
_results: OrderedDict[_Key, _Result] = OrderedDict()
"""By address of the store, name and arguments."""
_begun, _changes = time.time_ns(), 0


def version() -> str:
    """Return a token that changes whenever a result has changed; asking for it counts as a use of every result."""
    now = time.monotonic()
    with _lock:
        for result in _results.values():
            result.asked = now
    return f"{_begun}-{_changes}"


def cached(name: str, read: Callable[..., T], *arguments: Any) -> tuple[T, str | None]:
    """Return what `read(store, *arguments)` returned last, and a note if the store could not be read since.

    Args:
        name, arguments: name the result; arguments are hashable, and such as exist: each has a result of its own.

    Raises:
        CpbError: the store could not be read yet, or what `read` raises about its arguments, which is not cached.
    """
    key = (_address(), name, *arguments)
    with _lock:
        result = _results.get(key)
        if result is None:
            result = _results[key] = _Result(lambda store: read(store, *arguments))
            while len(_results) > _MAX_RESULTS:
                _results.popitem(last=False)
        _results.move_to_end(key)
        result.asked = time.monotonic()
    # Checked twice: all who ask first wait for one reading, and take its result.
    if not result.tried:
        with result.reading:
            if not result.tried:
                _read(key, result, _token())
    # Never read well: the error is the answer; afterwards an old answer with a note is better than none.
    if result.read_at is None:
        raise result.error or CpbError("the MLflow store has not been read", code=UNUSABLE)
    return result.value, _note(result.read_at, result.error)


def _note(read_at: datetime, error: CpbError | None) -> str | None:
    if error is None:
        return None
    minutes = int((datetime.now(UTC) - read_at).total_seconds() // 60)
    age = f"{counted(minutes, 'minute')} ago" if minutes else "less than a minute ago"
    return f"the figures from MLflow are as of {read_at:%Y-%m-%d %H:%M} UTC, {age}: {error}"


@contextmanager
def reading() -> Iterator[Store]:
    """Yield the store; raises `CpbError` if it cannot be read."""
    with store_errors():
        # By one thread: importing MLflow and connecting takes seconds, and the others then find it open.
        with _opening:
            store = read_store()
        yield store


def _read(key: _Key, result: _Result, token: str) -> None:
    """Read a result. An error of the store is cached with it; one about the arguments is raised, and nothing cached."""
    global _changes
    before, store = (result.value, str(result.error)), None
    try:
        with reading() as store:
            result.value = result.read(store)
        result.error, result.read_at = None, datetime.now(UTC)
    except CpbError as error:
        # About the arguments, such as a run that was deleted: each caller may make up others, so nothing is
        # stored.
        if store is not None and error.code != UNUSABLE:
            with _lock:
                _results.pop(key, None)
            raise
        result.error = error
    except Exception as error:
        if not result.tried:
            raise
        log.exception("a result of MLflow's store was not read anew")
        result.error = CpbError(
            f"reading it failed ({type(error).__name__}); the service's log has the details"
        )
    # The token of before the reading: a write in between makes the result old at once, and it is read
    # again.
    is_first, result.token, result.tried = not result.tried, token, time.monotonic()
    if not is_first and _differ(before, (result.value, str(result.error))):
        with _lock:
            _changes += 1


def _differ(before: tuple[Any, str], after: tuple[Any, str]) -> bool:
    if isinstance(before[0], pl.DataFrame) and isinstance(after[0], pl.DataFrame):
        return before[1] != after[1] or not before[0].equals(after[0])
    return before[1] != after[1] or bool(before[0] != after[0])


def refresh(stop: threading.Event) -> None:
    """Read every result anew that may have changed: those of the whole store, then the longest untried first."""
    token, address = _token(), _address()
    with _lock:
        tried = [(key, result) for key, result in _results.items() if result.tried]
    # Few results are of the whole store, and every page shows them: these first.
    for key, result in sorted(tried, key=lambda item: (len(item[0]), item[1].tried)):
        began = time.monotonic()
        if began - result.asked > _UNUSED_S or key[0] != address:
            with _lock:
                _results.pop(key, None)
        elif result.token != token or result.error or began - result.tried > _MAX_AGE_S:
            with suppress(CpbError):  # what it is about was deleted: the next request says so
                _read(key, result, token)
            # The interpreter's lock is shared: without pauses requests would wait for a thread that only
            # reads ahead.
            if stop.wait(_PAUSE * (time.monotonic() - began)):
                return


def keep_fresh(stop: threading.Event) -> None:
    """Keep every result fresh until `stop` is set."""
    while not stop.wait(_CHECK_S):
        refresh(stop)


def database() -> Path | None:
    """Return the store's database if it is a file of this machine."""
    return sqlite_path(_address())


def _address() -> str:
    """Return the store's address; "" if the home's record of it cannot be read, which opening the store says."""
    try:
        return tracking_uri()
    except (CpbError, OSError):
        return ""


def _token() -> str:
    """Return a token of the store's files; empty for a server, whose changes are not seen."""
    file = database()
    # SQLite in WAL mode writes into a file beside the database first.
    return file_times([file, file.with_name(f"{file.name}-wal")] if file else [])


def file_times(paths: Iterable[Path]) -> str:
    """Return a token that changes with the modification of files and folders."""
    # Sum and number: any change moves the sum, and a file that goes changes both.
    times = []
    for path in paths:
        with suppress(FileNotFoundError):
            times.append(path.stat().st_mtime_ns)
    return f"{len(times)}-{sum(times)}"
