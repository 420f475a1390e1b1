"""An opened MLflow store: the client whose failures are one sentence, the experiment, and the search for runs."""

import logging
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar, cast

from schemas.errors import CpbError
from tasks.storage.leases import check_held, leased
from tasks.storage.locks import locked, temporary_lock
from tasks.storage.urls import public_url
from tasks.tracking.database import (
    EXPERIMENT,
    artifacts_beside,
    check,
    exclusive,
    failure,
    is_server,
    is_unavailable,
    make_sqlite,
    making_schema,
    no_shared_place,
    sqlite_path,
)
from tasks.tracking.mlflow_private import PROXIED, local_path, quiet
from tasks.tracking.tags import FLOW, KIND, PROCESS

if TYPE_CHECKING:
    from mlflow.entities import Experiment, Run
    from mlflow.tracking import MlflowClient

LAYOUT_TAG, LAYOUT = "cpb.layout", "3"
"""Version of the names and tags by which cpb arranges runs and models in the experiment; another one is refused."""
TAGS = {
    "mlflow.experimentKind": "custom_model_development",
    LAYOUT_TAG: LAYOUT,
}
"""Of a new experiment; the first: MLflow's page need not ask what it holds."""
_PAGE = 1000
_IDS = 200  # of runs in one filter
_PATIENT_S = 10.0
_LOOKED_AT = 50
"""Newest flow runs that are asked which machines write to the store."""

log = logging.getLogger("cpb")

T = TypeVar("T")

_warned: set[str] = set()


@dataclass(frozen=True)
class Store:
    """An opened tracking store.

    `served` is the URI that MLflow reads: `uri` itself, or a snapshot of a database that may only be read.
    """

    uri: str
    client: "MlflowClient"
    experiment_id: str
    served: str

    @property
    def read_only(self) -> bool:
        """Whether nothing can be stored here."""
        return self.served != self.uri

    @property
    def artifacts(self) -> str:
        """The place (a URI) below which artifacts of new runs lie, as it is recorded now."""
        return str(self.client.get_experiment(self.experiment_id).artifact_location)


def connect(uri: str, served: str) -> Store:
    """Connect to a store that can be reached, and make the experiment `cpb` where missing.

    Raises:
        CpbError: it is not MLflow's, or of another version.
    """
    with _making(uri, served) as client:
        experiment_id = _experiment(client, uri, served)
        layout = client.get_experiment(experiment_id).tags.get(LAYOUT_TAG)
    if layout != LAYOUT:
        raise CpbError(
            f"the experiment {EXPERIMENT} of the MLflow store {public_url(uri)} was made by another version of cpb "
            f"(layout {layout or 'none'}, this version writes {LAYOUT}): set MLFLOW_TRACKING_URI to another store, or "
            "rename that experiment in MLflow",
            code="store-version", field="MLFLOW_TRACKING_URI",
        )  # fmt: skip
    return Store(uri, cast("MlflowClient", _Client(client, uri)), experiment_id, served)


@contextmanager
def _making(uri: str, served: str) -> Iterator["MlflowClient"]:
    """Yield a client that makes what is missing in a store; where that fails, the error is one sentence."""
    quiet()
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with making_schema(served):
            yield MlflowClient(tracking_uri=served, registry_uri=served)
    except (MlflowException, SQLAlchemyError, ModuleNotFoundError) as error:
        raise failure(uri, error) from None  # the exception may hold the URI


def existing(call: Callable[..., T], *arguments: Any) -> T | None:
    """Return what MLflow's client answers, or None where what the call names does not exist."""
    from mlflow.exceptions import MlflowException

    try:
        return call(*arguments)
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
        return None


