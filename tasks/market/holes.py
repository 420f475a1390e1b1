"""Missing candles and their causes: the expected grid minus the stored candles, each missing candle with a cause.

The exchange's outages are derived from the data: a candle that is missing in every symbol that traded. If no second
symbol traded at that time, a gap of at most two days strictly inside a file also counts as an outage.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import log

import numpy as np

from cpbmodels.data import SEGMENT_JUMP
from schemas.identity import SeriesId
from tasks.market.layout import DAY, SourceFile, grid_of, whole_candles
from tasks.market.manifest import Anomaly, FileRecord, Part

Runs = list[tuple[int, int]]

OUTAGE, UNPUBLISHED, ABSENT, QUARANTINED, FAILED = CAUSES = (
    "exchange outage",
    "not published",
    "absent at source",
    "quarantined",
    "download failed",
)
LACKING = (ABSENT, QUARANTINED, FAILED)
"""Causes that make a series partial: the source should have had these candles."""

RELISTING_JUMP = log(5)
"""|ln(open / previous close)| across a pause above which it is another coin under the old name, or another unit.

Higher than `cpbmodels.data.SEGMENT_JUMP`: a coin may well triple while it is not traded, and this only explains
a hole in a report; features restart after every hole, whatever the price did.
"""

_MAX_OUTAGE = 2 * DAY  # Binance's longest, in February 2018, took 33 hours
_MIN_RELISTING_PAUSE = DAY
LATE_AFTER = 3 * DAY
"""Data that ends so long before the requested end is late, or trading has ended: files come within a day or two."""


@dataclass(frozen=True)
class Hole:
    """Missing candles `[start, end)` in microseconds, with a single cause."""

    start: int
    end: int
    bars: int
    cause: str


@dataclass
class Holdings:
    """All known data of one series, cut to a time range."""

    series: SeriesId
    wanted: list[SourceFile]
    files: dict[str, FileRecord]
    parts: list[Part]
    anomalies: list[Anomaly]
    searched: list[tuple[int, int, int]] = field(default_factory=list)
    first: int = 0
    last: int = 1 << 62

    @property
    def runs(self) -> Runs:
        """Contiguous runs `[from, until)` inside the time range."""
        return clip(join_runs(run for part in self.parts for run in part.runs), self.first, self.last)

    @property
    def joints(self) -> list[tuple[int, int, float]]:
        """The start of each run but the first, the pause before it, and open / previous close."""
        runs = [(*run, *edge) for part in self.parts for run, edge in zip(part.runs, part.edges, strict=True)]
        return [
            (start, start - end, opened / closed)
            for (_, end, _, closed), (start, _, opened, _) in itertools.pairwise(runs)
        ]

    @property
    def leaps(self) -> list[tuple[int, float]]:
        """Open times in the range at which the price level leaps, with the factor; after a day's pause: a relisting."""
        return [
            (start, factor)
            for start, pause, factor in self.joints
            if self.first < start < self.last
            and pause < _MIN_RELISTING_PAUSE
            and abs(log(factor)) > (RELISTING_JUMP if pause else SEGMENT_JUMP)
        ]

    def spans(self, *statuses: str) -> Runs:
        """Return the time covered by wanted files of these statuses."""
        return join_runs(
            f.bounds
            for f in self.wanted
            if f.period in self.files and self.files[f.period].status in statuses
        )

    @property
    def covered(self) -> Runs:
        """Time covered by intact files, and by candles from other sources."""
        return join_runs(sorted([*self.spans("ok", "repaired"), *self.runs]))


def join_runs(runs: Iterable[tuple[int, int]]) -> Runs:
    """Join adjacent runs of a sorted sequence."""
    joined: list[list[int]] = []
    for start, end in runs:
        if joined and start <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([start, end])
    return [(a, b) for a, b in joined]


def clip(runs: Runs, first: int, last: int) -> Runs:
    """Cut runs to `[first, last)`."""
    return [(max(a, first), min(b, last)) for a, b in runs if b > first and a < last]


def inside(times: np.ndarray, runs: Runs) -> np.ndarray:
    """Return for each time whether it is in any of the sorted runs."""
    if not runs:
        return np.zeros(len(times), dtype=bool)
    starts, ends = np.array(runs).T
    at = np.searchsorted(starts, times, side="right") - 1
    return (at >= 0) & (times < ends[np.maximum(at, 0)])


def missing(holdings: Holdings) -> Runs:
    """Return the time ranges without candles between the first and the last expected candle."""
    runs, grid = holdings.runs, grid_of(holdings.series.timeframe)
    anchor = runs[0][0] if runs else grid.phase
    bad = clip(holdings.spans("quarantined", "failed"), holdings.first, holdings.last)
    if not runs:
        return [whole_candles(grid, a, b, anchor) for a, b in bad]
    begin = min([runs[0][0], *(a for a, _ in bad)])
    files = clip(
        [f.covered for f in holdings.wanted if f.period in holdings.files], holdings.first, holdings.last
    )
    end = max([runs[-1][1], *(b for _, b in files)])
    edges = [begin, *(t for run in runs for t in run), end]
    gaps = [whole_candles(grid, a, b, anchor) for a, b in zip(edges[::2], edges[1::2], strict=True)]
    return [(a, b) for a, b in gaps if b > a]


