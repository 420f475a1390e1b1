"""Step 9, score: compare stored forecasts whose target candle has closed with the realised closes."""

from schemas.handover import Score
from schemas.scope import Scope
from tasks.forecasting.record import score_due
from tasks.running.step import step


@step("score")
def score(scope: Scope) -> Score:
    """Score the due forecasts of the scope."""
    return score_due(scope.home, scope.series, scope.as_of)
