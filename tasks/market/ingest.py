"""Ingestion: list, plan, fetch many at once, store series by series, look for what is missing, report.

report = ingest(Scope.of(coins="BTC", timeframes="1h", source="../shared/market"))
"""

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime

from schemas.errors import CpbError
from schemas.scope import SIMULATED, Scope
from tasks.market.client import Limits, Source
from tasks.market.faults import SourceFault, Unreachable
from tasks.market.layout import SeriesKey, to_us
from tasks.market.listing import Catalogue
from tasks.market.origin import settle
from tasks.market.plan import Plan, to_fetch, wanted_files
from tasks.market.repair import repair
from tasks.market.report import PLANNED_SERIES, IngestReport, SeriesReport, describe
from tasks.market.rest import refresh_tail
from tasks.market.run import AGAIN, CONNECTIONS, Progress, Run, calendars, open_manifest, open_source, pool
from tasks.market.store import sweep, writer_lock
from tasks.market.transfer import batches, store_all

_LISTINGS_AHEAD = 24


def ingest(
    scope: Scope,
    *,
    tail: bool = False,
    plan: bool = False,
    connections: int = CONNECTIONS,
    progress: Progress | None = None,
    limits: Limits | None = None,
) -> IngestReport:
    """Bring the store up to date for a scope and return what it now holds, and what it lacks.

    `plan` only asks the source what it has: nothing is fetched or written, the report's notes name the files.
    `tail` also fetches the newest closed candles from REST, kept apart as provisional.

    Raises:
        CpbError: the source cannot be reached, the store cannot be written, or another writer is at work.
    """
    started = time.monotonic()
    with ExitStack() as stack:
        source = stack.enter_context(open_source(scope, connections, limits))
        if not plan:
            stack.enter_context(writer_lock(scope.home))
            if (scope.home / SIMULATED).exists() and scope.source != "sim":
                _reach(source, scope)
            settle(scope.home, scope.source == "sim")
            sweep(scope.home)
        manifest = stack.enter_context(open_manifest(scope.home, plan))
        threads = stack.enter_context(pool(connections))
        probes = stack.enter_context(pool(connections))
        run = Run(
            scope, source, Catalogue(source, probes), manifest, threads, to_us(datetime.now(UTC)), progress
        )
        report = _plan_only(run) if plan else _bring_up_to_date(run, tail)
    report.requests, report.seconds = source.requests, round(time.monotonic() - started, 3)
    report.source, report.market = source.name, scope.market
    report.notes += source.waits
    return report


def listed_symbols(scope: Scope, quote: str = "USDT") -> list[str]:
    """Return every symbol that the scope's source lists in its market against a quote currency."""
    with open_source(scope) as source:
        try:
            found = [s for s in Catalogue(source).symbols(scope.market) if s.endswith(quote)]
        except SourceFault as fault:
            raise CpbError(f"{source.name} could not be asked for its pairs: {fault}") from fault
    if not found:
        raise CpbError(
            f"{source.name} lists no {quote} pair in market {scope.market}; name them with --coins"
        )
    return found


def _reach(source: Source, scope: Scope) -> None:
    """Ask for one series before simulated candles make room: a source out of reach must cost nothing."""
    series = SeriesKey(scope.market, scope.symbols[0], scope.timeframes[0])
    last = to_us(scope.as_of or datetime.now(UTC))
    try:
        wanted_files(Catalogue(source), series, to_us(scope.since) if scope.since else 0, last)
    except Unreachable as fault:
        raise _out_of_reach(source, fault) from fault
    except SourceFault:
        return  # it answers, if with a refusal: the run itself says what is wrong with a series


def _out_of_reach(source: Source, fault: SourceFault) -> CpbError:
    return CpbError(
        f"{source.name} cannot be reached ({fault}); check the network, or use a mirror with "
        "`--source FOLDER|URL`, or the built-in market simulator with `--source sim`"
    )


def _plan_only(run: Run) -> IngestReport:
    for plan in _plans_ahead(run):
        size = sum(max(0, f.size) for f in plan.fetch)
        run.notes.append(
            f"{plan.series}: {len(plan.fetch)} of {len(plan.wanted)} files to fetch, {size / 1e6:.1f} MB"
        )
        run.notes += [f"  {f.key}" for f in plan.fetch]
    held = zip(run.plans, _describe_all(run), strict=True)
    planned = [replace(s, status=PLANNED_SERIES, reason=_why_nothing(run, series)) for series, s in held]
    return IngestReport(planned, notes=run.notes)


def _bring_up_to_date(run: Run, tail: bool) -> IngestReport:
    store_all(run, (batches(plan.series, plan.fetch) for plan in _plans_ahead(run)))
    run.manifest.save_barren(run.catalogue.learned, run.now)
    total, due = (sum(len(getattr(p, kind)) for p in run.plans.values()) for kind in ("wanted", "fetch"))
    if 0 < due < total:
        run.notes.append(f"{total - due} of {total} files were here already")
    repair(run)
    if tail:
        refresh_tail(run)
    return IngestReport(_describe_all(run), notes=run.notes)


def _plans_ahead(run: Run) -> Iterator[Plan]:
    """Yield plans in order; listings are asked for some series ahead."""
    waiting: deque[Future[Plan]] = deque()
    keys = iter([SeriesKey(run.scope.market, s, t) for s in run.scope.symbols for t in run.scope.timeframes])
    while True:
        while len(waiting) < _LISTINGS_AHEAD and (series := next(keys, None)):
            known = run.manifest.barren(series, run.start).items()
            run.catalogue.barren |= {(series, run.start, t) for t, asked in known if run.now - asked < AGAIN}
            waiting.append(run.pool.submit(_ask, run, series))
        if not waiting:
            return
        yield _compare(run, waiting.popleft().result())


def _ask(run: Run, series: SeriesKey) -> Plan:
    try:
        return Plan(series, wanted_files(run.catalogue, series, run.start, run.end))
    except SourceFault as fault:
        return Plan(series, fault=fault)


def _compare(run: Run, plan: Plan) -> Plan:
    """Compare what the source has with the manifest (in the thread that owns the manifest)."""
    if isinstance(plan.fault, Unreachable) and not any(p.wanted for p in run.plans.values()):
        raise _out_of_reach(run.source, plan.fault)
    known, parts = run.manifest.files(plan.series), run.manifest.parts(plan.series)
    plan.fetch = to_fetch(run.home, plan.wanted, known, parts)
    run.plans[plan.series] = plan
    return plan


def _describe_all(run: Run) -> list[SeriesReport]:
    mine, calendar = calendars(run)
    return [describe(run.home, h, calendar[s.interval], _why_nothing(run, s)) for s, h in mine.items()]


def _why_nothing(run: Run, series: SeriesKey) -> str:
    plan = run.plans[series]
    if plan.fault:
        return f"{run.source.name} could not be asked: {plan.fault}"
    if not plan.wanted:
        return f"not listed at {run.source.name} in this time range; check the name and --since"
    return ""
