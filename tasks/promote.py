"""Step 6, promote: the gate decides who serves each coin x timeframe, and keeps a record of why."""

from collections.abc import Sequence

from schemas.handover import Decision, FleetJudgement, SeriesRecord, Trials
from schemas.run import RunSpec
from schemas.scope import Scope
from tasks.promotion.night import decide_night
from tasks.promotion.trial import update_trials
from tasks.step import step


@step("promote")
def promote(
    spec: RunSpec, fleets: Sequence[FleetJudgement], stopped: Sequence[SeriesRecord] = ()
) -> tuple[Decision, ...]:
    """Return a decision on every series that was judged, or has stopped trading, with the aliases moved accordingly.

    Args:
        stopped: series that are not traded any more.
    """
    return decide_night(spec, fleets, stopped)


@step("trial")
def trial(scope: Scope) -> Trials:
    """Add the challengers' scored shadow forecasts to the evidence; switch a timeframe's champions where it is in."""
    return update_trials(scope)
