"""Step 6, promote: the gate decides who serves each coin x timeframe, and keeps a record of why."""

from collections.abc import Sequence

from schemas.handover import Decision, FleetJudgement, SeriesRecord
from schemas.run import RunSpec
from tasks.promotion.night import decide_night
from tasks.running.step import step


@step("promote")
def promote(
    spec: RunSpec, fleets: Sequence[FleetJudgement], stopped: Sequence[SeriesRecord] = ()
) -> tuple[Decision, ...]:
    """Return a decision on every series that was judged, or has stopped trading, with the aliases moved accordingly.

    Args:
        stopped: series that are not traded any more.
    """
    return decide_night(spec, fleets, stopped)
