"""What the studies share: a mirror's candles in a folder of their own, the horizon, and what a model is to them."""

from collections.abc import Callable
from pathlib import Path

from cpbmodels.data.series import Series
from schemas.identity import SeriesId
from schemas.scope import Scope, ScopeSpec
from tasks.ingest import ingest
from tasks.judging.baselines import Rows
from tasks.judging.scores import Array

HORIZON = 10
Quantiles = Callable[[Series, Rows], Array]
"""A series and rows of origins [N] -> quantiles [N, HORIZON, 19] of the log-return of the close."""


def ingested(
    home: Path, source: str, coins: str, timeframe: str, since: str | None = None, as_of: str | None = None
) -> tuple[Scope, tuple[SeriesId, ...]]:
    """Fetch the spot candles of coins from a mirror into `home`; return the scope and the series that are there."""
    scope = ScopeSpec(coins=coins, timeframes=timeframe, source=source, since=since, as_of=as_of).scope
    scope = scope.model_copy(update={"home": home})
    return scope, ingest(scope).series
