"""Step 10, watch: check champions for performance below their test span's promise, unusual input and late data."""

from schemas.handover import Watching
from schemas.scope import Scope
from tasks.forecasting.check_drift import check_drift
from tasks.running.step import step
from tasks.tracking.served import serving


@step("watch")
def watch(scope: Scope, tail: bool = False) -> Watching:
    """Check every champion of the scope after a scoring; `tail`: the newest candles may be provisional."""
    return check_drift(scope, serving(scope.series).champions, provisional=tail)
