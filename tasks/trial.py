"""Step 11, trial: the challengers' scored shadow forecasts, as evidence on whether they beat the champions."""

from schemas.handover import Trials
from schemas.scope import Scope
from tasks.promotion.trial import update_trials
from tasks.running.step import step


@step("trial")
def trial(scope: Scope) -> Trials:
    """Add the challengers' scored shadow forecasts to the evidence; replace a timeframe's champions if it suffices."""
    return update_trials(scope)
