"""Opens the store of a home; another store is refused here.

Every command comes through `open_store`, which may write, or `read_store`; `take_store` gives a home another store.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.errors import CpbError, DamagedError
from schemas.home import home_folder
from schemas.identity import MARKETS
from tasks.storage.home_version import check_home
from tasks.storage.locks import locked
from tasks.storage.urls import public_url
from tasks.tracking.calls import pages, upsert
from tasks.tracking.experiment import EXPERIMENT, NO_STORE, STORE_ID, Store, store_at
from tasks.tracking.home_store import (
    RECORD,
    TAKE,
    HomeStore,
    home_store,
    named_uri,
    new_store_uri,
    sqlite_path,
    tracking_uri,
    write_home_store,
)
from tasks.tracking.store_errors import UNUSABLE

if TYPE_CHECKING:
    from tasks.storage.packaged import PackagedModel
LOST = "lost-store"
"""Code of the error for a home's store that no longer exists where it should lie."""
OTHER = "other-store"
"""Code of the error for a store that is not the home's."""


def open_store(*, create: bool = True) -> Store:
    """Open the home's store to write it, or to write the home from it. A home that has no store takes this one.

    Args:
        create: False does not create a missing store.

    Raises:
        CpbError: the store is missing (`NO_STORE`, with `create=False`; `LOST`), is not the home's (`OTHER`), cannot be
            used, is of another version of cpb, or was moved away from its artifacts.
    """
    folder = check_home(home_folder())
    store, known, uri = _store_of(folder, create=create), home_store(folder), tracking_uri()
    # A home that moved its store by hand records the new address; otherwise nothing is written.
    if known is None or (named_uri() and known != HomeStore.of(store.id, uri, folder)):
        with locked(folder / f".{RECORD}.lock"):
            _check(store, folder, uri)  # another process may have been first
            # A home with champions from another store would be given a store that has never heard of them.
            if home_store(folder) is None and (missing := not_registered(store, folder)):
                first = missing[0]
                more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
                raise _other(
                    uri,
                    f"does not hold the champions packaged in the home {folder} ({first.model_version}{more})",
                )
            _record(store, folder, uri)
    return store


def read_store() -> Store:
    """Open the home's store for a command that writes neither; errors as in `open_store` with `create=False`."""
    return _store_of(home_folder(), create=False)


def take_store() -> Store:
    """Open the store of `MLFLOW_TRACKING_URI`, else of the home, created if missing, and make it the home's own.

    Raises:
        DamagedError: which store was the home's cannot be read, and that in the usual place does not hold its models.
    """
    folder = check_home(home_folder())
    try:
        uri = tracking_uri()
        store = store_at(uri)
    # The record is damaged: the store in the usual place is the home's if it holds the packaged models.
    except DamagedError as error:
        uri = new_store_uri()
        try:
            store = store_at(uri, create=False)
        except CpbError:
            raise error from None
        if not_registered(store, folder):
            raise
    with locked(folder / f".{RECORD}.lock"):
        _record(store, folder, uri)
    return store


def _record(store: Store, folder: Path, uri: str) -> None:
    """Make a store the home's own."""
    # First the store: a home never knows an id that a later opening could not find.
    if STORE_ID not in store.client.get_experiment(store.experiment_id).tags:
        upsert(store.client.set_experiment_tag, store.experiment_id, STORE_ID, store.id)
    write_home_store(folder, HomeStore.of(store.id, uri, folder))


