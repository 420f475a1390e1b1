"""An opened MLflow store: a client that reports failures in one sentence, the experiment, and the search for runs."""

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar, cast

from schemas.errors import CpbError
from tasks.storage.locks import locked, temporary_lock
from tasks.storage.urls import public_url
from tasks.tracking.database import (
    EXPERIMENT,
    artifacts_beside,
    exclusive,
    failure,
    is_server,
    is_unavailable,
    no_shared_place,
    quiet,
    sqlite_path,
)

if TYPE_CHECKING:
    from mlflow.entities import Experiment, Run
    from mlflow.tracking import MlflowClient

LAYOUT_TAG, LAYOUT = "cpb.layout", "3"
"""Version of the names and tags of runs and models in the experiment; other versions are refused."""
TAGS = {
    "mlflow.experimentKind": "custom_model_development",
    LAYOUT_TAG: LAYOUT,
}
"""Tags of a new experiment; the first tells MLflow's page the kind of experiment."""
_PAGE = 1000
_IDS = 200  # of runs in one filter
_PATIENT_S = 10.0

log = logging.getLogger("cpb")

T = TypeVar("T")


@dataclass(frozen=True)
class Store:
    """An opened tracking store.

    `served` is the URI that MLflow reads: `uri` itself, or that of a read-only database.
    """

    uri: str
    client: "MlflowClient"
    experiment_id: str
    served: str

    @property
    def read_only(self) -> bool:
        """Whether the store is read-only."""
        return self.served != self.uri

    @property
    def artifacts(self) -> str:
        """The root URI of the artifacts of new runs, as currently recorded."""
        return str(self.client.get_experiment(self.experiment_id).artifact_location)


def connect(uri: str, served: str) -> Store:
    """Connect to a reachable store, and create the experiment `cpb` if missing.

    Raises:
        CpbError: it is not an MLflow store, or of another version.
    """
    quiet()
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient
    from sqlalchemy.exc import SQLAlchemyError

    try:
        client = MlflowClient(tracking_uri=served, registry_uri=served)
        experiment_id = _experiment(client, uri)
        # A person may have made the experiment, for its artifact location: then without the tag.
        layout = client.get_experiment(experiment_id).tags.get(LAYOUT_TAG, LAYOUT)
    except (MlflowException, SQLAlchemyError, ModuleNotFoundError) as error:
        raise failure(uri, error) from None  # the exception may hold the URI
    if layout != LAYOUT:
        raise CpbError(
            f"the experiment {EXPERIMENT} of the MLflow store {public_url(uri)} was made by another version of cpb "
            f"(layout {layout}, this version writes {LAYOUT}): set MLFLOW_TRACKING_URI to another store, or "
            "rename that experiment in MLflow",
            code="store-version", field="MLFLOW_TRACKING_URI",
        )  # fmt: skip
    return Store(uri, cast("MlflowClient", _Client(client, uri)), experiment_id, served)


def existing(call: Callable[..., T], *arguments: Any) -> T | None:
    """Return the result of an MLflow client call, or None if the requested object does not exist."""
    from mlflow.exceptions import MlflowException

    try:
        return call(*arguments)
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
        return None


def pages(call: Callable[..., Any], *arguments: Any, **options: Any) -> Iterator[Any]:
    """Yield all results of an MLflow client search, page by page."""
    token = None
    while True:
        page = call(*arguments, **options, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def find_run(store: Store, run_id: str | None) -> "Run | None":
    """Return a run by its id, or None."""
    return existing(store.client.get_run, run_id) if run_id else None


def find_runs(store: Store, run_ids: Collection[str]) -> "dict[str, Run]":
    """Return runs by their ids, including deleted runs, hundreds per call; unknown ids are left out."""
    from mlflow.entities import ViewType

    runs, wanted = dict[str, "Run"](), sorted(set(run_ids))
    for start in range(0, len(wanted), _IDS):
        quoted = ", ".join(f"'{run_id}'" for run_id in wanted[start : start + _IDS])
        page = store.client.search_runs(
            [store.experiment_id], f"attributes.run_id IN ({quoted})", ViewType.ALL, _PAGE
        )
        runs |= {run.info.run_id: run for run in page}
    for run_id in wanted:  # runs of another experiment, such as of a model registered by hand
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
        deleted: include runs marked as deleted, whose rows and files still exist.
    """
    from mlflow.entities import ViewType

    view = ViewType.ALL if deleted else ViewType.ACTIVE_ONLY
    yield from pages(
        store.client.search_runs, [store.experiment_id], condition, view, page_size, order_by=list(order_by)
    )


@contextmanager
def alone(store: Store) -> Iterator[None]:
    """Lock the store on this machine, so that reading and then writing is one atomic step."""
    with exclusive(store.uri):
        yield


@contextmanager
def alone_everywhere(store: Store, what: str) -> Iterator[None]:
    """Lock one part of a store that is not a local file against this user's other processes on this machine.

    A SQLite store needs no further lock: writers hold one beside it. Nothing holds between machines: one of them
    promotes and prunes (docs/cluster.md).

    Args:
        what: the part: `registry` (aliases, versions, pruning) or `runs` (which run a command continues).
    """
    if sqlite_path(store.uri):
        yield
        return
    with locked(temporary_lock(f"cpb-{what}-{_identity(store)}.lock")):
        yield


def _identity(store: Store) -> str:
    """Return an identity of the store that is the same on all machines, whatever address they use."""
    experiment = store.client.get_experiment(store.experiment_id)
    return sha256(f"{experiment.experiment_id} {experiment.creation_time}".encode()).hexdigest()[:12]


class _Client:
    """MLflow's client; a database or server failure during a run is reported in one sentence."""

    def __init__(self, client: "MlflowClient", uri: str) -> None:
        self._client, self._uri = client, uri

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        return found if name.startswith("_") or not callable(found) else self._guarded(found)

    def _guarded(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*arguments: Any, **options: Any) -> Any:
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
        """Log once that a call waits for the tracking server: MLflow retries silently for a minute."""
        if not is_server(self._uri):
            yield
            return
        sentence = f"waiting for the MLflow server {public_url(self._uri)} for more than {_PATIENT_S:.0f} s"
        timer = threading.Timer(_PATIENT_S, log.warning, (sentence,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _experiment(client: "MlflowClient", uri: str) -> str:
    from mlflow.entities import LifecycleStage

    found = client.get_experiment_by_name(EXPERIMENT)
    if found is None:
        with exclusive(uri):
            found = client.get_experiment_by_name(EXPERIMENT) or _make_experiment(client, uri)
    if found.lifecycle_stage == LifecycleStage.DELETED:
        client.restore_experiment(found.experiment_id)
    return found.experiment_id


def _make_experiment(client: "MlflowClient", uri: str) -> "Experiment":
    """Create the experiment and return it; an experiment created by another machine meanwhile is returned too.

    A server chooses the artifact location itself; for SQLite it is the folder beside the database. For any other
    database MLflow would permanently record a folder of this machine for all users: it is refused.
    """
    from mlflow.exceptions import MlflowException

    database = sqlite_path(uri)
    if database is None and not is_server(uri):
        raise no_shared_place(uri)
    if database:  # the folder identifies a moved or copied store
        artifacts_beside(database).mkdir(exist_ok=True)
    try:
        location = artifacts_beside(database).as_uri() if database else None
        return client.get_experiment(client.create_experiment(EXPERIMENT, location, TAGS))
    except MlflowException as error:
        found = client.get_experiment_by_name(EXPERIMENT)
        if error.error_code != "RESOURCE_ALREADY_EXISTS" or found is None:
            raise
        return found
