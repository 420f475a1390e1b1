"""Ingestion: list, plan, fetch concurrently, store series by series, find missing candles, report.

    state = update_store(IngestSpec(coins="BTC", timeframes="1h", source="FOLDER").scope)

Monthly files are fetched where published, daily files elsewhere, and no period twice.
"""

import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from cpbmodels.data.series import instant
from schemas.coins import coins_label, similar_coins
from schemas.errors import MINUTE, CpbError, MemberError, age
from schemas.identity import SeriesId
from schemas.scope import Scope
from tasks.market.client import CONNECTIONS, Limits
from tasks.market.file_plan import plan_files
from tasks.market.ingestion import FilePlan, Ingestion
from tasks.market.layout import (
    source_file,
    to_us,
)
from tasks.market.listing import Catalogue
from tasks.market.manifest import MANIFEST
from tasks.market.manifest_file import open_manifest
from tasks.market.repair import fill_holes
from tasks.market.rest import refresh_tail
from tasks.market.sources import open_source
from tasks.market.store_files import delete_drafts, writer_lock
from tasks.market.store_state import FAILED_SERIES, SeriesState, StoreState, series_state, still_sentence
from tasks.market.tables import TableSource, refuse_other_tables, remember
from tasks.market.writer import store_all
from tasks.running.parallel import thread_pool
from tasks.running.progress import report_progress
from tasks.storage.home_version import check_home, mark_home


def update_store(
    scope: Scope,
    *,
    tail: bool = False,
    limits: Limits | None = None,
) -> StoreState:
    """Update the store for a scope and return its contents and gaps.

    `tail` also fetches the newest closed candles from REST, stored separately as provisional.

    Raises:
        CpbError: the source cannot be reached, the store cannot be written, or another process is writing; offline, no
            candle of the scope is stored.
        UsageError: a table is not the source of its stored series (nothing was stored).
    """
    started = time.monotonic()
    report_progress("ingest", 0, 0, "files", "listing the available files")
    with ExitStack() as stack:
        stack.callback(report_progress, "ingest", 1, 1, "files")
        # before anything else: a home of a newer cpb must not be written
        check_home(scope.home)
        source = stack.enter_context(open_source(scope, limits))
        if not scope.offline:
            stack.enter_context(writer_lock(scope.root))
            mark_home(scope.home)
            # only behind the lock: the drafts of a writer at work would go
            delete_drafts(scope.root)
        manifest = stack.enter_context(open_manifest(scope.root, offline=scope.offline))
        threads = stack.enter_context(thread_pool(CONNECTIONS, "fetch"))
        # a pool of its own: listings wait for probes, and in one pool might wait for themselves
        probes = stack.enter_context(thread_pool(CONNECTIONS, "fetch"))
        ingestion = Ingestion(
            scope, source, Catalogue(source, probes), manifest, threads, to_us(datetime.now(UTC))
        )
        state = _as_stored(ingestion) if scope.offline else _bring_up_to_date(ingestion, tail=tail)
    state.requests, state.seconds = source.requests, round(time.monotonic() - started, 3)
    state.source, state.market = source.name, scope.market
    state.notes += dict.fromkeys(source.notes)
    return state


def _bring_up_to_date(ingestion: Ingestion, *, tail: bool) -> StoreState:
    if isinstance(ingestion.source, TableSource):
        refuse_other_tables(ingestion.source, ingestion.scope, ingestion.manifest)
        remember(ingestion.source, ingestion.home)
    plans = plan_files(ingestion, checks_stored=not tail)  # an hourly run must not read the whole store
    store_all(ingestion, ((plan.series, plan.fetch) for plan in plans))
    # after all files are stored: what is an outage shows only in the candles of all coins together
    fill_holes(ingestion)
    if tail:
        refresh_tail(ingestion)
    return _state(ingestion)


def _as_stored(ingestion: Ingestion) -> StoreState:
    """Describe what the manifest has of the scope; nothing is fetched.

    The first note is the age of the data.
    """
    scope = ingestion.scope
    for series in scope.series:
        files = [source_file(series, period) for period in sorted(ingestion.manifest.files(series))]
        ingestion.plans[series] = FilePlan(
            series, [f for f in files if f.bounds[1] > ingestion.start and f.bounds[0] < ingestion.end]
        )
    ends = [runs[-1][1] for series in ingestion.plans if (runs := ingestion.holdings(series).runs)]
    if not ends:
        fault = f" ({MANIFEST} is damaged: {ingestion.manifest.fault})" if ingestion.manifest.fault else ""
        raise CpbError(
            f"no candle of {coins_label(scope.symbols)} at {', '.join(scope.timeframes)} is stored in this time range "
            f"in {scope.root}{fault}; with a network `cpb ingest` stores some",
            code="not-stored",
            field="offline",
        )
    # the newest of all series: a coin that was delisted does not make the data old
    newest = max(ends)
    before = "before as_of" if scope.as_of else "ago"
    old = age((ingestion.end - newest) / 1e6)
    note = f"stored candles are used, the newest closed {instant(newest):{MINUTE}} UTC ({old} {before})"
    ingestion.notes.insert(0, note)
    return _state(ingestion)


def _state(ingestion: Ingestion) -> StoreState:
    series = _series_states(ingestion)
    warnings = [*ingestion.warnings, *filter(None, map(still_sentence, series))]
    return StoreState(series, notes=ingestion.notes, warnings=warnings)


def _series_states(ingestion: Ingestion) -> list[SeriesState]:
    """Describe every series; months found damaged are fetched by the next run, and described as missing.

    Offline, where nothing can be fetched, their series fail.
    """
    _, calendar = ingestion.calendars()
    states: list[SeriesState] = []
    waiting = list(ingestion.plans)
    while waiting:
        series = waiting[0]
        report_progress(
            "ingest", len(states), len(ingestion.plans), "series", f"looking for holes in {series}"
        )
        outages, reason = calendar[series.timeframe], _failure_reason(ingestion, series)
        try:
            states.append(series_state(ingestion.home, ingestion.holdings(series), outages, reason))
            waiting.pop(0)
        except MemberError as error:
            if error.code != "damaged":
                raise
            if ingestion.scope.offline:
                states.append(SeriesState(series, status=FAILED_SERIES, reason=str(error)))
                waiting.pop(0)
                continue
            # the series stays the first in line, and is described anew without the damaged month
            ingestion.manifest.forget(series, Path(error.field).stem, "found damaged while reading it")
            ingestion.notes.append(f"{error}")
    return states


def _failure_reason(ingestion: Ingestion, series: SeriesId) -> str:
    """Return why the source has no files of a series; empty if it has files."""
    plan = ingestion.plans[series]
    if plan.fault:
        return f"{ingestion.source.name} could not be queried: {plan.fault}"
    if plan.wanted:
        return ""
    if ingestion.scope.offline:
        return "no candle of it is stored in this time range, and offline no source is read"
    others = ingestion.catalogue.other_units(series)
    remedy = (
        f"{' and '.join(others)} is there: name that, as in coins {others[0]}"
        if others
        else f"check the name{similar_coins(series.symbol, ingestion.catalogue.listed(series.market))} and since"
    )
    return f"not listed at {ingestion.source.name} in this time range; {remedy}"
