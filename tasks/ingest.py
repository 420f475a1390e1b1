"""Step 1, ingest: every series of the scope into the market store, verified."""

from typing import TYPE_CHECKING, Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from schemas.errors import BusyError
from schemas.scope import Scope
from tasks.market.ingest import ingest as ingest_series

if TYPE_CHECKING:
    from tasks.market.report import IngestReport


def _busy(_task: Any, _run: Any, state: Any) -> bool:
    """Whether to wait and try again: a scheduled run that meets another must not be lost. Nobody waits for less."""
    return isinstance(state.result(raise_on_failure=False), BusyError)


# No Prefect cache anywhere in this DAG: every step finds its own finished work on disk by digest, which
# also holds for runs without a server and after kill -9.
@task(
    name="ingest", cache_policy=NO_CACHE, persist_result=False,
    retries=40, retry_delay_seconds=15, retry_condition_fn=_busy,
)  # fmt: skip
def ingest(scope: Scope, tail: bool = False) -> "IngestReport":
    """Bring the store up to date and report per series; see `tasks.market.ingest.ingest`."""
    return ingest_series(scope, tail=tail)