def pages(call: Callable[..., Any], *arguments: Any, **options: Any) -> Iterator[Any]:
    """Yield all that a search of MLflow's client finds, page by page."""
    token = None
    while True:
        page = call(*arguments, **options, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def find_run(store: Store, run_id: str | None) -> "Run | None":
    """Return a run by its id, or None where there is none."""
    return existing(store.client.get_run, run_id) if run_id else None


def find_runs(store: Store, run_ids: Collection[str]) -> "dict[str, Run]":
    """Return runs by their ids, also deleted ones, hundreds in a call; ids of no run are left out."""
    from mlflow.entities import ViewType

    runs, wanted = dict[str, "Run"](), sorted(set(run_ids))
    for start in range(0, len(wanted), _IDS):
        quoted = ", ".join(f"'{run_id}'" for run_id in wanted[start : start + _IDS])
        page = store.client.search_runs(
            [store.experiment_id], f"attributes.run_id IN ({quoted})", ViewType.ALL, _PAGE
        )
        runs |= {run.info.run_id: run for run in page}
    for run_id in wanted:  # of another experiment, as a model that somebody registered by hand
        if run_id not in runs and (run := find_run(store, run_id)):
            runs[run_id] = run
    return runs


def search(store: Store, condition: str = "", order_by: Sequence[str] = ()) -> list["Run"]:
    """Return all live runs of the experiment that satisfy an MLflow filter."""
    return list(search_lazily(store, condition, order_by))


def search_lazily(
    store: Store,
    condition: str = "",
    order_by: Sequence[str] = (),
    page_size: int = _PAGE,
    *,
    deleted: bool = False,
) -> Iterator["Run"]:
    """Yield the runs that satisfy an MLflow filter, page by page, for callers that need only the first few.

    Args:
        deleted: also those that MLflow has marked as deleted, whose rows and files are still there.
    """
    from mlflow.entities import ViewType

    view = ViewType.ALL if deleted else ViewType.ACTIVE_ONLY
    yield from pages(
        store.client.search_runs, [store.experiment_id], condition, view, page_size, order_by=list(order_by)
    )


@contextmanager
def alone(store: Store) -> Iterator[None]:
    """Hold the store against other processes and threads of this machine: look, then write, as one step."""
    with exclusive(store.served):  # beside a database that may only be read there may be no place for a lock
        yield


@contextmanager
def alone_everywhere(store: Store, what: str) -> Iterator[None]:
    """Hold one part of the store against the processes of other machines too, where they may use it.

    A SQLite store is this machine's: who writes it holds a lock beside it already. Of any other the hold is a lock of
    this machine and a lease of the Prefect server that all machines ask. Without one, the others are not kept out,
    which is said once where they have written to this store.

    Args:
        what: the part: `registry` (aliases, versions, pruning) or `runs` (which run a command continues).
    """
    if sqlite_path(store.uri):
        yield
        return
    name = f"cpb-{what}-{_identity(store)}"
    with locked(temporary_lock(f"{name}.lock")), leased(name) as everywhere:
        if not everywhere:
            _warn_of_others(store)
        yield


def _identity(store: Store) -> str:
    """Return what all machines call the same store, whatever the address by which they reach it."""
    experiment = store.client.get_experiment(store.experiment_id)
    return sha256(f"{experiment.experiment_id} {experiment.creation_time}".encode()).hexdigest()[:12]


def _warn_of_others(store: Store) -> None:
    if store.uri in _warned:
        return
    newest = islice(
        search_lazily(store, f"tags.`{KIND}` = '{FLOW}'", ["attributes.start_time DESC"], _LOOKED_AT),
        _LOOKED_AT,
    )
    hosts = {run.data.tags.get(PROCESS, "").partition("|")[0] for run in newest}
    others = sorted(hosts - {"", socket.gethostname()})
    if others:
        _warned.add(store.uri)
        log.warning(
            "%s also writes to the MLflow store %s, and no Prefect server is set by which the machines wait for one "
            "another: promote and prune on one of them at a time, or set PREFECT_API_URL on each",
            " and ".join(others[:3]), public_url(store.uri),
        )  # fmt: skip


class _Client:
    """MLflow's client; where the database or server fails in the middle of a run, the error is one sentence."""

    def __init__(self, client: "MlflowClient", uri: str) -> None:
        self._client, self._uri = client, uri

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        return found if name.startswith("_") or not callable(found) else self._guarded(found)

    def _guarded(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*arguments: Any, **options: Any) -> Any:
            check_held()
            try:
                with self._waiting():
                    return method(*arguments, **options)
            except CpbError:
                raise
            except Exception as error:
                if is_unavailable(error):
                    raise failure(self._uri, error) from None
                raise

        return call

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Say once that a tracking server lets this call wait: MLflow asks it again for a minute, without a word."""
        if not is_server(self._uri):
            yield
            return
        sentence = f"waiting for the MLflow server {public_url(self._uri)} since {_PATIENT_S:.0f} s"
        timer = threading.Timer(_PATIENT_S, log.warning, (sentence,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _experiment(client: "MlflowClient", uri: str, served: str) -> str:
    from mlflow.entities import LifecycleStage

    found = client.get_experiment_by_name(EXPERIMENT)
    if found is None:
        with exclusive(served):
            found = client.get_experiment_by_name(EXPERIMENT) or _make_experiment(client, uri, served)
    if found.lifecycle_stage == LifecycleStage.DELETED:
        client.restore_experiment(found.experiment_id)
    return found.experiment_id


def _make_experiment(client: "MlflowClient", uri: str, served: str) -> "Experiment":
    """Make the experiment and return it; that of another machine, which was faster, counts as well.

    A server places artifacts by itself; beside a SQLite database we say where. Of any other database MLflow would
    record a folder of this machine, for good and for everyone: it is refused.
    """
    from mlflow.exceptions import MlflowException

    database = sqlite_path(uri)
    if database is None and not is_server(uri):
        raise no_shared_place(uri)
    if database and served == uri:  # a copy of the store then has the folder, by which it is told
        artifacts_beside(database).mkdir(exist_ok=True)
    try:
        location = artifacts_beside(database).as_uri() if database else None
        return client.get_experiment(client.create_experiment(EXPERIMENT, location, TAGS))
    except MlflowException as error:
        found = client.get_experiment_by_name(EXPERIMENT)
        if error.error_code != "RESOURCE_ALREADY_EXISTS" or found is None:
            raise
        return found


def prepare_database(uri: str) -> None:
    """Make the schema and the experiment, whose artifacts the server keeps, where they are missing.

    Raises:
        CpbError: the database cannot be used, or says that artifacts lie in a folder of one machine.
    """
    database = sqlite_path(uri)
    if database and not database.exists():
        make_sqlite(database)
    check(uri, write=True)
    with _making(uri, uri) as client:
        experiment = client.get_experiment_by_name(EXPERIMENT)
        if experiment is None:
            client.create_experiment(EXPERIMENT, f"{PROXIED}/{EXPERIMENT}", TAGS)
    if experiment and (folder := local_path(experiment.artifact_location)):
        raise no_shared_place(uri, folder)
