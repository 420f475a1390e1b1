"""An opened MLflow store: the client, the experiment, and the search for runs."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from schemas.errors import CpbError
from schemas.scope import default_folder
from tasks.storage.urls import local_path, public_url
from tasks.tracking.database import EXPERIMENT, exclusive, is_server, quiet, sqlite_path

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

T = TypeVar("T")


@dataclass(frozen=True)
class Store:
    """An opened tracking store."""

    uri: str
    client: "MlflowClient"
    experiment_id: str

    @property
    def artifacts(self) -> str:
        """The root URI of the artifacts of new runs, as recorded."""
        return str(self.client.get_experiment(self.experiment_id).artifact_location)


def connect(uri: str) -> Store:
    """Connect to a reachable store, and create the experiment `cpb` if missing.

    Raises:
        CpbError: the store is of another version, or was moved away from its artifacts.
    """
    quiet()
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    experiment = _experiment(client, uri)
    # A person may have made the experiment, for its artifact location: then without the tag.
    if LAYOUT_TAG in experiment.tags:
        _check_layout(uri, experiment)
    return Store(uri, client, experiment.experiment_id)


def _check_layout(uri: str, experiment: "Experiment") -> None:
    if (layout := experiment.tags[LAYOUT_TAG]) != LAYOUT:
        raise CpbError(
            f"the experiment {EXPERIMENT} of the MLflow store {public_url(uri)} was made by another version of cpb "
            f"(layout {layout}, this version writes {LAYOUT}): set MLFLOW_TRACKING_URI to another store, or "
            "rename that experiment in MLflow",
            code="store-version", field="MLFLOW_TRACKING_URI",
        )  # fmt: skip
    database, folder = sqlite_path(uri), local_path(experiment.artifact_location)
    if database and folder and folder.resolve() != _artifacts(uri).resolve():
        raise CpbError(
            f"the MLflow store {database} was moved or copied: its artifacts are recorded in {folder}, which may be "
            "those of another store; docs/backup.md has the SQL line that records their new place",
            code="moved-store", field=str(database),
        )  # fmt: skip


def _experiment(client: "MlflowClient", uri: str) -> "Experiment":
    from mlflow.entities import LifecycleStage

    experiment = client.get_experiment_by_name(EXPERIMENT)
    if experiment is None:
        with exclusive(uri):
            experiment = client.get_experiment_by_name(EXPERIMENT) or _make_experiment(client, uri)
    if experiment.lifecycle_stage == LifecycleStage.DELETED:
        client.restore_experiment(experiment.experiment_id)
    return experiment


def _make_experiment(client: "MlflowClient", uri: str) -> "Experiment":
    """Create the experiment and return it; a server chooses the place of the artifacts itself."""
    location = None
    if not is_server(uri):
        _artifacts(uri).mkdir(parents=True, exist_ok=True)
        location = _artifacts(uri).as_uri()
    return client.get_experiment(client.create_experiment(EXPERIMENT, location, TAGS))


def _artifacts(uri: str) -> Path:
    """Return the artifact folder of a new store: beside its SQLite file, else in `default_folder`."""
    database = sqlite_path(uri)
    return (database.parent if database else default_folder().absolute() / "mlruns") / "artifacts"


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
