"""Step 8, forecast: the champions' forecasts from the newest candles."""

from schemas.handover import ForecastBatch
from schemas.scope import Scope
from tasks.forecasting.issue import issue_forecasts
from tasks.market.damage import record_damage
from tasks.running.step import step
from tasks.tracking.served import serving


@step("forecast")
def forecast(scope: Scope, tail: bool = False) -> ForecastBatch:
    """Issue the forecasts of every champion in the scope; `tail`: also use the provisional candles."""
    batch = issue_forecasts(scope, serving(scope.series), provisional=tail)
    for failure in batch.failures:
        if failure.code == "damaged" and failure.series:  # the champion's files, or its candles
            record_damage(scope.home, failure.series)
    return batch
