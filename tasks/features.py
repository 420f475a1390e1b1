"""Step 2, features: causal columns of one series, checked and stored."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from schemas.records import SeriesRecord
from schemas.scope import Scope
from tasks.signals.store import write_features


@task(name="features", cache_policy=NO_CACHE, persist_result=False)
def features(scope: Scope, symbol: str, timeframe: str) -> SeriesRecord:
    """Write the features of one series; see `tasks.signals.store.write_features`."""
    return write_features(
        scope.home, symbol, timeframe, since=scope.since, as_of=scope.as_of, market=scope.market
    )
