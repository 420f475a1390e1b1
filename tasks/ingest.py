"""Step 1, ingest: every series of the scope into the market store, verified."""

from typing import TYPE_CHECKING

from prefect import task
from prefect.cache_policies import NO_CACHE

from schemas.scope import Scope
from tasks.market.ingest import ingest as ingest_series

if TYPE_CHECKING:
    from tasks.market.report import IngestReport


# No Prefect cache anywhere in this DAG: every step finds its own finished work on disk by digest, which
# also holds for runs without a server and after kill -9.
@task(name="ingest", cache_policy=NO_CACHE, persist_result=False)
def ingest(scope: Scope, tail: bool = False) -> "IngestReport":
    """Bring the store up to date and report per series; see `tasks.market.ingest.ingest`."""
    return ingest_series(scope, tail=tail)
