"""Step 7, forecast: the champions' forecasts from the newest candles, and the scores of those come due."""

from functools import partial

from prefect import task
from prefect.cache_policies import NO_CACHE

from schemas.scope import Scope
from tasks.judging.issue import Issued, issue_forecasts
from tasks.judging.ledger import score_due
from tasks.market.store import read_klines
from tasks.tracking.registry import champions, of_source


@task(name="forecast", cache_policy=NO_CACHE, persist_result=False)
def forecast(scope: Scope, tail: bool = False) -> Issued:
    """Issue the forecasts of every champion in the scope; `tail`: from the provisional candles on."""
    found = of_source(champions(scope.symbols, scope.timeframes), scope.source)
    return issue_forecasts(scope, found, provisional=tail)


@task(name="score", cache_policy=NO_CACHE, persist_result=False)
def score(scope: Scope, tail: bool = False) -> int:
    """Score stored forecasts whose target candle has closed, provisional ones with `tail`; return how many rows."""
    read = partial(read_klines, scope.home, market=scope.market, provisional=tail)
    return score_due(scope.home, read, scope.as_of, list(scope.symbols), list(scope.timeframes))
