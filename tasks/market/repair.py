"""Fills holes: candles missing or damaged in a file are searched in the daily files, then in REST.

Each hole is searched once; candles found in neither are recorded as confirmed absent until their file changes. If REST
was not available nothing is confirmed, and the next run searches again.
"""

from collections.abc import Iterable

from schemas.identity import SeriesId
from tasks.market.faults import SourceFault
from tasks.market.grid import grid_of
from tasks.market.holes import (
    ABSENT,
    CONFLICT,
    ENDED,
    FAILED,
    OUTAGE,
    QUARANTINED,
    Hole,
    OutageCalendar,
    find_holes,
)
from tasks.market.layout import SourceFile, opening_days, period_bounds
from tasks.market.rest import available, fetch_day, was_asked
from tasks.market.run import SEARCH_AGAIN, Run, calendars, holdings_of
from tasks.market.transfer import batches, store_all
from tasks.market.writer import store_batch

WRONG_DAYS = ("2020-12-21", "2021-09-29")
"""The monthly 15m and 1h files are wrong on these days; daily files and REST agree (binance-public-data#475)."""

_MAX_REST_DAYS = 400  # per run: a request each, and Binance bans clients with too many requests
_SUSPICIOUS = (ABSENT, QUARANTINED, FAILED, CONFLICT, ENDED)  # a truncated file looks like the end of trading


def repair(run: Run) -> None:
    """Search other files and REST for the suspicious holes of every planned series, and record unfilled holes."""
    mine, calendar = calendars(run)
    for series, holdings in mine.items():
        holes = [
            h
            for h in find_holes(holdings, calendar[series.timeframe])
            if _is_worth_searching(run, series, h, calendar)
        ]
        wrong = _wrong_days(run, series)
        if not holes and not wrong:
            continue
        wanted = {day for h in holes for day in opening_days(grid_of(series.timeframe), h.start, h.end)}
        try:
            used = _from_daily_files(run, series, sorted(wanted | wrong))
        except SourceFault as fault:
            run.notes.append(f"{series}: daily files could not be listed: {fault}")
            continue  # nothing is confirmed absent
        left = _still_missing(run, series, calendar[series.timeframe], holes)
        due = sorted({day for h in left for day in opening_days(grid_of(series.timeframe), h.start, h.end)})
        filled, asked = _from_rest(run, series, due) if left else ([], True)
        _explain(run, series, used, "daily files")
        _explain(run, series, filled, "days of REST")
        left = _still_missing(run, series, calendar[series.timeframe], holes) if filled else left
        confirmed = [(h.start, h.end, run.now) for h in left if h.cause != FAILED] if asked else []
        if confirmed:
            run.manifest.save_searched(series, confirmed)


def _is_worth_searching(run: Run, series: SeriesId, hole: Hole, calendar: dict[str, OutageCalendar]) -> bool:
    recent = [(a, b) for a, b, when in run.manifest.searched(series) if run.now - when < SEARCH_AGAIN]
    searched = any(a <= hole.start and hole.end <= b for a, b in recent)
    if searched or run.plans[series].fault:
        return False
    return hole.cause in _SUSPICIOUS or (
        hole.cause == OUTAGE and calendar[series.timeframe].is_only_witness(hole.start)
    )


def _wrong_days(run: Run, series: SeriesId) -> set[str]:
    """Return the known wrong days in the months fetched by this run."""
    if series.market != "spot" or series.timeframe not in ("15m", "1h"):
        return set()
    fetched = {file.period for file in run.plans[series].fetch}
    return {day for day in WRONG_DAYS if day[:7] in fetched}


def _from_daily_files(run: Run, series: SeriesId, wanted: list[str]) -> list[str]:
    """Store the daily files published for these days; return the days stored without fault."""
    start, end = period_bounds(wanted[0])[0], period_bounds(wanted[-1])[1]
    listed, days = run.catalogue.files(series, "daily", start, end), set(wanted)
    known = {p: r for p, r in run.manifest.files(series).items() if len(p) == 10}
    files = [f for f in listed if f.period in days and not _seen(f, known)]
    bad = store_all(run, [batches(series, files)], "repaired")
    return [f.period for f in files if f not in bad]


def _seen(file: SourceFile, known: dict) -> bool:
    record = known.get(file.period)
    return record is not None and record.version == file.version and record.status != "failed"


def _from_rest(run: Run, series: SeriesId, wanted: list[str]) -> tuple[list[str], bool]:
    """Store REST's candles of these days; return the days stored, and whether all days could be requested."""
    if not available(run):
        return [], was_asked(run)
    if len(wanted) > _MAX_REST_DAYS:
        return [], False
    fetched = [item for day in wanted if (item := fetch_day(run, series, day))]
    bad = store_batch(run.home, run.manifest, series, fetched, "repaired").bad if fetched else []
    return [item.file.period for item in fetched if item.file not in bad], was_asked(run) and not bad


def _still_missing(run: Run, series: SeriesId, calendar: OutageCalendar, holes: list[Hole]) -> list[Hole]:
    now = find_holes(holdings_of(run, series), calendar)
    return [h for h in now if any(h.start < old.end and h.end > old.start for old in holes)]


def _explain(run: Run, series: SeriesId, used: Iterable[str], what: str) -> None:
    """Add to the reason of each quarantined month the number of files used in its place."""
    records = run.manifest.files(series)
    for month in sorted({day[:7] for day in used}):
        count = sum(day.startswith(month) for day in used)
        note = f"used {count} {what}"
        run.notes.append(f"{series} {month}: {note}")
        if month in records and records[month].reason:
            records[month].reason += f"; {note}"
            run.manifest.save(series, [records[month]])
