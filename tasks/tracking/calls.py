"""Calls of MLflow's client in the form that the rest needs: runs by id and by filter, all pages, None for nothing."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tasks.tracking.experiment import Store

if TYPE_CHECKING:
    from mlflow.entities import Run

PAGE = 1000
"""Results of a search that are asked for at once."""
NEWEST_FIRST = "attributes.start_time DESC"
"""Order of runs in a search."""
_IDS = 200  # of runs in one filter
T = TypeVar("T")


def existing(call: Callable[..., T], *arguments: Any) -> T | None:
    """Return the result of an MLflow client call, or None if the requested object does not exist."""
    from mlflow.exceptions import MlflowException

    try:
        return call(*arguments)
    except MlflowException as error:
        # MLflow calls an id that cannot be one an invalid parameter.
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
        return None


def upsert(call: Callable[..., None], *arguments: Any) -> None:
    """Set a tag or an alias of the registry by an MLflow client call.

    MLflow selects the row, then inserts or updates it: of two machines that insert it at once one gets BAD_REQUEST. Its
    second call updates the row.
    """
    from mlflow.exceptions import MlflowException

    try:
        call(*arguments)
    except MlflowException as error:
        if error.error_code != "BAD_REQUEST":
            raise
        call(*arguments)


def pages(call: Callable[..., Any], *arguments: Any, **options: Any) -> Iterator[Any]:
    """Yield all results of an MLflow client search, page by page."""
    token = None
    while True:
        page = call(*arguments, **options, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def search(
    store: Store,
    condition: str = "",
    order_by: Sequence[str] = (),
    page_size: int = PAGE,
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


def find_run(store: Store, run_id: str | None) -> "Run | None":
    """Return a run by its id, or None."""
    return existing(store.client.get_run, run_id) if run_id else None


def find_runs(store: Store, run_ids: Collection[str]) -> "dict[str, Run]":
    """Return runs by their ids, including deleted runs, hundreds per call; unknown ids are left out."""
    from mlflow.entities import ViewType

    runs, wanted = dict[str, "Run"](), sorted(set(run_ids))
    # In parts: a database limits the length of a statement.
    for start in range(0, len(wanted), _IDS):
        quoted = ", ".join(f"'{run_id}'" for run_id in wanted[start : start + _IDS])
        page = store.client.search_runs(
            [store.experiment_id], f"attributes.run_id IN ({quoted})", ViewType.ALL, PAGE
        )
        runs |= {run.info.run_id: run for run in page}
    for run_id in wanted:  # runs of another experiment, such as of a model registered by hand
        if run_id not in runs and (run := find_run(store, run_id)):
            runs[run_id] = run
    return runs
