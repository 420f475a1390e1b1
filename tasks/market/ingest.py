"""Ingestion: list, plan, fetch concurrently, store series by series, find missing candles, report.

    report = update_store(IngestSpec(coins="BTC", timeframes="1h", source="FOLDER").scope)

Monthly files are fetched where published, daily files elsewhere, and no period twice.
"""

import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import numpy as np

from schemas.coins import EXCHANGE, coins_label, is_coin_pair
from schemas.errors import CpbError, MemberError, UsageError, age, counted
from schemas.identity import SeriesId
from schemas.scope import Scope, ScopeSpec
from tasks.market import repair
from tasks.market.client import CONNECTIONS, Limits, SourceFault, Unreachable
from tasks.market.klines import damage_of, part_path
from tasks.market.layout import (
    DAY,
    SourceFile,
    grid_of,
    month_of,
    months,
    period_bounds,
    source_file,
    to_us,
    utc_text,
    whole_candles,
)
from tasks.market.manifest import MANIFEST, FileRecord, Manifest, Part, open_manifest, sweep, writer_lock
from tasks.market.report import (
    FAILED_SERIES,
    LACKING,
    OUTAGE,
    Holdings,
    IngestReport,
    OutageCalendar,
    SeriesReport,
    describe,
    find_holes,
    still_sentence,
)
from tasks.market.sources import Catalogue, Source, open_source
from tasks.market.tables import TableSource, refuse_other_tables, remember
from tasks.market.writer import forget_damaged, store_all
from tasks.running.parallel import thread_pool
from tasks.running.progress import report_progress
from tasks.storage.home_version import check_home, mark_home

S = TypeVar("S", bound=ScopeSpec)

_SEARCH_AGAIN = 7 * DAY  # missing candles are searched again after a week: files are published late
_RETRY_QUARANTINED = 7 * 86_400  # seconds
_DAILY_ONLY = {"1s"}  # if daily files are published: a month of 1s candles is 350 MB of text

WRONG_DAYS = ("2020-12-21", "2021-09-29")
"""The monthly 15m and 1h files are wrong on these days; daily files and REST agree (binance-public-data#475)."""


@dataclass
class FilePlan:
    """The files of one series that a run needs (`wanted`) and the files still to fetch (`fetch`)."""

    series: SeriesId
    wanted: list[SourceFile] = field(default_factory=list)
    fetch: list[SourceFile] = field(default_factory=list)
    fault: SourceFault | None = None


@dataclass
class Run:
    """A running ingestion: source, target and findings."""

    scope: Scope
    source: Source
    catalogue: Catalogue
    manifest: Manifest
    pool: ThreadPoolExecutor
    now: int
    plans: dict[SeriesId, FilePlan] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    fetched_files: int = 0
    rest_off: str = ""  # why REST is disabled for the rest of this run

    def __post_init__(self) -> None:
        self.home, as_of, since = self.scope.home, self.scope.as_of, self.scope.since
        self.start = to_us(since) if since else 0  # the first requested open time
        self.end = min(self.now, to_us(as_of)) if as_of else self.now  # the latest allowed end of a candle

    def holdings(self, series: SeriesId) -> Holdings:
        """Return the manifest's records of a series, cut to the scope's time range.

        The files of a stored series outside this run are the recorded files.
        """
        grid, files = grid_of(series.timeframe), self.manifest.files(series)
        parts = list(self.manifest.parts(series).values())
        opened = next((a for part in parts for a, _ in part.runs), grid.phase)
        first, last = whole_candles(grid, self.start, self.end, opened)
        if series in self.plans:
            planned = {file.period: file for file in self.plans[series].wanted}
            stand_ins = [
                file
                for period, record in files.items()
                if record.status == "repaired" and period not in planned
                if (file := source_file(series, period)).bounds[1] > self.start and file.bounds[0] < last
            ]
            wanted = [*planned.values(), *stand_ins]
        else:
            wanted = [source_file(series, period) for period in files]
        wanted.sort(key=lambda file: file.bounds)
        anomalies, searched = self.manifest.anomalies(series), self.manifest.searched(series)
        return Holdings(series, wanted, files, parts, anomalies, searched, first, last)

    def calendars(self) -> tuple[dict[SeriesId, Holdings], dict[str, OutageCalendar]]:
        """Return the holdings of the run and an outage calendar per interval, from every series of the store."""
        mine = {series: self.holdings(series) for series in self.plans}
        stored = [s for s in self.manifest.series() if s.market == self.scope.market and s not in mine]
        witnesses = {
            series: self.holdings(series) for series in stored if series.timeframe in self.scope.timeframes
        }
        return mine, {
            interval: OutageCalendar([h for s, h in (mine | witnesses).items() if s.timeframe == interval])
            for interval in self.scope.timeframes
        }


