"""What a series lacks: every missing candle with its cause.

Missing candles are the expected grid minus the stored candles. The exchange's outages are derived from the data: a
candle that is missing in every symbol that traded. If no second symbol traded at that time, a gap of at most two days
strictly inside a file also counts as an outage.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import log

import numpy as np

from cpbmodels.data import SEGMENT_JUMP
from schemas.identity import OWN, SeriesId
from tasks.market.layout import DAY, SourceFile, grid_of, whole_candles
from tasks.market.manifest import Anomaly, FileRecord, Part

Runs = list[tuple[int, int]]

OUTAGE, UNPUBLISHED, ABSENT, QUARANTINED, FAILED, NOT_IN_TABLE = (
    "exchange outage",
    "not published",
    "absent at source",
    "quarantined",
    "download failed",
    "not in the table",
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
_ENDED_AFTER = 3 * DAY
"""Trading has ended where data ends so long before the requested end: files come within a day or two."""


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
        return self._clip(_join(run for part in self.parts for run in part.runs))

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

    @property
    def off_grid_bars(self) -> list[int]:
        """The grid candles in which an off-grid candle opened: the market traded, though not on the grid."""
        grid = grid_of(self.series.timeframe)
        return [grid.floor(a.open_time) for a in self.anomalies if a.kind == "off-grid"]

    def spans(self, *statuses: str) -> Runs:
        """Return the time covered by wanted files of these statuses."""
        return _join(
            f.bounds
            for f in self.wanted
            if f.period in self.files and self.files[f.period].status in statuses
        )

    @property
    def missing(self) -> Runs:
        """The time ranges without candles between the first and the last expected candle."""
        runs, grid = self.runs, grid_of(self.series.timeframe)
        # a refused or failed file's time counts as expected, also before and after all stored candles
        bad = self._clip(self.spans("quarantined", "failed"))
        if not runs:
            return [whole_candles(grid, a, b, grid.phase) for a, b in bad]
        files = self._clip([f.covered for f in self.wanted if f.period in self.files])
        begin = min([runs[0][0], *(a for a, _ in bad)])
        end = max([runs[-1][1], *(b for _, b in files)])
        # the gaps are what lies between the runs: every second pair of edges
        edges = [begin, *itertools.chain.from_iterable(runs), end]
        gaps = [whole_candles(grid, *gap, runs[0][0]) for gap in zip(edges[::2], edges[1::2], strict=True)]
        # rounded inwards to whole candles: the part of a week at the end of a month is no gap
        return [(a, b) for a, b in gaps if b > a]

    def _clip(self, runs: Runs) -> Runs:
        return _overlap([(self.first, self.last)], runs)


def _join(runs: Iterable[tuple[int, int]]) -> Runs:
    """Join adjacent runs of a sorted sequence."""
    joined: Runs = []
    for start, end in runs:
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined


def _overlap(ranges: Runs, runs: Runs) -> Runs:
    return [
        (max(a, first), min(b, last)) for first, last in ranges for a, b in runs if b > first and a < last
    ]


def _inside(times: np.ndarray, runs: Runs) -> np.ndarray:
    """Return for each time whether it is in any of the sorted runs."""
    if not runs:
        return np.zeros(len(times), dtype=bool)
    starts, ends = np.array(runs).T
    # the last run that begins at or before each time is the only one that may hold it; -1: none
    at = np.searchsorted(starts, times, side="right") - 1
    return np.asarray((at >= 0) & (times < ends[np.maximum(at, 0)]))


class OutageCalendar:
    """The outages of the whole exchange, derived from the gaps of all series of one market and interval.

    For each time missing in any series: how many series should have a candle then, and whether any has it.
    """

    def __init__(self, all_series: list[Holdings]) -> None:
        gaps = [  # inside published files: months without a file are not outages
            grid_of(h.series.timeframe).opens(a, b)
            for h in all_series
            for a, b in _overlap(h.missing, h.spans("ok", "repaired"))
        ]
        self.times = np.unique(np.concatenate(gaps)) if gaps else np.array([], dtype=np.int64)
        self.expected = np.zeros(len(self.times), dtype=np.int32)
        self.traded = np.zeros(len(self.times), dtype=bool)
        for holdings in all_series:
            # a series is a witness from its first to its last candle: before and after it did not trade
            if runs := holdings.runs:
                listed = [(runs[0][0], runs[-1][1])]
                self.expected += _inside(self.times, _overlap(holdings.spans("ok", "repaired"), listed))
                self.traded |= _inside(self.times, runs) | np.isin(self.times, holdings.off_grid_bars)

    def silent(self, times: np.ndarray) -> np.ndarray:
        """Return for each time how many symbols are missing (at least 1) if none traded, else 0."""
        if not len(self.times):
            return np.zeros(len(times), dtype=np.int32)
        at = np.minimum(np.searchsorted(self.times, times), len(self.times) - 1)
        # a time that is missing in no series' published files is not in the calendar at all
        silent = (self.times[at] == times) & ~self.traded[at]
        return np.where(silent, np.maximum(self.expected[at], 1), 0)


def find_holes(holdings: Holdings, calendar: OutageCalendar) -> list[Hole]:
    """Return every hole of a series with its cause, oldest first."""
    holes: list[Hole] = []
    grid = grid_of(holdings.series.timeframe)
    for start, end in holdings.missing:
        times = grid.opens(start, end)
        causes = _causes(holdings, calendar, times, start, end)
        # a gap may have several causes, as an outage that runs into an unpublished day: a hole each
        bounds = [0, *(np.flatnonzero(causes[1:] != causes[:-1]) + 1), len(causes)]
        holes += [
            Hole(int(times[a]), grid.end(int(times[b - 1])), int(b - a), str(causes[a]))
            for a, b in itertools.pairwise(bounds)
        ]
    return holes


def _causes(
    holdings: Holdings, calendar: OutageCalendar, times: np.ndarray, start: int, end: int
) -> np.ndarray:
    """Return the cause of each missing candle of a gap. Later assignments override earlier assignments."""
    # the default: a published file should have the candle, and nothing below explains why not
    causes = np.full(len(times), ABSENT, dtype="U20")
    silent, intact = calendar.silent(times), holdings.spans("ok", "repaired")
    off_grid = np.isin(times, holdings.off_grid_bars)
    # candles that opened off the grid prove trading: only the rest of the gap is silence
    silence = end - start - int(off_grid.sum()) * (grid_of(holdings.series.timeframe).end(start) - start)
    # at the edge of a file, the file may have been truncated
    inside_a_file = any(
        a < start and end < b for f in holdings.wanted for a, b in [f.bounds] if f.period in holdings.files
    )
    # of a table nobody knows whether its exchange was at rest or its maker lost a candle
    short = NOT_IN_TABLE if holdings.series.market == OWN else OUTAGE
    causes[(silent > 1) | ((silent == 1) & (inside_a_file and silence <= _MAX_OUTAGE)) | off_grid] = short
    # no published file covers the time, so nobody can say what happened in it
    causes[~_inside(times, _join(sorted([*intact, *holdings.runs])))] = UNPUBLISHED
    uncovered = ~_inside(times, intact)
    for status, cause in (("quarantined", QUARANTINED), ("failed", FAILED)):
        causes[_inside(times, holdings.spans(status)) & uncovered] = cause
    # two candles of one time: both were dropped, until a daily file decides
    disputed = [a.open_time for a in holdings.anomalies if a.kind == "conflict"]
    causes[np.isin(times, disputed)] = QUARANTINED
    absent = causes == ABSENT
    published = max((f.covered[1] for f in holdings.wanted), default=end)
    relisted = any(
        resumed == end and pause >= _MIN_RELISTING_PAUSE and abs(log(factor)) > RELISTING_JUMP
        for resumed, pause, factor in holdings.joints
    )
    # a coin that came back as another, or a gap with unpublished days in it: the absent rest was not traded either
    if relisted or (causes == UNPUBLISHED).any():
        causes[absent] = UNPUBLISHED
    # delisted, unless daily files go on
    elif end >= published and end + _ENDED_AFTER < holdings.last < 1 << 61:
        causes[absent & _inside(times, sorted((a, b) for a, b, _ in holdings.searched))] = UNPUBLISHED
    return causes
