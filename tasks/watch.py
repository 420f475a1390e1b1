"""Step 10, watch: has a champion got worse than its test span promised, is its input unusual, is its data late?"""

from schemas.handover import Watching
from schemas.scope import Scope
from tasks.forecasting.check_drift import check_drift
from tasks.running.step import step
from tasks.tracking.served import serving


@step("watch")
def watch(scope: Scope, tail: bool = False) -> Watching:
    """Look at every champion of the scope after a scoring; `tail`: the newest candles may be provisional."""
    return check_drift(scope, serving(scope.series).champions, provisional=tail)
