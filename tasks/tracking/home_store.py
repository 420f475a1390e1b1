"""The MLflow store of a home: `HOME/cpb-store.json` holds the store's id, and the address at which it was last written.

A store is known by its id, a tag of its experiment: moved, restored and served stores keep it. An address tells
nothing: another store may lie there. Several homes may share a store.
"""

import os
from pathlib import Path
from urllib.parse import urlsplit

from schemas.base import Record
from schemas.errors import DamagedError
from schemas.home import home_folder, new_store_folder
from tasks.storage.home_version import mark_home
from tasks.storage.records import parse_record, write_record
from tasks.storage.urls import public_url

RECORD = "cpb-store.json"
"""File of a home that says which store is its own."""

TAKE = "cpb store --take"
"""The command that gives a home another store on purpose."""

_SQLITE = "sqlite:///"


class HomeStore(Record):
    """The store of a home.

    `address`: its public URL; the path of an SQLite file in the home or beside it is relative to the home, so that both
    can be moved together. `has_secret`: the URL had a user or a password, which are not stored.
    """

    store_id: str
    address: str
    has_secret: bool = False

    @classmethod
    def of(cls, store_id: str, uri: str, folder: Path) -> "HomeStore":
        """Return the record of a store at a URI, for the home in `folder`."""
        place = folder.absolute()
        if database := sqlite_path(uri):
            path = os.path.normpath(database)
            # A link's parent is another folder than that of its target.
            if place == place.resolve() and Path(path).is_relative_to(place.parent):
                path = os.path.relpath(path, place)
            return cls(store_id=store_id, address=f"{_SQLITE}{path}")
        # Never with a password: the file is archived and copied with the home.
        address = public_url(uri)
        return cls(store_id=store_id, address=address, has_secret=address != uri)

    def uri(self, folder: Path) -> str:
        """Return the store's URI for the home in `folder`; without user and password."""
        if not self.address.startswith(_SQLITE):
            return self.address
        return f"{_SQLITE}{os.path.normpath(folder.absolute() / self.address.removeprefix(_SQLITE))}"


def home_store(folder: Path) -> HomeStore | None:
    """Return the record of a home's store; None for a home that has not taken a store yet.

    Raises:
        DamagedError: the record is not as it was written.
    """
    path = folder / RECORD
    try:
        return parse_record(path, HomeStore)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except DamagedError as error:
        raise DamagedError.of(
            path,
            error,
            f"restore it from a backup, or set MLFLOW_TRACKING_URI to that store and record it again with `{TAKE}`",
            name=f"{path}, which says which MLflow store is this home's,",
        ) from error


def write_home_store(folder: Path, record: HomeStore) -> None:
    """Write the record of a home's store."""
    mark_home(folder)
    write_record(folder / RECORD, record)


def named_uri() -> str:
    """Return the store's URI in `MLFLOW_TRACKING_URI`, "" if it is not set; SQLite paths are made absolute.

    MLflow caches one engine per URI, and a relative path would still refer to the old file after a change of directory.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    database = sqlite_path(uri)
    return f"{_SQLITE}{database}" if database else uri


def tracking_uri() -> str:
    """Return `MLFLOW_TRACKING_URI`, else the URI of the home's store, else that of a new store in `new_store_folder`.

    Raises:
        DamagedError: which store is the home's cannot be read.
    """
    if uri := named_uri():
        return uri
    record = home_store(home_folder())
    return record.uri(home_folder()) if record else new_store_uri()


def new_store_uri(in_clone: Path = Path()) -> str:
    """Return the URI of the store of a home that knows none, in `new_store_folder`."""
    return f"{_SQLITE}{(new_store_folder(in_clone) / 'mlflow.db').absolute()}"


def sqlite_path(uri: str) -> Path | None:
    """Return the absolute database file of a `sqlite:///` URI, None for any other kind of store."""
    if not uri.startswith(_SQLITE):
        return None
    return Path(uri.removeprefix(_SQLITE)).absolute()


def is_server(uri: str) -> bool:
    """Whether the store is a tracking server, reached over HTTP."""
    return urlsplit(uri).scheme in ("http", "https")
