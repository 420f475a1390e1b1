"""What the registry says of the champions, read by MLflow once for each state of the store: `HOME/registry.json`.

MLflow takes two seconds of CPU to load and open. As long as the files of an SQLite store are as they were before the
registry was last read, the copy says the same. A store behind a server has no such files: it is opened each time.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from schemas.base import Record
from schemas.decision import Decision
from schemas.errors import CpbError
from schemas.home import home_folder
from tasks.storage.home_version import check_home
from tasks.storage.records import file_digest, find_record, write_record
from tasks.tracking.champions import Registered, read_registered
from tasks.tracking.decisions import newest_decisions
from tasks.tracking.experiment import Store
from tasks.tracking.home_store import HomeStore, home_store, sqlite_path, tracking_uri

COPY = "registry.json"
"""File of a home with its `Registry`."""

_RECENT_NS = 3_000_000_000
"""A file that was changed so recently can be changed again without another time: the clock of a file system has steps
of 4 ms (Linux) to 2 s (FAT)."""


class StoreState(Record):
    """The state of an SQLite store, known without reading its tables.

    `files`: device, inode, bytes, and the times of the last change of content and of inode (ns) of the write-ahead log
    and of the database; empty for a log without content. The time of an inode cannot be set, so that a restored file
    of the same size and time is another one. `content`: sha256 of both files if one was changed within `_RECENT_NS`,
    else "".
    """

    files: tuple[tuple[int, ...], ...]
    content: str = ""


class Registry(Record):
    """The champions of all markets and the newest decision on each series, as the store `store_id` at `uri` had them.

    `state`: of the store, taken before it was read; None for a store that is no SQLite file.
    """

    store_id: str
    uri: str
    state: StoreState | None
    champions: tuple[Registered, ...]
    decisions: tuple[Decision, ...]


def read_registry(opened: Callable[[], Store]) -> Registry:
    """Return what the registry of the home's store says; the store is opened only if it may have changed.

    Args:
        opened: opens the store, with the checks that the command needs; errors as it raises.
    """
    folder, uri = home_folder(), tracking_uri()
    state = store_state(uri)
    if state and (copy := _copy_of(folder, uri, state)):
        return copy
    store = opened()
    registry = Registry(
        store_id=store.id,
        uri=uri,
        state=state,
        champions=tuple(read_registered(store)),
        decisions=tuple(newest_decisions(store).values()),
    )
    if state and _is_of_home(registry, folder):
        _keep(registry, folder)
    return registry


def store_state(uri: str) -> StoreState | None:
    """Return the state of the store's files; None for a store that is no SQLite file, or cannot be read."""
    if (database := sqlite_path(uri)) is None:
        return None
    now, paths = time.time_ns(), _paths(database)
    try:
        files = tuple(_file_state(path) for path in paths)
        # A rollback journal: a transaction is being written, or was cut off.
        if not files[-1] or Path(f"{paths[-1]}-journal").exists():
            return None
        changed = max(max(file[-2:], default=0) for file in files)
        return StoreState(files=files, content=_content(paths, files) if changed + _RECENT_NS > now else "")
    except OSError:  # opening the store tells why
        return None


def _paths(database: Path) -> tuple[Path, Path]:
    database = database.resolve()  # SQLite writes its log beside the file that a link leads to
    # The log first: a checkpoint moves its content into the database before it empties the log.
    return Path(f"{database}-wal"), database


def _file_state(path: Path) -> tuple[int, ...]:
    try:
        file = path.stat()
    except FileNotFoundError:
        return ()
    state = (file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns, file.st_ctime_ns)
    return state if file.st_size else ()  # whoever reads the store creates an empty log


def _content(paths: Iterable[Path], files: Iterable[tuple[int, ...]]) -> str:
    return " ".join(file_digest(path) for path, file in zip(paths, files, strict=True) if file)


def _copy_of(folder: Path, uri: str, state: StoreState) -> Registry | None:
    """Return the home's copy if it is of its store at `uri` in this state."""
    copy, database = find_record(folder / COPY, Registry), sqlite_path(uri)
    if not copy or not copy.state or not database or copy.uri != uri or not _is_of_home(copy, folder):
        return None
    if copy.state.files != state.files:
        return None
    if copy.state.content:
        if copy.state.content != (state.content or _content(_paths(database), state.files)):
            return None
        if not state.content:  # from now on the times tell every change
            copy = copy.model_copy(update={"state": state})
            _keep(copy, folder)
    return copy


def _is_of_home(registry: Registry, folder: Path) -> bool:
    """Whether the home knows the store of a registry by its id, at this place."""
    return home_store(folder) == HomeStore.of(registry.store_id, registry.uri, folder)


def _keep(registry: Registry, folder: Path) -> None:
    # A home that cannot be written, as another user's or another version's, is read all the same.
    with suppress(OSError, CpbError):
        write_record(check_home(folder) / COPY, registry, compact=True)
