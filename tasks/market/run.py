"""The state of one ingestion: where from, where to, and what is known so far."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
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
from tasks.market.grid import DAY, whole_candles
from tasks.market.holes import Holdings, OutageCalendar
from tasks.market.layout import SeriesKey, to_us
from tasks.market.listing import Catalogue
from tasks.market.manifest import ANEW, Manifest, is_corrupt
from tasks.market.plan import Plan
from tasks.market.store import MANIFEST, is_full

CONNECTIONS = 32
AGAIN = 7 * DAY  # what was nowhere is looked for again after a week: files are published late
Progress = Callable[[str, int, int], None]
"""Called with a series' name, files done and files in all."""


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
    rest_off: str = ""  # why REST is not asked any more

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
            yield HttpSource(
                BINANCE, BINANCE_BUCKET, BINANCE_REST[scope.market], connections, limits, "Binance Vision"
            )
        elif text.startswith(("http://", "https://")):
            yield HttpSource(text, connections=connections, limits=limits)
        elif Path(text).is_dir():
            yield FolderSource(Path(text))
        else:
            raise UsageError(
                f"--source {text!r} is neither a URL nor a folder; give one, or `sim`, or leave it out"
            )


@contextmanager
def pool(size: int) -> Iterator[ThreadPoolExecutor]:
    """Run threads; whatever ends the block also cancels what has not begun."""
    threads = ThreadPoolExecutor(max_workers=size, thread_name_prefix="fetch")
    try:
        yield threads
    finally:
        threads.shutdown(wait=True, cancel_futures=True)


@contextmanager
def open_manifest(home: Path, plan: bool) -> Iterator[Manifest]:
    """Open the store's manifest; a mere plan on an empty home leaves no file behind."""
    path = home / MANIFEST
    try:
        with _manifest(path, plan) as opened:
            yield opened
    except Exception as error:
        if not isinstance(error, CpbError) and is_full(error):
            raise CpbError(f"no space left in {home}: free some, or set CPB_HOME to another disk") from error
        if is_corrupt(error):
            raise CpbError(f"{path} is damaged ({error}); {ANEW}") from error
        if isinstance(error, OSError | sqlite3.OperationalError):
            raise CpbError(f"cannot work in {home} ({error}); set CPB_HOME to a folder you own") from error
        raise


def _manifest(path: Path, plan: bool) -> Manifest:
    if plan and not path.exists():
        return Manifest(Path(":memory:"))
    return Manifest(path, read_only=plan and not os.access(path.parent, os.W_OK))


def holdings_of(run: Run, series: SeriesKey) -> Holdings:
    """Return what the manifest knows of a series, cut to the scope's time range."""
    parts = list(run.manifest.parts(series).values())
    starts = [a for part in parts for a, _ in part.runs] or [series.grid.phase]
    first, last = whole_candles(series.grid, run.start, run.end, starts[0])
    files = run.manifest.files(series)
    wanted = list(run.plans[series].wanted) if series in run.plans else []
    named = {file.period for file in wanted}
    helpers = [series.file(p) for p, r in files.items() if r.status == "repaired" and p not in named]
    wanted += [f for f in helpers if f.bounds[1] > run.start and f.bounds[0] < last]
    return Holdings(
        series,
        sorted(wanted, key=lambda f: f.bounds),
        files,
        parts,
        run.manifest.oddities(series),
        run.manifest.searched(series),
        first,
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