def update_store(
    scope: Scope,
    *,
    tail: bool = False,
    limits: Limits | None = None,
) -> IngestReport:
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
        check_home(scope.home)
        source = stack.enter_context(open_source(scope, limits))
        if not scope.offline:
            stack.enter_context(writer_lock(scope.root))
            mark_home(scope.home)
            sweep(scope.root)
        manifest = stack.enter_context(open_manifest(scope.root, offline=scope.offline))
        threads = stack.enter_context(thread_pool(CONNECTIONS, "fetch"))
        probes = stack.enter_context(thread_pool(CONNECTIONS, "fetch"))
        run = Run(scope, source, Catalogue(source, probes), manifest, threads, to_us(datetime.now(UTC)))
        report = _as_stored(run) if scope.offline else _bring_up_to_date(run, tail=tail)
    report.requests, report.seconds = source.requests, round(time.monotonic() - started, 3)
    report.source, report.market = source.name, scope.market
    report.notes += dict.fromkeys(source.notes)
    return report


def with_listed_pairs(spec: S, report: Callable[[str], None]) -> S:
    """Return a specification of the whole exchange with its source's pairs against USDT, and report their number.

    Leveraged tokens, stablecoins and currencies are left out. Other specifications are returned unchanged.

    Raises:
        CpbError: the source has no listing, cannot be reached, or no pair is left.
        UsageError: the run is offline.
    """
    if not spec.whole_exchange:
        return spec
    if spec.offline:
        raise UsageError(
            f"offline: coins {EXCHANGE} reads the source's listing; name the coins, or leave offline out",
            code="offline",
        )
    with open_source(spec.scope) as source:
        try:
            listed = [symbol for symbol in Catalogue(source).symbols(spec.market) if symbol.endswith("USDT")]
        except SourceFault as fault:
            raise CpbError(f"{source.name} could not list its pairs: {fault}", code="source") from fault
    coins = [symbol for symbol in listed if is_coin_pair(symbol)]
    if not coins:
        raise CpbError(
            f"coins {EXCHANGE}: {source.name} lists no pair of a coin against USDT; name the coins",
            code="source",
            field="coins",
        )
    report(
        f"exchange: {counted(len(coins), 'pair')} ({len(listed) - len(coins):,} leveraged or stable left out)"
    )
    return type(spec)(**spec.model_dump() | {"coins": ",".join(coins)})


def _bring_up_to_date(run: Run, *, tail: bool) -> IngestReport:
    if isinstance(run.source, TableSource):
        refuse_other_tables(run.source, run.scope, run.manifest)
        remember(run.source, run.home)
    plans = _plans(run, checks_stored=not tail)  # an hourly run must not read the whole store
    store_all(run, ((plan.series, plan.fetch) for plan in plans))
    holdings, calendar = run.calendars()
    for series in (series for series, plan in run.plans.items() if not plan.fault):
        outages = calendar[series.timeframe]
        recent = [(a, b) for a, b, when in run.manifest.searched(series) if run.now - when < _SEARCH_AGAIN]
        holes = [  # an outage that no second symbol confirms is searched, too
            hole
            for hole in find_holes(holdings[series], outages)
            if (
                hole.cause in LACKING
                or (hole.cause == OUTAGE and outages.silent(np.array([hole.start]))[0] == 1)
            )
            and not any(a <= hole.start and hole.end <= b for a, b in recent)
        ]
        wrong: set[str] = set()
        if series.market == "spot" and series.timeframe in ("15m", "1h"):
            fetched = {file.period for file in run.plans[series].fetch}
            wrong = {day for day in WRONG_DAYS if day[:7] in fetched}
        if holes or wrong:
            repair.fill(run, series, outages, holes, wrong)
    if tail:
        repair.refresh_tail(run)
    return _report(run)


def _as_stored(run: Run) -> IngestReport:
    """Describe what the manifest has of the scope; nothing is fetched.

    The first note is the age of the data.
    """
    for series in run.scope.series:
        files = [source_file(series, period) for period in sorted(run.manifest.files(series))]
        run.plans[series] = FilePlan(
            series, [f for f in files if f.bounds[1] > run.start and f.bounds[0] < run.end]
        )
    ends = [runs[-1][1] for series in run.plans if (runs := run.holdings(series).runs)]
    if not ends:
        fault = f" ({MANIFEST} is damaged: {run.manifest.fault})" if run.manifest.fault else ""
        raise CpbError(
            f"no candle of {coins_label(run.scope.symbols)} at {', '.join(run.scope.timeframes)} is stored in this "
            f"time range in {run.scope.root}{fault}; with a network `cpb ingest` stores some",
            code="not-stored",
            field="offline",
        )
    newest = max(ends)
    before = "before as_of" if run.scope.as_of else "ago"
    old = age((run.end - newest) / 1e6)
    note = f"stored candles are used, the newest closed {utc_text(newest)} ({old} {before})"
    run.notes.insert(0, note)
    return _report(run)


