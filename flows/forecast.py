"""`forecast`: refresh the candles, forecast with the champions, score older forecasts that have come due."""

from typing import Any

from prefect import flow
from prefect.states import Completed, State

from flows.console import say as say_to_people
from flows.deploy.liveness import claim_run
from flows.runner import Runner, ThroughPrefect, plain_failures
from flows.train_all import Say
from schemas.errors import COMPLETE, PARTIAL, CpbError
from schemas.scope import Scope
from tasks.forecast import forecast, score
from tasks.ingest import ingest
from tasks.tracking.registry import champions

_NONE = "there is no champion for them yet"


def run_forecast(scope: Scope, steps: Runner, say: Say = say_to_people, tail: bool = False) -> dict[str, Any]:
    """Return what was forecast and scored; exit 3 where a series could not be refreshed or forecast."""
    if not champions(scope.symbols, scope.timeframes):  # before anything is fetched for nothing
        raise CpbError(f"no forecast could be made: {_NONE}; train first, as in `cpb train-all`")
    report = steps.one(ingest, scope, tail)
    stale = [f"{s.symbol} {s.timeframe}: {s.reason}" for s in report.series if s.status == "failed"]
    issued = steps.one(forecast, scope, tail)
    scored = steps.one(score, scope, tail)
    if not issued.series:
        why = "; ".join((stale or [f.reason for f in issued.failures])[:2]) or _NONE
        raise CpbError(
            f"no forecast could be made: {why}; train first, as in `cpb train-all`, or check --as-of"
        )
    problems = stale + [f"{f.symbol} {f.timeframe}: {f.reason}" for f in issued.failures]
    for text in problems:
        say(f"FAILED {text}")
    say(f"{issued.rows} new forecast rows for {issued.series} series; {scored} older rows scored")
    code = PARTIAL if problems else COMPLETE
    return {"rows": issued.rows, "series": issued.series, "scored": scored, "failed": problems, "exit": code}


@flow(name="forecast", on_running=[claim_run])
@plain_failures
def forecast_flow(
    coins: str = "all",
    timeframes: str = "15m,1h",
    source: str | None = None,
    as_of: str | None = None,
    market: str = "spot",
    tail: bool = True,
) -> State:
    """Forecast every champion of the scope from the newest candles."""
    result = run_forecast(
        Scope.of(coins, timeframes, source, market, None, as_of), ThroughPrefect(), tail=tail
    )
    return Completed(name="Partial" if result["exit"] else "Completed", data=result)
