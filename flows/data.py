"""The first two steps, as training and backtest share them: candles, then features."""

from typing import TypeVar

from flows.runner import Runner
from flows.summary import Say, Summary
from schemas.handover import Failure, SeriesRecord
from schemas.run import ScopeSpec
from schemas.wording import count
from tasks.features import features
from tasks.ingest import ingest
from tasks.market.pairs import with_listed_pairs

S = TypeVar("S", bound=ScopeSpec)


def with_pairs(spec: S, say: Say) -> S:
    """Return a specification of the whole exchange with the pairs of its source's listing, and say which; others as
    they are.

    Raises:
        CpbError: the listing cannot be asked, or no pair is left.
    """
    found, sentence = with_listed_pairs(spec)
    if sentence:
        say(sentence)
    return found


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
