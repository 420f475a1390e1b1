"""Step 1, ingest: download every series of the scope to the market store, verified."""

from schemas.errors import BusyError
from schemas.handover import Failure, IngestResult
from schemas.scope import Scope
from tasks.market.ingest import ingest as bring_up_to_date
from tasks.market.report import FAILED_SERIES
from tasks.running.step import Retry, step


# If another process is writing, a run waits up to ten minutes: a scheduled run must not be skipped.
@step("ingest", retry=Retry(on=BusyError, times=40, wait_s=15))
def ingest(scope: Scope, tail: bool = False) -> IngestResult:
    """Update the store; `tail`: including the newest candles from the REST API.

    Raises:
        CpbError: as in `tasks.market.ingest.ingest`.
    """
    report = bring_up_to_date(scope, tail=tail)
    failed = [one for one in report.series if one.status == FAILED_SERIES]
    return IngestResult(
        series=tuple(one.series for one in report.series if one.status != FAILED_SERIES),
        failures=tuple(
            Failure(step="ingest", reason=one.reason, code="ingest", series=one.series) for one in failed
        ),
        requests=report.requests,
        seconds=report.seconds,
    )