def _plans(run: Run, *, checks_stored: bool) -> Iterator[FilePlan]:
    """Yield plans in order; listings are requested ahead."""
    stored = [set(run.manifest.files(series)) for series in run.scope.series]

    def list_files(series: SeriesId, stored: set[str]) -> FilePlan:
        try:
            return FilePlan(series, _wanted_files(run.catalogue, series, run.start, run.end, stored))
        except SourceFault as fault:
            return FilePlan(series, fault=fault)

    for plan in run.pool.map(list_files, run.scope.series, stored):
        series = plan.series
        if isinstance(plan.fault, Unreachable) and not any(p.wanted for p in run.plans.values()):
            raise CpbError(
                f"{run.source.name} cannot be reached ({plan.fault}); check the network, or use a mirror with "
                "`--source FOLDER|URL`, or the built-in market simulator with `--source sim`",
                code="unreachable",
                field="source",
            )
        if checks_stored:  # damaged months of the time range are to be fetched
            for path in series.folder(run.home, "offgrid").glob("????-??.parquet"):
                if damage_of(path):
                    path.unlink()
                    run.manifest.forget(series, path.stem, "its off-grid candles were damaged")
            run.notes += forget_damaged(run.home, run.manifest, series, set(months(run.start, run.end)))
        records, parts = run.manifest.files(series), run.manifest.parts(series)
        plan.fetch = [
            file
            for file in plan.wanted
            if _is_due(run.home, file, records.get(file.period), parts.get(file.period[:7]))
        ]
        run.plans[series] = plan
        yield plan


def _wanted_files(
    catalogue: Catalogue, series: SeriesId, start: int, end: int, stored: Collection[str]
) -> list[SourceFile]:
    """Return the published files that best cover `[start, end)`, oldest first; `stored` are recorded periods.

    Raises:
        SourceFault: the source cannot be queried.
    """
    if series.timeframe in _DAILY_ONLY and (daily := catalogue.files(series, "daily", start, end)):
        return daily
    monthly = catalogue.files(series, "monthly", start, end)
    covered = {file.period for file in monthly}
    if not monthly:
        return catalogue.files(series, "daily", start, end)
    begin = monthly[0].bounds[0]
    missing = [month for month in months(begin, end) if month not in covered]
    spans = [(max(start, period_bounds(missing[0])[0]), end)] if missing else []
    # A pair's first month may have daily files only: they are listed once, and again if there were any.
    if start < begin and (monthly[0].period not in stored or min(stored) < monthly[0].period):
        spans.append((max(start, period_bounds(month_of(begin - 1))[0]), begin))
    daily = [file for span in spans for file in catalogue.files(series, "daily", *span)]
    return sorted({*monthly, *(f for f in daily if f.period[:7] not in covered)}, key=lambda f: f.bounds)


def _is_due(home: Path, file: SourceFile, record: FileRecord | None, part: Part | None) -> bool:
    """Whether a file is new, republished, failed last time, or its month is missing."""
    if record is None or record.version != file.version or record.status == "failed":
        return True
    if record.status == "quarantined" and time.time() - record.facts.get("at", 0) > _RETRY_QUARANTINED:
        return True  # a wrong CHECKSUM may be corrected while the zip is unchanged (binance-public-data#241)
    path = part_path(home, file.series, file.period[:7])
    return record.rows > 0 and (part is None or not path.is_file() or path.stat().st_size != part.bytes)


def _report(run: Run) -> IngestReport:
    series = _describe_all(run)
    warnings = [*run.warnings, *filter(None, map(still_sentence, series))]
    return IngestReport(series, notes=run.notes, warnings=warnings)


def _describe_all(run: Run) -> list[SeriesReport]:
    """Describe every series; months found damaged are fetched by the next run, and described as missing.

    Offline, where nothing can be fetched, their series fail.
    """
    _, calendar = run.calendars()
    reports: list[SeriesReport] = []
    waiting = list(run.plans)
    while waiting:
        series = waiting[0]
        report_progress("ingest", len(reports), len(run.plans), "series", f"looking for holes in {series}")
        outages, reason = calendar[series.timeframe], _failure_reason(run, series)
        try:
            reports.append(describe(run.home, run.holdings(series), outages, reason))
            waiting.pop(0)
        except MemberError as error:
            if error.code != "damaged":
                raise
            if run.scope.offline:
                reports.append(SeriesReport(series, status=FAILED_SERIES, reason=str(error)))
                waiting.pop(0)
                continue
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
    others = run.catalogue.other_units(series)
    remedy = (
        f"{' and '.join(others)} is there: name that, as in coins {others[0]}"
        if others
        else "check the name and since"
    )
    return f"not listed at {run.source.name} in this time range; {remedy}"
