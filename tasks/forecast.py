"""Step 8, forecast: the champions' forecasts from the newest candles."""

from schemas.handover import ForecastBatch
from schemas.scope import Scope
from tasks.forecasting.issue import issue_forecasts
from tasks.hub.tree import packaged_models
from tasks.running.step import step


@step("forecast")
def forecast(scope: Scope) -> ForecastBatch:
    """Issue the forecasts of every packaged champion in the scope."""
    return issue_forecasts(scope, packaged_models(scope.home, scope.market, scope.series))
