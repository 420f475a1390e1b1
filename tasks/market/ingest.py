"""Ingestion: list, plan, fetch many at once, store series by series, look for what is missing, report.

    report = ingest(Scope.of(coins="BTC", timeframes="1h", source="../shared/market"))

Downloads run ahead of parsing, but never by more than a fixed number of bytes: memory does not grow with the
number of files. Series are parsed one after another in the calling thread; polars uses the other cores.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from schemas.errors import CpbError, UsageError
from schemas.scope import Scope
from tasks.market.client import (
    BINANCE,
    BINANCE_BUCKET,
    BINANCE_REST,
    FolderSource,
    HttpSource,
    Limits,
    Source,
)
from tasks.market.faults import BadFile, NotFound, SourceFault, Unreachable
from tasks.market.holes import Holdings, OutageCalendar
from tasks.market.layout import SeriesKey, SourceFile, to_us
from tasks.market.listing import Catalogue
from tasks.market.manifest import Manifest
from tasks.market.plan import Plan, to_fetch, wanted_files
from tasks.market.report import IngestReport, describe
from tasks.market.store import MANIFEST, is_full, sweep, writer_lock
from tasks.market.unpack import fetch
from tasks.market.writer import Fetched, store_batch

CONNECTIONS = 16
Progress = Callable[[str, int, int], None]
"""Called with a series' name, files done and files in all."""

_BATCH = 12 << 20  # zipped and unzipped bytes of one batch
_AHEAD = 40 << 20  # of all files that are on their way or waiting to be parsed
_GROWTH = 5  # a kline zip and its CSV together, as a multiple of the zip
_GUESS = 100_000  # size of a zip that no listing tells
_LISTINGS_AHEAD = 24


@dataclass
class Run:
    """One ingestion under way: where from, where to, and what has been found."""

    scope: Scope
    source: Source
    catalogue: Catalogue
    manifest: Manifest
    pool: ThreadPoolExecutor
    now: int
    progress: Progress | None = None
    plans: dict[SeriesKey, Plan] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    fetched_files: int = 0

    @property
    def start(self) -> int:
        """First open time asked for."""
        return to_us(self.scope.since) if self.scope.since else 0

    @property
    def end(self) -> int:
        """No candle may end after this."""
        return min(self.now, to_us(self.scope.as_of)) if self.scope.as_of else self.now

    @property
    def home(self) -> Path:
        """The store."""
        return self.scope.home


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
            sweep(scope.home)
        manifest = stack.enter_context(_manifest(scope.home, plan))
        pool = stack.enter_context(_pool(connections))
        probes = stack.enter_context(_pool(connections))
        run = Run(
            scope, source, Catalogue(source, probes), manifest, pool, to_us(datetime.now(UTC)), progress
        )
        report = _plan_only(run) if plan else _bring_up_to_date(run, tail)
    report.requests, report.seconds = source.requests, round(time.monotonic() - started, 3)
    report.source, report.market = source.name, scope.market
    report.notes += source.waits
    return report


@contextmanager
def open_source(
    scope: Scope, connections: int = CONNECTIONS, limits: Limits | None = None
) -> Iterator[Source]:
    """Open Binance Vision, a mirror's URL or folder, or the simulator, as the scope says."""
    limits = limits or Limits()
    with ExitStack() as stack:
        text = scope.source or ""
        if text == "sim":
            from tasks.market import simulator

            url = stack.enter_context(simulator.serve(until=scope.as_of, since=scope.since))
            yield HttpSource(url, connections=connections, limits=limits, label="the market simulator")
        elif not text:
            yield HttpSource(BINANCE, BINANCE_BUCKET, BINANCE_REST, connections, limits, "Binance Vision")
        elif text.startswith(("http://", "https://")):
            yield HttpSource(text, connections=connections, limits=limits)
        elif Path(text).is_dir():
            yield FolderSource(Path(text))
        else:
            raise UsageError(
                f"--source {text!r} is neither a URL nor a folder; give one, or `sim`, or leave it out"
            )


@contextmanager
def _pool(size: int) -> Iterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(max_workers=size, thread_name_prefix="fetch")
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _manifest(home: Path, plan: bool) -> Iterator[Manifest]:
    path = home / MANIFEST
    try:
        with Manifest(path if path.exists() or not plan else Path(":memory:")) as manifest:
            yield manifest
    except Exception as error:
        if not isinstance(error, CpbError) and is_full(error):
            raise CpbError(f"no space left in {home}: free some, or set CPB_HOME to another disk") from error
        raise


def _keys(scope: Scope) -> list[SeriesKey]:
    return [SeriesKey(scope.market, s, t) for s in scope.symbols for t in scope.timeframes]


def _plan_series(run: Run, series: SeriesKey) -> Plan:
    try:
        return Plan(series, wanted_files(run.catalogue, series, run.start, run.end))
    except SourceFault as fault:
        return Plan(series, fault=fault)


def _finish_plan(run: Run, plan: Plan) -> Plan:
    """Compare what the source has with the manifest (in the thread that owns the manifest)."""
    if isinstance(plan.fault, Unreachable) and not any(p.wanted for p in run.plans.values()):
        raise CpbError(
            f"{run.source.name} cannot be reached ({plan.fault}); check the network, or use a mirror with "
            "`--source FOLDER|URL`, or the built-in market simulator with `--source sim`"
        )
    known, parts = run.manifest.files(plan.series), run.manifest.parts(plan.series)
    plan.fetch = to_fetch(run.home, plan.wanted, known, parts)
    run.plans[plan.series] = plan
    return plan


