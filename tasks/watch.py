"""Step 10, watch: whether champions perform worse than their test spans promised."""

from schemas.handover import Watching
from schemas.scope import Scope
from tasks.forecasting.drift import check_drift
from tasks.hub.tree import packaged_models
from tasks.running.step import step


@step("watch")
def watch(scope: Scope) -> Watching:
    """Check every champion of the scope after a scoring."""
    return check_drift(scope, packaged_models(scope.home, scope.market, scope.series))
