"""Step 9, score: stored forecasts whose target candle has closed are compared with what came true."""

from schemas.handover import Score
from schemas.scope import Scope
from tasks.forecasting.ledger import score_due
from tasks.running.step import step


@step("score")
def score(scope: Scope, tail: bool = False) -> Score:
    """Score the forecasts of the scope that have come due; `tail`: also by provisional candles."""
    return score_due(scope.home, scope.series, scope.as_of, provisional=tail)
