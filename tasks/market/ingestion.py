"""A running ingestion: its source and target, which files it needs, and what it has found."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from schemas.identity import SeriesId
from schemas.scope import Scope
from tasks.market.client import SourceFault
from tasks.market.holes import Holdings, OutageCalendar
from tasks.market.layout import (
    SourceFile,
    grid_of,
    source_file,
    to_us,
    whole_candles,
)
from tasks.market.listing import Catalogue
from tasks.market.manifest import Manifest
from tasks.market.sources import Source


@dataclass
class FilePlan:
    """The files of one series that a run needs (`wanted`) and the files still to fetch (`fetch`)."""

    series: SeriesId
    wanted: list[SourceFile] = field(default_factory=list)
    fetch: list[SourceFile] = field(default_factory=list)
    fault: SourceFault | None = None


@dataclass
class Ingestion:
    """A running ingestion: source, target and findings. `now`, `start`, `end`: µs UTC."""

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
            # daily files and days of REST that filled holes of a monthly file, which alone is in the plan
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
