"""Step 11, trial: the challengers' shadow forecasts that have come true, as evidence against the champions."""

from schemas.handover import Trials
from schemas.scope import Scope
from tasks.promotion.trial import update_trials
from tasks.running.step import step


@step("trial")
def trial(scope: Scope) -> Trials:
    """Add the challengers' scored shadow forecasts to the evidence; switch a timeframe's champions where it is in."""
    return update_trials(scope)