def _plan_only(run: Run) -> IngestReport:
    for plan in _plans_ahead(run):
        size = sum(max(0, f.size) for f in plan.fetch)
        run.notes.append(
            f"{plan.series}: {len(plan.fetch)} of {len(plan.wanted)} files to fetch, {size / 1e6:.1f} MB"
        )
        run.notes += [f"  {f.key}" for f in plan.fetch]
    return IngestReport(_describe_all(run), notes=run.notes)


def _plans_ahead(run: Run) -> Iterator[Plan]:
    """Yield plans in order; listings are asked for some series ahead."""
    waiting: deque[Future[Plan]] = deque()
    keys = iter(_keys(run.scope))
    while True:
        while len(waiting) < _LISTINGS_AHEAD and (series := next(keys, None)):
            waiting.append(run.pool.submit(_plan_series, run, series))
        if not waiting:
            return
        yield _finish_plan(run, waiting.popleft().result())


def _bring_up_to_date(run: Run, tail: bool) -> IngestReport:
    _store_all(run, (_batches(plan.series, plan.fetch) for plan in _plans_ahead(run)))
    from tasks.market.repair import repair

    repair(run)
    if tail:
        from tasks.market.rest import refresh_tail

        refresh_tail(run)
    return IngestReport(_describe_all(run), notes=run.notes)


Batch = tuple[SeriesKey, list[SourceFile]]


def _batches(series: SeriesKey, files: list[SourceFile]) -> Iterator[Batch]:
    """Cut a series' files into batches of bounded size."""
    batch: list[SourceFile] = []
    for file in files:
        if batch and sum(map(_weight, batch)) + _weight(file) > _BATCH:
            yield series, batch
            batch = []
        batch.append(file)
    if batch:
        yield series, batch


def _weight(file: SourceFile) -> int:
    return (file.size if file.size >= 0 else _GUESS) * _GROWTH


def _store_all(run: Run, batches: Iterator[Iterator[Batch]], status: str = "ok") -> list[SourceFile]:
    """Fetch batches ahead of storing them, within the memory budget; return the files at fault."""
    flat = (batch for group in batches for batch in group)
    flying: deque[tuple[SeriesKey, list[Future[Fetched]], int]] = deque()
    bad: list[SourceFile] = []
    weight, following = 0, next(flat, None)
    while flying or following:
        while following and (not flying or weight < _AHEAD):
            series, files = following
            size = sum(map(_weight, files))
            flying.append((series, [run.pool.submit(fetch_one, run.source, f) for f in files], size))
            weight, following = weight + size, next(flat, None)
        series, futures, size = flying.popleft()
        batch = [future.result() for future in futures]
        del futures  # the bytes must go as soon as they are stored
        weight -= size
        outcome = store_batch(run.home, run.manifest, series, batch, status)
        run.fetched_files += len(batch)
        run.notes += outcome.notes
        bad += outcome.bad
        if run.progress:
            run.progress(str(series), run.fetched_files, sum(len(p.fetch) for p in run.plans.values()))
    return bad


def fetch_one(source: Source, file: SourceFile) -> Fetched:
    """Fetch a file; whatever goes wrong is part of the answer."""
    try:
        csv, sha, verified, payload = fetch(source, file)
        return Fetched(file, csv, sha, verified, payload)
    except NotFound:
        return Fetched(file, fault=SourceFault("listed, but not there (404)"))
    except (BadFile, SourceFault) as fault:
        return Fetched(file, fault=fault)


def holdings_of(run: Run, series: SeriesKey) -> Holdings:
    """Return what the manifest knows of a series, cut to the scope's time range."""
    step = series.step
    last = run.end - run.end % step
    return Holdings(
        series,
        run.plans[series].wanted if series in run.plans else [],
        run.manifest.files(series),
        list(run.manifest.parts(series).values()),
        run.manifest.oddities(series),
        run.manifest.searched(series),
        run.start,
        last,
    )


def calendars(run: Run) -> tuple[dict[SeriesKey, Holdings], dict[str, OutageCalendar]]:
    """Return all holdings and one outage calendar for each interval, from every series of the store."""
    mine = {series: holdings_of(run, series) for series in run.plans}
    others = [s for s in run.manifest.series() if s.market == run.scope.market and s not in mine]
    found = {}
    for interval in run.scope.timeframes:
        witnesses = [_witness(run, s) for s in others if s.interval == interval]
        everyone = [h for s, h in mine.items() if s.interval == interval]
        found[interval] = OutageCalendar([*everyone, *witnesses])
    return mine, found


def _witness(run: Run, series: SeriesKey) -> Holdings:
    """A series of the store that this run does not ask for: its files are those on record."""
    holdings = holdings_of(run, series)
    holdings.wanted = [series.file(period) for period in sorted(holdings.files)]
    return holdings


def _describe_all(run: Run) -> list:
    mine, calendar = calendars(run)
    return [describe(run.home, h, calendar[s.interval], _why_nothing(run, s)) for s, h in mine.items()]


def _why_nothing(run: Run, series: SeriesKey) -> str:
    plan = run.plans[series]
    if plan.fault:
        return f"{run.source.name} could not be asked: {plan.fault}"
    if not plan.wanted:
        return f"{series} is not listed at {run.source.name} in this time range; check the name and --since"
    return ""
