"""What the registry says of the champions, read by MLflow once for each state of the store: `HOME/registry.json`.

MLflow takes two seconds of CPU to load and open. As long as the files of an SQLite store have the bytes that they had
before the registry was read, the copy says the same: times and sizes would not tell every change, and hashing 5 MB
takes 3 ms. A store behind a server has no such files: it is opened each time.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from schemas.base import Record
from schemas.decision import Decision
from schemas.errors import CpbError
from schemas.home import home_folder
from tasks.storage.home_version import check_home
from tasks.storage.records import file_digest, find_record, value_digest, write_record
from tasks.tracking.champions import Registered, read_registered
from tasks.tracking.decisions import newest_decisions
from tasks.tracking.experiment import Store
from tasks.tracking.home_store import HomeStore, home_store, sqlite_path, tracking_uri

COPY = "registry.json"
"""File of a home with its `Registry`."""

_MAX_BYTES = 500_000_000
"""Of a database: hashing a larger one can take longer than MLflow does."""

_COMMITTED = slice(16, 40)
"""Of the log's index: which frames are committed, with their checksum and salt (https://sqlite.org/walformat.html)."""


class Registry(Record):
    """The champions of all markets and the newest decision on each series, as the store `store_id` at `uri` had them.

    `state`: of the store, taken before it was read (`store_state`).
    """

    store_id: str
    uri: str
    state: str
    champions: tuple[Registered, ...]
    decisions: tuple[Decision, ...]


def read_registry(opened: Callable[[], Store]) -> Registry:
    """Return what the registry of the home's store says; the store is opened only if it may have changed.

    Args:
        opened: opens the store, with the checks that the command needs; errors as it raises.
    """
    folder, uri = home_folder(), tracking_uri()
    state = store_state(uri)
    copy = find_record(folder / COPY, Registry) if state else None
    if copy and (copy.uri, copy.state) == (uri, state) and _is_of_home(copy, folder):
        return copy
    store = opened()
    registry = Registry(
        store_id=store.id,
        uri=uri,
        state=state,
        champions=tuple(read_registered(store)),
        decisions=tuple(newest_decisions(store).values()),
    )
    # A home that cannot be written, as another user's or another version's, is read all the same.
    with suppress(OSError, CpbError):
        if state and _is_of_home(registry, folder):
            write_record(check_home(folder) / COPY, registry, compact=True)
    return registry


def store_state(uri: str) -> str:
    """Return the sha256 of an SQLite store's files; "" for another store, a large one, or one that cannot be read."""
    if (named := sqlite_path(uri)) is None:
        return ""
    database = named.resolve()  # SQLite writes its other files beside the file that a link leads to
    index, log, journal = (Path(f"{database}-{name}") for name in ("shm", "wal", "journal"))
    try:
        # A rollback journal: a transaction is being written, or was cut off.
        if journal.exists() or database.stat().st_size > _MAX_BYTES:
            return ""
        parts = []
        # Whoever reads a store creates an empty log. A commit writes the log, and then into the index that it counts.
        if log.exists() and log.stat().st_size:
            committed = index.read_bytes()[_COMMITTED].hex() if index.exists() else ""
            parts = [committed, file_digest(log)]
        return value_digest([*parts, file_digest(database)])
    except OSError:  # opening the store tells why
        return ""


def _is_of_home(registry: Registry, folder: Path) -> bool:
    """Whether the home knows the store of a registry by its id, at this place."""
    return home_store(folder) == HomeStore.of(registry.store_id, registry.uri, folder)