def _store_of(folder: Path, *, create: bool) -> Store:
    """Open the store for the home in `folder`, which is its own if it has one."""
    known, uri = home_store(folder), tracking_uri()
    try:
        # A new store could not be the one that the home knows.
        store = store_at(uri, create=create and known is None)
    except CpbError as error:
        # For a home with a store, a missing one is a loss, not a beginning: nothing is created in its
        # place.
        if known and error.code == NO_STORE:
            raise _lost(known, uri, folder) from error
        if known and known.has_secret and error.code == UNUSABLE and not named_uri():
            raise CpbError(
                f"{error}; {folder / RECORD} has its address without user and password: set MLFLOW_TRACKING_URI with "
                "them, or for a server MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
                code=UNUSABLE,
                field="MLFLOW_TRACKING_URI",
            ) from error
        if known and error.code == UNUSABLE and named_uri() and (remembered := known.uri(folder)) != uri:
            raise CpbError(
                f"{error}; the store of the home {folder} was last at {public_url(remembered)}: unset "
                "MLFLOW_TRACKING_URI if it still lies there",
                code=UNUSABLE,
                field="MLFLOW_TRACKING_URI",
            ) from error
        raise
    _check(store, folder, uri)
    return store


def _check(store: Store, folder: Path, uri: str) -> None:
    """Raise `CpbError` if the home has another store."""
    known = home_store(folder)
    if known is None or known.store_id == store.id:
        return
    # The same place with another id: the store was replaced, as by a new one after a deletion.
    if known.address == HomeStore.of(store.id, uri, folder).address:
        raise CpbError(
            f"the MLflow store {public_url(uri)} is another one (id {store.id}) than that of the home {folder} (id "
            f"{known.store_id}): bring that one back from a backup, or keep the other on purpose with `{TAKE}`",
            code=OTHER,
            field="MLFLOW_TRACKING_URI",
        )
    raise _other(uri, f"does not belong to the home {folder}, whose store is {public_url(known.uri(folder))}")


def _other(uri: str, why: str) -> CpbError:
    back = "unset MLFLOW_TRACKING_URI, or set" if named_uri() else "set MLFLOW_TRACKING_URI or"
    return CpbError(
        f"the MLflow store {public_url(uri)} {why}: {back} CPB_HOME, so that home and store belong together, or give "
        f"this home the other store on purpose with `{TAKE}`",
        code=OTHER,
        field="MLFLOW_TRACKING_URI",
    )


def _lost(known: HomeStore, uri: str, folder: Path) -> CpbError:
    database = sqlite_path(uri)
    why = f"has no experiment {EXPERIMENT}" if not database or database.exists() else "does not exist"
    what = f"the MLflow store of the home {folder} is not there: {public_url(uri)} {why}"
    if named_uri() and (remembered := known.uri(folder)) != uri:
        own = sqlite_path(remembered)
        if own and own.exists():  # the address was mistyped; nothing is lost
            return CpbError(
                f"the MLflow store {public_url(uri)} {why}, and the home {folder} has {public_url(remembered)}: unset "
                f"MLFLOW_TRACKING_URI, or begin a new store there on purpose with `{TAKE}`",
                code=LOST,
                field="MLFLOW_TRACKING_URI",
            )
        what += f", and was last at {public_url(remembered)}"
    return CpbError(
        f"{what}; set MLFLOW_TRACKING_URI to where it lies now, bring it back from a backup, or begin a new one on "
        f"purpose with `{TAKE}`",
        code=LOST,
        field="MLFLOW_TRACKING_URI",
    )


def not_registered(store: Store, folder: Path, markets: Sequence[str] = MARKETS) -> "list[PackagedModel]":
    """Return the home's packaged models whose weights are those of no registered version in the store.

    A version that a person registered has no recorded weights: it counts by its name.

    Args:
        folder: the home.
        markets: whose models; default all.
    """
    from tasks.storage.packaged import packaged_models  # numpy: `cpb --help` imports this module
    from tasks.tracking.tags import weights_of

    models = [
        model for market in markets for model in packaged_models(folder, market) if model.weights_sha256
    ]
    if not models:
        return []
    versions = pages(store.client.search_model_versions, "name LIKE 'cpb-%'", max_results=1000)
    # By weights, not by version numbers: a store that began anew gives the same numbers to other models.
    held = {(v.name, weights_of(v.tags) or f"{v.name}/{v.version}") for v in versions}
    return [
        m
        for m in models
        if held.isdisjoint((m.series.registered, of) for of in (m.weights_sha256, m.model_version))
    ]
