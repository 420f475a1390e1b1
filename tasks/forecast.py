"""Step 8, forecast: the champions' forecasts from the newest candles."""

from schemas.handover import ForecastBatch
from schemas.scope import Scope
from tasks.forecasting.issue import issue_forecasts
from tasks.running.step import step
from tasks.tracking.served import serving


@step("forecast")
def forecast(scope: Scope) -> ForecastBatch:
    """Issue the forecasts of every champion in the scope."""
    return issue_forecasts(scope, serving(scope.series))
