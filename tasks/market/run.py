"""One ingestion: its source, target and known files, the files to fetch, and fetching and storing them.

Monthly files are fetched where published, daily files elsewhere, and no period twice. Downloads run ahead of parsing,
within a fixed memory budget: memory does not grow with the number of files. Series are checked one after another in the
calling thread; during a check, the previous series' months are written.
"""

import logging
import os
import sqlite3
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from schemas.errors import CpbError
from schemas.identity import SeriesId
from schemas.scope import Scope
from tasks.market.client import SourceFault
from tasks.market.holes import Holdings, OutageCalendar
from tasks.market.klines import damage_of, is_own, part_path
from tasks.market.layout import (
    DAY,
    SourceFile,
    grid_of,
    month_of,
    months,
    period_bounds,
    source_file,
    to_us,
    whole_candles,
)
from tasks.market.manifest import (
    MANIFEST,
    FileRecord,
    Manifest,
    Part,
    is_corrupt,
    manifest_damage,
    unusable,
)
from tasks.market.parser import Fetched, fetch
from tasks.market.sources import Catalogue, Source
from tasks.market.writer import WRITERS, Writing, forget_damaged
from tasks.running.parallel import tell, thread_pool
from tasks.storage.files import DiskFull, is_disk_full

log = logging.getLogger("cpb")

SEARCH_AGAIN = 7 * DAY  # missing candles are searched again after a week: files are published late


_MAX_BATCH = 16 << 20  # bytes per batch, zips and CSVs together
_MAX_AHEAD = 16 << 20  # bytes of all files being downloaded or waiting to be parsed
_GROWTH = 4  # a kline zip and its CSV together, as a multiple of the zip
_USUAL_SIZE = 100_000  # bytes of a zip, if not in the listing
_RETRY_QUARANTINED = 7 * 86_400  # seconds
_DAILY_ONLY = {"1s"}  # if daily files are published: a month of 1s candles is 350 MB of text


@dataclass
class Plan:
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
    checks_stored: bool = False
    plans: dict[SeriesId, Plan] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    fetched_files: int = 0
    rest_off: str = ""  # why REST is disabled for the rest of this run

    @property
    def start(self) -> int:
        """The first requested open time."""
        return to_us(self.scope.since) if self.scope.since else 0

    @property
    def end(self) -> int:
        """The latest allowed end of a candle."""
        return min(self.now, to_us(self.scope.as_of)) if self.scope.as_of else self.now

    @property
    def home(self) -> Path:
        """The store, CPB_HOME: a series' tree is below it."""
        return self.scope.home

    @property
    def root(self) -> Path:
        """The folder of this market's manifest and quarantine."""
        return self.scope.root


@contextmanager
def open_manifest(root: Path, plan: bool) -> Iterator[Manifest]:
    """Open the manifest of a market home; a damaged one is deleted and begun anew; a plan creates no files."""
    path = root / MANIFEST
    try:
        with _manifest(path, plan) as opened:
            yield opened
    except Exception as error:
        if not isinstance(error, CpbError) and is_disk_full(error):
            raise DiskFull(f"no space left in {root}: free some, or set CPB_HOME to another disk") from error
        if is_corrupt(error):
            raise unusable(path, error) from error
        if isinstance(error, OSError | sqlite3.OperationalError):
            raise CpbError(
                f"cannot work in {root} ({error}); set CPB_HOME to a folder you own", code="store"
            ) from error
        raise


def _manifest(path: Path, plan: bool) -> Manifest:
    if plan and not path.exists():
        return Manifest(Path(":memory:"))
    if not plan and path.exists() and (reason := manifest_damage(path)):
        if not is_own(path.parent):
            raise unusable(path, CpbError(reason))
        log.warning(
            "%s is damaged (%s) and begun anew: every file of its series is fetched again", path, reason
        )
        for ending in ("", "-wal", "-shm"):  # the caller is the only writer
            path.with_name(path.name + ending).unlink(missing_ok=True)
    return Manifest(path, read_only=plan and not os.access(path.parent, os.W_OK))


def holdings_of(run: Run, series: SeriesId) -> Holdings:
    """Return the manifest's records of a series, cut to the scope's time range."""
    parts = list(run.manifest.parts(series).values())
    starts = [a for part in parts for a, _ in part.runs] or [grid_of(series.timeframe).phase]
    first, last = whole_candles(grid_of(series.timeframe), run.start, run.end, starts[0])
    files = run.manifest.files(series)
    wanted = list(run.plans[series].wanted) if series in run.plans else []
    named = {file.period for file in wanted}
    stand_ins = [
        source_file(series, p) for p, r in files.items() if r.status == "repaired" and p not in named
    ]
    wanted += [f for f in stand_ins if f.bounds[1] > run.start and f.bounds[0] < last]
    return Holdings(
        series,
        sorted(wanted, key=lambda f: f.bounds),
        files,
        parts,
        run.manifest.anomalies(series),
        run.manifest.searched(series),
        first,
        last,
    )


