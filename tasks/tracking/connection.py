"""An opened MLflow store: the client whose failures are one sentence, the experiment, and the search for runs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, cast

from schemas.errors import CpbError
from tasks.tracking.database import (
    artifacts_beside,
    exclusive,
    failure,
    is_server,
    is_unavailable,
    sqlite_path,
)
from tasks.tracking.mlflow_private import quiet

if TYPE_CHECKING:
    from mlflow.entities import Experiment, Run
    from mlflow.tracking import MlflowClient

EXPERIMENT = "cpb"
LAYOUT_TAG, LAYOUT = "cpb.layout", "2"
"""How names and tags of the experiment's runs are arranged; 2 since models carry their market."""
MODELS_TAG, MODELS = "cpb.models", "mlflow"
"""Says that registered versions are MLflow models."""
_TAGS = {
    "mlflow.experimentKind": "custom_model_development",
    LAYOUT_TAG: LAYOUT,
    MODELS_TAG: MODELS,
}  # the first: the UI need not ask
_PAGE = 1000


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


def connect(uri: str, served: str) -> Store:
    """Connect to a store that can be reached, and make the experiment `cpb` where missing.

    Raises:
        CpbError: it is not MLflow's, or of another version.
    """
    quiet()
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient
    from sqlalchemy.exc import SQLAlchemyError

    try:
        client = MlflowClient(tracking_uri=served, registry_uri=served)
        experiment_id = _experiment(client, uri, served)
    except (MlflowException, SQLAlchemyError, ModuleNotFoundError) as error:
        raise failure(uri, error) from None  # the exception may hold the URI
    return Store(uri, cast("MlflowClient", _Client(client, uri)), experiment_id, served)


def experiment_of(store: Store) -> "Experiment":
    """Return the experiment as it is stored now."""
    return store.client.get_experiment(store.experiment_id)


def find_run(store: Store, run_id: str | None) -> "Run | None":
    """Return a run by its id, or None where there is none."""
    from mlflow.exceptions import MlflowException

    try:
        return store.client.get_run(run_id) if run_id else None
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
        return None


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
    token = None
    while True:
        page = store.client.search_runs(
            [store.experiment_id], condition, view, page_size, order_by=list(order_by), page_token=token
        )
        yield from page
        token = page.token
        if not token:
            return


@contextmanager
def alone(store: Store) -> Iterator[None]:
    """Hold the store against other processes and threads of this machine: look, then write, as one step."""
    with exclusive(store.served):  # beside a database that may only be read there may be no place for a lock
        yield


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
            try:
                return method(*arguments, **options)
            except CpbError:
                raise
            except Exception as error:
                if is_unavailable(error):
                    raise failure(self._uri, error) from None
                raise

        return call


def _experiment(client: "MlflowClient", uri: str, served: str) -> str:
    from mlflow.entities import LifecycleStage

    found = client.get_experiment_by_name(EXPERIMENT)
    if found is None:
        with exclusive(served):
            found = client.get_experiment_by_name(EXPERIMENT)
            if found is None:
                # A server places artifacts by itself; beside a database on this machine we say where.
                database = None if is_server(uri) else sqlite_path(uri)
                location = artifacts_beside(database).as_uri() if database else None
                if database and served == uri:  # a copy of the store then has the folder, by which it is told
                    artifacts_beside(database).mkdir(exist_ok=True)
                return client.create_experiment(EXPERIMENT, artifact_location=location, tags=_TAGS)
    if found.lifecycle_stage == LifecycleStage.DELETED:
        client.restore_experiment(found.experiment_id)
    return found.experiment_id
