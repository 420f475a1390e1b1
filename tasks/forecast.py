"""Step 8, forecast: the champions' forecasts from the newest candles."""

from schemas.handover import ForecastBatch
from schemas.scope import Scope
from tasks.forecasting.issue import issue_forecasts
from tasks.market.verify import record_damage
from tasks.step import step
from tasks.tracking.registry import champions


@step("forecast")
def forecast(scope: Scope, tail: bool = False) -> ForecastBatch:
    """Issue the forecasts of every champion in the scope; `tail`: from the provisional candles on."""
    batch = issue_forecasts(scope, champions(scope.series), provisional=tail)
    for failure in batch.failures:
        if failure.code == "damaged" and failure.series:  # the champion's files, or its candles
            record_damage(scope.home, failure.series)
    return batch
