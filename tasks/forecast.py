"""Step 8, forecast: the forecasts of champions and challengers from the newest candles."""

from schemas.handover import ForecastBatch
from schemas.scope import Scope
from tasks.forecasting.fallback import issue_fallbacks
from tasks.forecasting.issue import issue_forecasts
from tasks.market.damage import record_damage
from tasks.promotion.trial import on_trial
from tasks.running.step import step
from tasks.tracking.served import serving


@step("forecast")
def forecast(scope: Scope, tail: bool = False, fallback: bool = False) -> ForecastBatch:
    """Issue the forecasts of every champion in the scope, and of the challengers beside them.

    Args:
        tail: also use the provisional candles.
        fallback: if a champion has drifted, its fallback forecasts as well.
    """
    found, challengers = serving(scope.series)
    beside = on_trial(scope.home, challengers)
    batch = issue_forecasts(scope, found, provisional=tail, challengers=beside)
    if fallback:
        stood_in, failures = issue_fallbacks(scope, found, provisional=tail)
        batch = batch.model_copy(
            update={"fallbacks": tuple(stood_in), "failures": (*batch.failures, *failures)}
        )
    for failure in batch.failures:
        if failure.code == "damaged" and failure.series:  # the champion's files, or its candles
            record_damage(scope.home, failure.series)
    return batch
