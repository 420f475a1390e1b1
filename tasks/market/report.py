"""The report of an ingestion: a record per series, as JSON and as a text table."""

from dataclasses import asdict, dataclass, field
from pathlib import Path

from schemas.errors import EXIT_COMPLETE, EXIT_PARTIAL, count
from schemas.identity import SeriesId
from tasks.market.holes import LACKING, LATE_AFTER, Holdings, Hole, OutageCalendar, find_holes
from tasks.market.klines import digest_and_zeros, provisional_rows
from tasks.market.layout import DAY, grid_of, text

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
    series = holdings.series
    report = SeriesReport(series)
    runs = holdings.runs
    report.rows = sum(grid_of(series.timeframe).count(a, b) for a, b in runs)
    if runs:
        report.first, report.last = text(runs[0][0]), text(grid_of(series.timeframe).latest(runs[-1][1]))
        last = grid_of(series.timeframe).latest(holdings.last)
        report.digest, report.zero_volume = digest_and_zeros(
            home, series, holdings.parts, holdings.first, last
        )
    holes = find_holes(holdings, calendar)
    report.holes = [
        {"from": text(h.start), "to": text(h.end), "bars": h.bars, "cause": h.cause} for h in holes
    ]
    _count_files(report, holdings)
    _add_anomalies(report, home, holdings)
    _set_status(report, holdings, holes, reason)
    return report


def _count_files(report: SeriesReport, holdings: Holdings) -> None:
    records = [holdings.files[f.period] for f in holdings.wanted if f.period in holdings.files]
    report.files = {
        "ok": sum(r.status == "ok" for r in records),
        "repaired": sum(r.status == "repaired" for r in records),
        "quarantined": sum(r.status == "quarantined" for r in records),
        "unverified": sum(bool(r.facts.get("unverified")) for r in records),
        "missing": sum(r.status == "failed" for r in records) + len(holdings.wanted) - len(records),
    }
    report.duplicates = sum(r.facts.get("duplicates", 0) for r in records)
    for record in records:
        if record.reason:
            report.notes.append(f"{holdings.series} {record.period}: {record.reason}")
        report.notes += [
            f"{holdings.series} {record.period}: {note}" for note in record.facts.get("notes", [])
        ]
        if record.facts.get("unverified"):
            report.notes.append(f"{holdings.series} {record.period}: unverified, no CHECKSUM published")


def _add_anomalies(report: SeriesReport, home: Path, holdings: Holdings) -> None:
    last = grid_of(holdings.series.timeframe).latest(holdings.last)
    seen = [o for o in holdings.anomalies if holdings.first <= o.open_time < holdings.last]
    report.off_grid_times = [text(o.open_time) for o in seen if o.kind == "off-grid"]
    report.off_grid = len(report.off_grid_times)
    report.odd_close = [text(o.open_time) for o in seen if o.kind == "odd close"]
    confirmed = max((part.runs[-1][1] for part in holdings.parts if part.runs), default=0)
    report.provisional = provisional_rows(home, holdings.series, max(holdings.first, confirmed), last)
    report.leaps = [f"× {factor:,.4g} at {_minute(text(at))}" for at, factor in holdings.leaps]


def _set_status(report: SeriesReport, holdings: Holdings, holes: list[Hole], reason: str) -> None:
    lacking = [h for h in holes if h.cause in LACKING]
    report.notes += [
        f"{holdings.series}: {count(h.bars, 'candle')} from {text(h.start)} on missing ({h.cause})"
        for h in lacking
    ]
    runs, last = holdings.runs, holdings.last
    if (
        runs
        and last < 1 << 61
        and grid_of(holdings.series.timeframe).floor(last - LATE_AFTER, runs[0][0]) > runs[-1][1]
    ):
        behind = (last - runs[-1][1]) // DAY
        report.notes.append(
            f"{holdings.series}: data ends {report.last}, {count(behind, 'day')} before the requested end"
        )
    if not report.rows:
        report.status, report.reason = FAILED_SERIES, reason or "no candle in this time range"
    elif reason or lacking or report.leaps:
        causes = ", ".join(sorted({h.cause for h in lacking}))
        summary = f"{count(sum(h.bars for h in lacking), 'candle')} lacking: {causes}" if lacking else ""
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
    """Return the text summary: a line per series, explanatory sentences, and the meaning of the rare columns."""
    rows = [_row(s) for s in report.series]
    rare = [name for name in _RARE if any(row[name] != "0" for row in rows)]
    names = [*(name for name in (rows[0] if rows else ()) if name not in _RARE), *rare]
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in names}
    lines = ["  ".join(_aligned(name, name, widths) for name in names).rstrip()]
    lines += ["  ".join(_aligned(name, row[name], widths) for name in names).rstrip() for row in rows]
    lines += [f"  {s.series}: {s.reason}" for s in report.series if s.reason]
    lines += [f"  {name}: {_RARE[name]}" for name in rare]
    return "\n".join(lines)


_TEXTS = ("series", "status", "first", "last")
_RARE = {
    "zero": "candles in which nothing was traded",
    "offgrid": "candles that do not begin on the timeframe's grid; stored separately",
    "odd": "candles with an odd close time",
    "unverified": "files without a published CHECKSUM",
    "quarantined": "files that failed their checks; `HOME/quarantine` has them and the reasons",
}
"""Columns shown only if any value is not 0, with their meaning."""


def _aligned(name: str, text: str, widths: dict[str, int]) -> str:
    return text.ljust(widths[name]) if name in _TEXTS else text.rjust(widths[name])


def _row(s: SeriesReport) -> dict[str, str]:
    missing = sum(hole["bars"] for hole in s.holes)
    return {
        "series": str(s.series), "status": s.status, "candles": f"{s.rows:,}", "first": _minute(s.first),
        "last": _minute(s.last), "holes": f"{len(s.holes):,}", "missing": f"{missing:,}", "zero": f"{s.zero_volume:,}",
        "offgrid": f"{s.off_grid:,}", "odd": f"{len(s.odd_close):,}",
        "unverified": f"{s.files.get('unverified', 0):,}", "quarantined": f"{s.files.get('quarantined', 0):,}",
    }  # fmt: skip


def details(report: IngestReport) -> list[str]:
    """Return every hole and note of every series."""
    lines = []
    for s in report.series:
        name = str(s.series)
        lines += [
            f"{name}: {_minute(h['from'])} to {_minute(h['to'])}, {count(h['bars'], 'candle')}, {h['cause']}"
            for h in s.holes
        ]
        if s.off_grid:
            lines.append(
                f"{name}: {count(s.off_grid, 'off-grid candle')} from {_minute(s.off_grid_times[0])}, stored separately"
            )
        if s.odd_close:
            lines.append(
                f"{name}: {count(len(s.odd_close), 'candle')} with an odd close time, first {_minute(s.odd_close[0])}"
            )
        lines += s.notes
    return lines


def _minute(moment: str | None) -> str:
    return (moment or "")[:16].replace("T", " ")
