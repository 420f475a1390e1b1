"""Step 1, ingest: download every series of the scope to the market store, verified."""

import logging

from schemas.errors import BusyError, CpbError
from schemas.handover import Failure, IngestResult
from schemas.scope import Scope
from tasks.market.ingest import ingest as bring_up_to_date
from tasks.market.report import FAILED_SERIES, IngestReport, leap_sentence
from tasks.running.step import Retry, step

log = logging.getLogger("cpb")


# If another process is writing, a run waits up to ten minutes: a scheduled run must not be skipped.
@step("ingest", retry=Retry(on=BusyError, times=40, wait_s=15))
def ingest(scope: Scope, tail: bool = False) -> IngestResult:
    """Update the store; `tail`: including the newest candles from the REST API.

    Offline, and if the source cannot be reached, the stored candles are used, with a warning that states their age.

    Raises:
        CpbError: as in `tasks.market.ingest.ingest`.
    """
    try:
        report = bring_up_to_date(scope, tail=tail)
        if scope.offline:
            log.warning("offline: %s", report.notes[0])
    except CpbError as error:
        if error.code != "unreachable":
            raise
        report = _stored_instead(scope, error)
    failed = [one for one in report.series if one.status == FAILED_SERIES]
    return IngestResult(
        series=tuple(one.series for one in report.series if one.status != FAILED_SERIES),
        failures=tuple(
            Failure(step="ingest", reason=one.reason, code="ingest", series=one.series) for one in failed
        ),
        leaps=tuple(
            Failure(step="ingest", reason=leap_sentence(one.leaps), code="leap", series=one.series)
            for one in report.series
            if one.leaps
        ),
        requests=report.requests,
        seconds=report.seconds,
    )


def _stored_instead(scope: Scope, unreachable: CpbError) -> IngestReport:
    """Return the stored candles of a scope whose source cannot be reached; raises its error if there are none."""
    try:
        report = bring_up_to_date(scope.model_copy(update={"offline": True}))
    except CpbError as error:
        if error.code != "not-stored":
            raise
        raise CpbError(
            f"{unreachable}; {error}", code=unreachable.code, field=unreachable.field
        ) from unreachable
    log.warning("%s; %s", str(unreachable).partition(";")[0], report.notes[0])
    return report
