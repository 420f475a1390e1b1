"""Step 8, forecast: the champions' forecasts from the newest candles."""

from schemas.handover import ForecastBatch
from schemas.scope import Scope
from tasks.forecasting.issue import issue_forecasts
from tasks.step import step
from tasks.tracking.registry import champions


@step("forecast")
def forecast(scope: Scope, tail: bool = False) -> ForecastBatch:
    """Issue the forecasts of every champion in the scope; `tail`: from the provisional candles on."""
    return issue_forecasts(scope, champions(scope.series), provisional=tail)
