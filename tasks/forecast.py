"""Step 8, forecast: the forecasts of champions and challengers from the newest candles."""

from schemas.handover import ForecastBatch
from schemas.scope import Scope
from tasks.forecasting.issue import issue_forecasts
from tasks.market.verify import record_damage
from tasks.step import step
from tasks.tracking.registry import challengers, champions


@step("forecast")
def forecast(scope: Scope, tail: bool = False) -> ForecastBatch:
    """Issue the forecasts of every champion in the scope, and of the challengers beside them.

    Args:
        tail: from the provisional candles on.
    """
    beside = challengers(scope.series)
    batch = issue_forecasts(scope, champions(scope.series), provisional=tail, challengers=beside)
    for failure in batch.failures:
        if failure.code == "damaged" and failure.series:  # the champion's files, or its candles
            record_damage(scope.home, failure.series)
    return batch
