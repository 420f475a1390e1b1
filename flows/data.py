"""The first two steps, as training and backtest share them: candles, then features."""

from flows.runner import Runner
from flows.summary import Say, Summary
from schemas.handover import Failure, SeriesRecord
from schemas.run import ScopeSpec
from schemas.wording import count
from tasks.features import features
from tasks.ingest import ingest


def series_records(spec: ScopeSpec, steps: Runner, say: Say, summary: Summary) -> list[SeriesRecord]:
    """Ingest the scope and compute its features; what fails is added to the summary."""
    found = steps.one(ingest, spec.scope, spec.tail)
    summary.add(found.failures, say)
    say(
        f"ingested {count(len(found.series), 'series')} ({count(found.requests, 'request')}, {found.seconds:.1f} s)"
    )
    outcomes = steps.each(features, [(spec.scope, series) for series in found.series], "series")
    records = [one for one in outcomes if isinstance(one, SeriesRecord)]
    for series, one in zip(found.series, outcomes, strict=True):
        if not isinstance(one, SeriesRecord):
            summary.add([one if isinstance(one, Failure) else Failure.of(series, "features", one)], say)
    return records
