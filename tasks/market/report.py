"""The report of an ingestion: a record per series, as JSON and as a text table."""

from dataclasses import asdict, dataclass, field
from pathlib import Path

from schemas.errors import EXIT_COMPLETE, EXIT_PARTIAL, count
from schemas.identity import SeriesId
from tasks.market.holes import LACKING, LATE_AFTER, Holdings, Hole, OutageCalendar, find_holes
from tasks.market.klines import digest_and_zeros, provisional_rows
from tasks.market.layout import DAY, grid_of, text
from tasks.market.manifest import FileRecord

COMPLETE_SERIES, PARTIAL_SERIES, FAILED_SERIES = "complete", "partial", "failed"
PLANNED_SERIES = "planned"  # nothing was fetched


@dataclass
class SeriesReport:
    """The state of a series after a run; times are ISO 8601 in UTC, holes are `[from, to)`."""

    series: SeriesId
    rows: int = 0
    first: str | None = None
    last: str | None = None  # open time of the newest candle
    holes: list[dict] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)
    status: str = COMPLETE_SERIES
    reason: str = ""
    digest: str = ""
    zero_volume: int = 0
    off_grid: int = 0
    off_grid_times: list[str] = field(default_factory=list)
    odd_close: list[str] = field(default_factory=list)
    leaps: list[str] = field(default_factory=list)  # of the price level
    provisional: int = 0
    duplicates: int = 0
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict:
        """Return the report for `--json`, with the parts of the series' name as separate fields."""
        fields = asdict(self)
        return {name: fields["series"][name] for name in ("market", "symbol", "timeframe")} | {
            name: value for name, value in fields.items() if name != "series"
        }


@dataclass
class IngestReport:
    """The report of a run."""

    series: list[SeriesReport]
    requests: int = 0
    seconds: float = 0.0
    source: str = ""
    notes: list[str] = field(default_factory=list)
    market: str = "spot"

    @property
    def exit(self) -> int:
        """Exit code: 0 complete, 3 partial (good results kept)."""
        return (
            EXIT_COMPLETE
            if all(s.status in (COMPLETE_SERIES, PLANNED_SERIES) for s in self.series)
            else EXIT_PARTIAL
        )

    def to_dict(self) -> dict:
        """Return the output of `cpb ingest --json`."""
        return asdict(self) | {"series": [s.to_dict() for s in self.series], "exit": self.exit}


def describe(home: Path, holdings: Holdings, calendar: OutageCalendar, reason: str = "") -> SeriesReport:
    """Return the report of a series; `reason` is why the source could not be queried."""
    series, runs, grid = holdings.series, holdings.runs, grid_of(holdings.series.timeframe)
    last = grid.latest(holdings.last)
    records = [holdings.files[f.period] for f in holdings.wanted if f.period in holdings.files]
    confirmed = max((part.runs[-1][1] for part in holdings.parts if part.runs), default=0)
    holes = find_holes(holdings, calendar)
    report = SeriesReport(
        series,
        rows=sum(grid.count(a, b) for a, b in runs),
        holes=[{"from": text(h.start), "to": text(h.end), "bars": h.bars, "cause": h.cause} for h in holes],
        files={
            "ok": sum(r.status == "ok" for r in records),
            "repaired": sum(r.status == "repaired" for r in records),
            "quarantined": sum(r.status == "quarantined" for r in records),
            "unverified": sum(bool(r.facts.get("unverified")) for r in records),
            "missing": sum(r.status == "failed" for r in records) + len(holdings.wanted) - len(records),
        },
        off_grid_times=_times(holdings, "off-grid"),
        odd_close=_times(holdings, "odd close"),
        leaps=[f"× {factor:,.4g} at {_minute(text(at))}" for at, factor in holdings.leaps],
        provisional=provisional_rows(home, series, max(holdings.first, confirmed), last),
        duplicates=sum(r.facts.get("duplicates", 0) for r in records),
        notes=[f"{series} {r.period}: {note}" for r in records for note in _file_notes(r)],
    )
    report.off_grid = len(report.off_grid_times)
    if runs:
        report.first, report.last = text(runs[0][0]), text(grid.latest(runs[-1][1]))
        report.digest, report.zero_volume = digest_and_zeros(
            home, series, holdings.parts, holdings.first, last
        )
    _set_status(report, holdings, holes, reason)
    return report


def _times(holdings: Holdings, kind: str) -> list[str]:
    return [
        text(anomaly.open_time)
        for anomaly in holdings.anomalies
        if anomaly.kind == kind and holdings.first <= anomaly.open_time < holdings.last
    ]


def _file_notes(record: FileRecord) -> list[str]:
    unverified = ["unverified, no CHECKSUM published"] if record.facts.get("unverified") else []
    return [*filter(None, [record.reason]), *record.facts.get("notes", []), *unverified]


def _set_status(report: SeriesReport, holdings: Holdings, holes: list[Hole], reason: str) -> None:
    runs, last = holdings.runs, holdings.last
    floor = grid_of(holdings.series.timeframe).floor
    if runs and last < 1 << 61 and floor(last - LATE_AFTER, runs[0][0]) > runs[-1][1]:
        behind = (last - runs[-1][1]) // DAY
        report.notes.append(
            f"{holdings.series}: data ends {report.last}, {count(behind, 'day')} before the requested end"
        )
    lacking = [hole for hole in holes if hole.cause in LACKING]
    if not report.rows:
        report.status, report.reason = FAILED_SERIES, reason or "no candle in this time range"
    elif reason or lacking or report.leaps:
        causes = ", ".join(sorted({hole.cause for hole in lacking}))
        summary = (
            f"{count(sum(hole.bars for hole in lacking), 'candle')} lacking: {causes}" if lacking else ""
        )
        reasons = filter(None, (reason or summary, leap_sentence(report.leaps)))
        report.status, report.reason = PARTIAL_SERIES, "; ".join(reasons)


def leap_sentence(leaps: list[str]) -> str:
    """Return the sentence about leaps of the price level, empty if there is none."""
    more = f" and {len(leaps) - 3:,} more" if len(leaps) > 3 else ""
    return (
        f"the price level leaps {', '.join(leaps[:3])}{more}: another unit or coin, so nothing is computed across it; "
        "begin after it with --since to leave out what lies before"
        if leaps
        else ""
    )


def table(report: IngestReport) -> str:
    """Return the text summary: a line per series, then the reasons."""
    rows = [("series", "status", "candles", "first", "last", "holes", "missing")]
    for s in report.series:
        missing = sum(hole["bars"] for hole in s.holes)
        period = (_minute(s.first), _minute(s.last))
        rows.append((str(s.series), s.status, f"{s.rows:,}", *period, f"{len(s.holes):,}", f"{missing:,}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([*lines, *(f"  {s.series}: {s.reason}" for s in report.series if s.reason)])


def details(report: IngestReport) -> list[str]:
    """Return every hole, unusual candles and every note of every series."""
    lines = []
    for s in report.series:
        lines += [
            f"{s.series}: {_minute(h['from'])} to {_minute(h['to'])}, {count(h['bars'], 'candle')}, {h['cause']}"
            for h in s.holes
        ]
        unusual = {
            "in which nothing was traded": s.zero_volume,
            "off the grid, stored separately": s.off_grid,
            "with an odd close time": len(s.odd_close),
        }
        lines += [f"{s.series}: {count(n, 'candle')} {what}" for what, n in unusual.items() if n]
        lines += s.notes
    return lines


def _minute(moment: str | None) -> str:
    return (moment or "")[:16].replace("T", " ")