class OutageCalendar:
    """The outages of the whole exchange, derived from the gaps of all series of one market and interval.

    For each time missing in any series: how many series should have a candle then, and how many have it.
    """

    def __init__(self, all_series: list[Holdings]) -> None:
        gaps = [grid_of(h.series.timeframe).opens(a, b) for h in all_series for a, b in _gaps_in_files(h)]
        self.times = np.unique(np.concatenate(gaps)) if gaps else np.array([], dtype=np.int64)
        self.expected = np.zeros(len(self.times), dtype=np.int32)
        self.present = np.zeros(len(self.times), dtype=np.int32)
        for holdings in all_series:
            runs = holdings.runs
            if not runs:
                continue
            traded = [(runs[0][0], runs[-1][1])]
            self.expected += inside(self.times, _overlap(holdings.spans("ok", "repaired"), traded))
            self.present += inside(self.times, runs) | np.isin(self.times, off_grid_bars(holdings))

    def outages(self, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return for each time whether several symbols were out and none traded, and whether it was a single symbol."""
        if not len(self.times):
            return np.zeros(len(times), dtype=bool), np.ones(len(times), dtype=bool)
        at = np.minimum(np.searchsorted(self.times, times), len(self.times) - 1)
        known = self.times[at] == times
        silent = known & (self.present[at] == 0)
        return silent & (self.expected[at] > 1), silent & (self.expected[at] <= 1)

    def is_only_witness(self, time: int) -> bool:
        """Whether no second symbol can confirm an outage at a time."""
        return bool(self.outages(np.array([time]))[1][0])


def _gaps_in_files(holdings: Holdings) -> Runs:
    """Return the gaps inside published files; months without a file are not outages."""
    return _overlap(missing(holdings), holdings.spans("ok", "repaired"))


def _overlap(one: Runs, other: Runs) -> Runs:
    return [r for a, b in one for r in clip(other, a, b)]


def find_holes(holdings: Holdings, calendar: OutageCalendar) -> list[Hole]:
    """Return every hole of a series with its cause, oldest first."""
    holes: list[Hole] = []
    grid = grid_of(holdings.series.timeframe)
    for start, end in missing(holdings):
        times = grid.opens(start, end)
        causes = _causes(holdings, calendar, times, start, end)
        bounds = [0, *(np.flatnonzero(causes[1:] != causes[:-1]) + 1), len(causes)]
        holes += [
            Hole(int(times[a]), grid.end(int(times[b - 1])), int(b - a), str(causes[a]))
            for a, b in itertools.pairwise(bounds)
        ]
    return holes


def off_grid_bars(holdings: Holdings) -> list[int]:
    """Return the grid candles in which an off-grid candle opened: the market traded, though not on the grid."""
    grid = grid_of(holdings.series.timeframe)
    return [grid.floor(o.open_time) for o in holdings.anomalies if o.kind == "off-grid"]


def _causes(
    holdings: Holdings, calendar: OutageCalendar, times: np.ndarray, start: int, end: int
) -> np.ndarray:
    """Return the cause of each missing candle of a gap. Later assignments override earlier assignments."""
    causes = np.full(len(times), ABSENT, dtype="U20")
    several, only_one = calendar.outages(times)
    off_grid = np.isin(times, off_grid_bars(holdings))
    silence = end - start - int(off_grid.sum()) * (grid_of(holdings.series.timeframe).end(start) - start)
    # at the edge of a file, the file may have been truncated
    inside_a_file = any(
        a < start and end < b for f in holdings.wanted for a, b in [f.bounds] if f.period in holdings.files
    )
    causes[several | (only_one & (inside_a_file and silence <= _MAX_OUTAGE)) | off_grid] = OUTAGE
    causes[~inside(times, holdings.covered)] = UNPUBLISHED
    uncovered = ~inside(times, holdings.spans("ok", "repaired"))
    for status, cause in (("quarantined", QUARANTINED), ("failed", FAILED)):
        causes[inside(times, holdings.spans(status)) & uncovered] = cause
    disputed = [o.open_time for o in holdings.anomalies if o.kind == "conflict"]
    causes[np.isin(times, disputed)] = QUARANTINED
    absent = causes == ABSENT
    published = max((f.covered[1] for f in holdings.wanted), default=end)
    relisted = any(
        resumed == end and pause >= _MIN_RELISTING_PAUSE and abs(log(factor)) > RELISTING_JUMP
        for resumed, pause, factor in holdings.joints
    )
    if relisted or (causes == UNPUBLISHED).any():
        causes[absent] = UNPUBLISHED
    elif (
        end >= published and end + LATE_AFTER < holdings.last < 1 << 61
    ):  # delisted, unless daily files go on
        causes[absent & inside(times, sorted((a, b) for a, b, _ in holdings.searched))] = UNPUBLISHED
    return causes
