"""Step 2, features: causal columns of one series, checked and stored."""

from schemas.errors import MemberError
from schemas.handover import Failure, SeriesRecord
from schemas.identity import SeriesId
from schemas.scope import Scope
from tasks.running.step import step
from tasks.signals.feature_files import write_features


# Two at a time: polars uses all cores for each, and a series of 15m candles takes 200 MB during computation.
@step("features", run_name="features {series.name}", workers=2)
def features(scope: Scope, series: SeriesId) -> SeriesRecord | Failure:
    """Write the features of one series below `HOME/features`, or return the failure."""
    try:
        return write_features(scope.home, series, since=scope.since, as_of=scope.as_of)
    except MemberError as error:
        return Failure.of(series, "features", error)
