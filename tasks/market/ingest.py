"""Ingestion: list, plan, fetch concurrently, store series by series, find missing candles, report.

report = ingest(IngestSpec(coins="BTC", timeframes="1h", source="FOLDER").scope)
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

from schemas.errors import CpbError, MemberError, UsageError, age, count
from schemas.identity import EXCHANGE, SeriesId, check_known, coins_label, is_coin_pair
from schemas.scope import Scope, ScopeSpec
from tasks.market.client import CONNECTIONS, Limits, SourceFault, Unreachable
from tasks.market.klines import sweep, writer_lock
from tasks.market.layout import source_file, text, to_us
from tasks.market.repair import refresh_tail, repair
from tasks.market.report import PLANNED_SERIES, IngestReport, SeriesReport, describe
from tasks.market.run import (
    Plan,
    Run,
    batches,
    calendars,
    check_stored,
    holdings_of,
    open_manifest,
    store_all,
    to_fetch,
    wanted_files,
)
from tasks.market.sources import Catalogue, open_source
from tasks.market.tables import TableSource, refuse_other_tables
from tasks.running.parallel import tell, thread_pool
from tasks.storage.files import check_home, mark_home

S = TypeVar("S", bound=ScopeSpec)


def ingest(
    scope: Scope,
    *,
    tail: bool = False,
    plan: bool = False,
    limits: Limits | None = None,
) -> IngestReport:
    """Update the store for a scope and return its contents and gaps.

    `plan` only queries the source's listing: nothing is fetched or written, the report's notes list the files.
    `tail` also fetches the newest closed candles from REST, stored separately as provisional.

    Raises:
        CpbError: the source cannot be reached, the store cannot be written, or another process is writing; offline, no
            candle of the scope is stored.
        UsageError: a table is not the source of its stored series (nothing was stored), or a plan names a coin that is
            not listed.
    """
    started = time.monotonic()
    tell("ingest", 0, 0, "files", "listing the available files")
    with ExitStack() as stack:
        stack.callback(tell, "ingest", 1, 1, "files")
        check_home(scope.home)
        source = stack.enter_context(open_source(scope, limits))
        if not plan:
            stack.enter_context(writer_lock(scope.root))
            mark_home(scope.home)
            sweep(scope.root)
        manifest = stack.enter_context(open_manifest(scope.root, plan))
        threads = stack.enter_context(thread_pool(CONNECTIONS, "fetch"))
        probes = stack.enter_context(thread_pool(CONNECTIONS, "fetch"))
        run = Run(scope, source, Catalogue(source, probes), manifest, threads, to_us(datetime.now(UTC)))
        run.checks_stored = not tail and not plan  # an hourly run must not read the whole store
        if isinstance(source, TableSource):
            refuse_other_tables(source, scope, manifest)
        steps = _as_stored if scope.offline else _plan_only if plan else partial(_bring_up_to_date, tail=tail)
        report = steps(run)
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
            raise CpbError(f"{source.name} could not list its pairs: {fault}", code="source") from fault
    if not found:
        raise CpbError(
            f"{source.name} lists no {quote} pair in market {scope.market}; name them with --coins",
            code="source",
        )
    return found


def with_listed_pairs(spec: S) -> tuple[S, str]:
    """Return a specification of the whole exchange with its source's listed pairs against USDT, and a sentence on them.

    Leveraged tokens, stablecoins and currencies are left out.

    Raises:
        CpbError: the source has no listing, cannot be reached, or no pair is left.
        UsageError: the run is offline.
    """
    if spec.offline:
        raise UsageError(
            f"offline: coins {EXCHANGE} reads the source's listing; name the coins, or leave offline out",
            code="offline", field="offline",
        )  # fmt: skip
    listed = listed_symbols(spec.scope)
    coins = [symbol for symbol in listed if is_coin_pair(symbol)]
    if not coins:
        raise CpbError("coins exchange: the source lists leveraged tokens and stablecoins only; name the coins",
                       code="source", field="coins")  # fmt: skip
    others = len(listed) - len(coins)
    said = f"exchange: {count(len(coins), 'pair')} ({others:,} leveraged or stable left out)"
    return spec.with_pairs(coins), said


def _plan_only(run: Run) -> IngestReport:
    for plan in _plans(run):
        size = sum(max(0, f.size) for f in plan.fetch)
        run.notes.append(
            f"{plan.series}: {len(plan.fetch):,} of {count(len(plan.wanted), 'file')} to fetch, {size / 1e6:.1f} MB"
        )
        run.notes += [f"  {f.key}" for f in plan.fetch]
    listed = {series.symbol for series, plan in run.plans.items() if plan.wanted or plan.fault}
    check_known(run.scope.symbols, listed, f"{run.source.name} in this time range")
    mine, calendar = calendars(run)
    held = {s: describe(run.home, h, calendar[s.timeframe]) for s, h in mine.items()}
    planned = [replace(r, status=PLANNED_SERIES, reason=_failure_reason(run, s)) for s, r in held.items()]
    return IngestReport(planned, notes=run.notes)


def _bring_up_to_date(run: Run, tail: bool) -> IngestReport:
    store_all(run, (batches(plan.series, plan.fetch) for plan in _plans(run)))
    total, due = (sum(len(getattr(p, kind)) for p in run.plans.values()) for kind in ("wanted", "fetch"))
    if 0 < due < total:
        run.notes.append(f"{total - due:,} of {count(total, 'file')} were already stored")
    repair(run)
    if tail:
        refresh_tail(run)
    return IngestReport(_describe_all(run), notes=run.notes)


def _as_stored(run: Run) -> IngestReport:
    """Describe what the manifest has of the scope; nothing is fetched.

    The first note is the age of the data.
    """
    for series in run.scope.series:
        files = [source_file(series, period) for period in sorted(run.manifest.files(series))]
        run.plans[series] = Plan(
            series, [f for f in files if f.bounds[1] > run.start and f.bounds[0] < run.end]
        )
    report = IngestReport(_describe_all(run))
    ends = [
        parts[-1].runs[-1][1]
        for s in run.plans
        if (parts := [p for p in run.manifest.parts(s).values() if p.runs])
    ]
    if not any(one.rows for one in report.series):
        held = [s for s in run.manifest.series() if s.market == run.scope.market]
        stored = (
            f"{coins_label(s.symbol for s in held)} at {', '.join(dict.fromkeys(s.timeframe for s in held))}"
        )
        raise CpbError(
            f"no candle of {coins_label(run.scope.symbols)} at {', '.join(run.scope.timeframes)} is stored in this "
            f"time range; {run.root} holds {stored if held else 'no candles'}; with a network `cpb ingest` stores some",
            code="not-stored", field="offline",
        )  # fmt: skip
    newest = min(max(ends), run.end)
    before = "before as_of" if run.scope.as_of else "ago"
    old = age((run.end - newest) / 1e6)
    run.notes.append(f"stored candles are used, the newest closed {text(newest)} ({old} {before})")
    report.notes = run.notes
    return report


def _plans(run: Run) -> Iterator[Plan]:
    """Yield plans in order; listings are requested ahead."""
    stored = [set(run.manifest.files(series)) for series in run.scope.series]

    def list_files(series: SeriesId, known: set[str]) -> Plan:
        try:
            return Plan(series, wanted_files(run.catalogue, series, run.start, run.end, known))
        except SourceFault as fault:
            return Plan(series, fault=fault)

    for plan in run.pool.map(list_files, run.scope.series, stored):
        if isinstance(plan.fault, Unreachable) and not any(p.wanted for p in run.plans.values()):
            raise CpbError(
                f"{run.source.name} cannot be reached ({plan.fault}); check the network, or use a mirror with "
                "`--source FOLDER|URL`, or the built-in market simulator with `--source sim`",
                code="unreachable", field="source",
            )  # fmt: skip
        if run.checks_stored:
            check_stored(run, plan.series)
        plan.fetch = to_fetch(run, plan.series, plan.wanted)
        run.plans[plan.series] = plan
        yield plan


def _describe_all(run: Run) -> list[SeriesReport]:
    """Describe every series; months found damaged are fetched by the next run, and described as missing."""
    _, calendar = calendars(run)
    reports: list[SeriesReport] = []
    waiting = list(run.plans)
    while waiting:
        series = waiting[0]
        tell("ingest", len(reports), len(run.plans), "series", f"looking for holes in {series}")
        outages, reason = calendar[series.timeframe], _failure_reason(run, series)
        try:
            reports.append(describe(run.home, holdings_of(run, series), outages, reason))
            waiting.pop(0)
        except MemberError as error:
            if error.code != "damaged":
                raise
            run.manifest.forget(series, Path(error.field).stem, "found damaged while reading it")
            run.notes.append(f"{error}")
    return reports


def _failure_reason(run: Run, series: SeriesId) -> str:
    """Return why the source has no files of a series; empty if it has files."""
    plan = run.plans[series]
    if plan.fault:
        return f"{run.source.name} could not be queried: {plan.fault}"
    if plan.wanted:
        return ""
    if run.scope.offline:
        return "no candle of it is stored in this time range, and offline no source is read"
    return f"not listed at {run.source.name} in this time range; check the name and --since"