def calendars(run: Run) -> tuple[dict[SeriesId, Holdings], dict[str, OutageCalendar]]:
    """Return all holdings and an outage calendar per interval, from every series of the store."""
    mine = {series: holdings_of(run, series) for series in run.plans}
    others = [s for s in run.manifest.series() if s.market == run.scope.market and s not in mine]
    found = {}
    for interval in run.scope.timeframes:
        witnesses = [_witness(run, s) for s in others if s.timeframe == interval]
        asked_for = [h for s, h in mine.items() if s.timeframe == interval]
        found[interval] = OutageCalendar([*asked_for, *witnesses])
    return mine, found


def _witness(run: Run, series: SeriesId) -> Holdings:
    """Return the holdings of a stored series outside this run: its files are the recorded files."""
    holdings = holdings_of(run, series)
    holdings.wanted = [source_file(series, period) for period in sorted(holdings.files)]
    return holdings


def wanted_files(
    catalogue: Catalogue, series: SeriesId, start: int, end: int, stored: Collection[str] = ()
) -> list[SourceFile]:
    """Return the published files that best cover `[start, end)`, oldest first; `stored` are known periods.

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


def to_fetch(run: Run, series: SeriesId, wanted: list[SourceFile]) -> list[SourceFile]:
    """Return the files that are new, republished, failed last time, or whose month is missing."""
    records, parts = run.manifest.files(series), run.manifest.parts(series)
    return [f for f in wanted if _is_due(run.home, f, records.get(f.period), parts.get(f.period[:7]))]


def _is_due(home: Path, file: SourceFile, record: FileRecord | None, part: Part | None) -> bool:
    if record is None or record.version != file.version or record.status == "failed":
        return True
    if record.status == "quarantined" and time.time() - record.facts.get("at", 0) > _RETRY_QUARANTINED:
        return True  # a wrong CHECKSUM may be corrected while the zip is unchanged (binance-public-data#241)
    path = part_path(home, file.series, file.period[:7])
    return record.rows > 0 and (part is None or not path.is_file() or path.stat().st_size != part.bytes)


def check_stored(run: Run, series: SeriesId) -> None:
    """Compare a series' months of the time range with the manifest; damaged ones are to be fetched."""
    for path in series.folder(run.home, "offgrid").glob("????-??.parquet"):
        if damage_of(path):
            path.unlink()
            run.manifest.forget(series, path.stem, "its off-grid candles were damaged")
    within = set(months(run.start, run.end))
    run.notes += forget_damaged(run.home, run.manifest, series, within)


Batch = tuple[SeriesId, list[SourceFile]]


def batches(series: SeriesId, files: list[SourceFile]) -> Iterator[Batch]:
    """Cut a series' files into batches of bounded size."""
    batch: list[SourceFile] = []
    for file in files:
        if batch and sum(map(_weight, batch)) + _weight(file) > _MAX_BATCH:
            yield series, batch
            batch = []
        batch.append(file)
    if batch:
        yield series, batch


def _weight(file: SourceFile) -> int:
    return (file.size if file.size >= 0 else _USUAL_SIZE) * _GROWTH


def store_all(run: Run, groups: Iterable[Iterable[Batch]], status: str = "ok") -> list[SourceFile]:
    """Fetch batches ahead of storing them, within the memory budget; return the faulty files."""
    flat = (batch for group in groups for batch in group)
    flying: deque[tuple[SeriesId, list[Future[Fetched]], int]] = deque()
    bad: list[SourceFile] = []
    weight, following = 0, next(flat, None)
    writing: Writing | None = None
    with thread_pool(WRITERS, "write", grace_s=1.5) as writers:
        while flying or following:
            while following and (not flying or weight < _MAX_AHEAD):
                series, files = following
                size = sum(map(_weight, files))
                flying.append((series, [run.pool.submit(fetch, run.source, f) for f in files], size))
                weight, following = weight + size, next(flat, None)
            series, futures, size = flying.popleft()
            batch = [future.result() for future in futures]
            del futures  # free the bytes as soon as they are stored
            weight -= size
            if writing and writing.series == series:  # the checks compare with the candles just written
                bad += _finish(run, writing)
                writing = None
            started = Writing(run.home, run.manifest, series, batch, writers, status)
            if writing:
                bad += _finish(run, writing)
            writing = started
        if writing:
            bad += _finish(run, writing)
    return bad


def _finish(run: Run, writing: Writing) -> list[SourceFile]:
    """Record a batch; return its faulty files."""
    bad = writing.finish()
    run.fetched_files += len(writing.batch)
    run.notes += writing.notes
    due = sum(len(p.fetch) for p in run.plans.values())
    tell("ingest", min(run.fetched_files, due - 0.5), due, "files", str(writing.series))
    return bad
