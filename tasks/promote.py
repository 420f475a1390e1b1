"""Step 6, promote: the gate chooses the champion of each coin x timeframe, and records the reason."""

from collections.abc import Sequence

from schemas.handover import Decision, Failure, FleetJudgement, SeriesRecord
from schemas.run import RunSpec
from tasks.promotion.night import decide_night
from tasks.running.step import step


@step("promote")
def promote(
    spec: RunSpec,
    fleets: Sequence[FleetJudgement],
    stopped: Sequence[SeriesRecord] = (),
    failures: Sequence[Failure] = (),
) -> tuple[Decision, ...]:
    """Decide on every series that was judged or has stopped trading, move the aliases, and return the decisions.

    Args:
        stopped: series that are no longer traded.
        failures: of the run so far; the decisions name the models that failed.
    """
    return decide_night(spec.scope.home, fleets, stopped, failures, spec.force or "")
