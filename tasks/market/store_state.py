"""What the store holds of a scope after an ingestion, a state per series, and how it is told.

`to_dict` is the output of `cpb ingest --json`; `series_rows` and `hole_lines` are for people.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cpbmodels.data import MAX_STILL_SHARE
from schemas.errors import EXIT_COMPLETE, EXIT_PARTIAL, counted
from schemas.identity import SeriesId
from tasks.market.holes import LACKING, Holdings, Hole, OutageCalendar, find_holes
from tasks.market.klines import digest_and_idle
from tasks.market.layout import grid_of, utc_text
from tasks.market.manifest import FileRecord

COMPLETE_SERIES, PARTIAL_SERIES, FAILED_SERIES = "complete", "partial", "failed"

NOTED_STILL_SHARE = 0.01
"""Share of a series' candles that may stand still without a word; Binance's have less than .0001."""


@dataclass
class SeriesState:
    """The state of a series after a run; times are ISO 8601 in UTC, holes are `[from, to)`."""

    series: SeriesId
    rows: int = 0
    first: str | None = None
    last: str | None = None  # open time of the newest candle
    holes: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)
    status: str = COMPLETE_SERIES
    reason: str = ""
    digest: str = ""
    zero_volume: int = 0
    still: int = 0  # candles that stand still: open = high = low = close, volume 0
    off_grid: int = 0
    odd_close: list[str] = field(default_factory=list)
    leaps: list[str] = field(default_factory=list)  # of the price level
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return the state for `--json`, with the parts of the series' name as separate fields."""
        fields = asdict(self)
        return {**fields.pop("series"), **fields}


@dataclass
class StoreState:
    """The states of the series of a run, what it asked of the source, and what it noticed."""

    series: list[SeriesState]
    requests: int = 0
    seconds: float = 0.0
    source: str = ""
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)  # what a training of these candles should know
    market: str = "spot"

    @property
    def exit(self) -> int:
        """Exit code: 0 complete, 3 partial (good results kept)."""
        complete = all(s.status == COMPLETE_SERIES for s in self.series)
        return EXIT_COMPLETE if complete else EXIT_PARTIAL

    def to_dict(self) -> dict[str, Any]:
        """Return the output of `cpb ingest --json`."""
        return asdict(self) | {"series": [s.to_dict() for s in self.series], "exit": self.exit}


def series_state(home: Path, holdings: Holdings, calendar: OutageCalendar, reason: str = "") -> SeriesState:
    """Return the state of a series; `reason` is why the source could not be queried."""
    series, runs, grid = holdings.series, holdings.runs, grid_of(holdings.series.timeframe)
    last = grid.latest(holdings.last)
    records = [holdings.files[f.period] for f in holdings.wanted if f.period in holdings.files]
    # of the wanted files only: others of the series may lie outside the time range
    statuses = [record.status for record in records]
    holes = find_holes(holdings, calendar)
    times: dict[str, list[str]] = {"off-grid": [], "odd close": []}
    for anomaly in holdings.anomalies:
        if anomaly.kind in times and holdings.first <= anomaly.open_time < holdings.last:
            times[anomaly.kind].append(utc_text(anomaly.open_time))
    state = SeriesState(
        series,
        rows=sum(grid.count(a, b) for a, b in runs),
        holes=[
            {"from": utc_text(h.start), "to": utc_text(h.end), "bars": h.bars, "cause": h.cause}
            for h in holes
        ],
        files={
            **{status: statuses.count(status) for status in ("ok", "repaired", "quarantined")},
            "unverified": sum(bool(r.facts.get("unverified")) for r in records),
            # failed downloads, and listed files that this run did not come to
            "missing": statuses.count("failed") + len(holdings.wanted) - len(records),
        },
        off_grid=len(times["off-grid"]),
        odd_close=times["odd close"],
        leaps=[f"× {factor:,.4g} at {_minute(utc_text(at))} UTC" for at, factor in holdings.leaps],
        notes=[f"{series} {r.period}: {note}" for r in records for note in _file_notes(r)],
    )
    if runs:
        state.first, state.last = utc_text(runs[0][0]), utc_text(grid.latest(runs[-1][1]))
        state.digest, state.zero_volume, state.still = digest_and_idle(
            home, series, holdings.parts, holdings.first, last
        )
    _set_status(state, holes, reason)
    return state


def _file_notes(record: FileRecord) -> list[str]:
    unverified = ["unverified, no CHECKSUM published"] if record.facts.get("unverified") else []
    return [*filter(None, [record.reason]), *record.facts.get("notes", []), *unverified]


def _set_status(state: SeriesState, holes: list[Hole], reason: str) -> None:
    lacking = [hole for hole in holes if hole.cause in LACKING]
    # no candle is worse than any hole, so it is told alone
    if not state.rows:
        state.status, state.reason = FAILED_SERIES, reason or "no candle in this time range"
    elif reason or lacking or state.leaps:
        if lacking and not reason:
            causes = ", ".join(sorted({hole.cause for hole in lacking}))
            reason = f"{counted(sum(hole.bars for hole in lacking), 'candle')} lacking: {causes}"
        state.status = PARTIAL_SERIES
        state.reason = "; ".join(filter(None, (reason, leap_sentence(state.leaps))))


def still_sentence(state: SeriesState) -> str:
    """Return the sentence about candles that stand still, empty if they are few."""
    if state.still <= NOTED_STILL_SHARE * state.rows:
        return ""
    return (
        f"{state.series}: {state.still / state.rows:.1%} of the candles ({state.still:,}) stand still, with open = "
        f"high = low = close and volume 0; above {MAX_STILL_SHARE:.0%} of its training span a series is not trained"
    )


def leap_sentence(leaps: list[str]) -> str:
    """Return the sentence about leaps of the price level, empty if there is none."""
    more = f" and {len(leaps) - 3:,} more" if len(leaps) > 3 else ""
    return (
        f"the price level leaps {', '.join(leaps[:3])}{more}: another unit or coin, so nothing is computed across it; "
        "begin after it with --since to leave out what lies before"
        if leaps
        else ""
    )


def series_rows(state: StoreState) -> list[dict[str, Any]]:
    """Return a row for each series: what of it is stored, and how much is missing."""
    return [
        {
            "series": str(s.series),
            "status": s.status,
            "candles": s.rows,
            "first": _minute(s.first),
            "last": _minute(s.last),
            "holes": len(s.holes),
            "missing": sum(hole["bars"] for hole in s.holes),
        }
        for s in state.series
    ]


def hole_lines(state: StoreState) -> list[str]:
    """Return every hole and every note of every series."""
    lines = []
    for s in state.series:
        lines += [
            f"{s.series}: {_minute(h['from'])} to {_minute(h['to'])} UTC, {counted(h['bars'], 'candle')}, {h['cause']}"
            for h in s.holes
        ]
        lines += s.notes
    return lines


def _minute(moment: str | None) -> str:
    return (moment or "")[:16].replace("T", " ")
