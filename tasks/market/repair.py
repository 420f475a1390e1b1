"""Fills holes with candles of the daily files and then of REST, and fetches the newest candles.

Each hole is searched once; candles found in neither are recorded as confirmed absent until their file changes. If REST
was not available nothing is confirmed, and the next run searches again.

REST also has the newest candles (`--tail`). It is the last resort: it is refused in some countries (451) and bans
clients with too many requests (418). It is disabled for the rest of a run after one refusal or malformed reply.
"""

from collections.abc import Iterable

import polars as pl

from schemas.identity import MONTH, SeriesId
from tasks.market.checks import check, validate_klines
from tasks.market.client import HttpSource
from tasks.market.faults import NotFound, Rejected, SourceFault
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
from tasks.market.klines import write_parquet
from tasks.market.layout import DAY, SourceFile, day_of, grid_of, opening_days, period_bounds, text
from tasks.market.parser import Fetched, read, to_microseconds
from tasks.market.run import SEARCH_AGAIN, Run, batches, calendars, holdings_of, store_all
from tasks.market.writer import store_fetched, trim_all, with_stored_columns

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
        filled, queried = _from_rest(run, series, due) if left else ([], True)
        _explain(run, series, used, "daily files")
        _explain(run, series, filled, "days of REST")
        left = _still_missing(run, series, calendar[series.timeframe], holes) if filled else left
        confirmed = [(h.start, h.end, run.now) for h in left if h.cause != FAILED] if queried else []
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
    bad = store_fetched(run.home, run.manifest, series, fetched, "repaired") if fetched else []
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


PATHS = {"spot": "api/v3/klines", "um": "fapi/v1/klines", "cm": "dapi/v1/klines", "sim": "api/v3/klines"}
# candles per page; a day of minutes fits one page of futures
_PAGE = {"spot": 1000, "um": 1500, "cm": 1500, "sim": 1000}
_MAX_TAIL_DAYS = 40  # of provisional candles; older gaps are filled by files


_NAMES = {MONTH: "1M"}  # file names use 1mo: on case-insensitive disks 1M and 1m are the same name
NO_REST = "the source has no REST API"


def fetch_day(run: Run, series: SeriesId, day: str) -> Fetched | None:
    """Return a day of candles that ended before the run's end; None if REST has none or is not available."""
    file = SourceFile(series, "rest", day, f"rest/{series.symbol}/{series.timeframe}/{day}.json", "rest")
    if not available(run):
        return None
    try:
        rows = _ask(run, series, *period_bounds(day))
    except Rejected:
        return None
    except NotFound:
        run.rest_off = NO_REST
        return None
    except SourceFault as fault:
        run.rest_off = f"REST {fault}"
        run.notes.append(f"REST not available: {fault}")
        return None
    end = min(run.end, run.now + int(1e6 * min(0, getattr(run.source, "clock_ahead", None) or 0)))
    closed = [row for row in rows if grid_of(series.timeframe).end(to_microseconds(row[0])) <= end]
    csv = "".join(",".join(map(str, row)) + "\n" for row in closed)
    return Fetched(file, csv.encode(), "rest") if closed else None


def available(run: Run) -> bool:
    """Whether REST is available: only servers have it, until the first refusal."""
    return not run.rest_off and isinstance(run.source, HttpSource)


def was_asked(run: Run) -> bool:
    """Whether REST responded, or the source has no REST API: after a refusal its contents are unknown."""
    return not isinstance(run.source, HttpSource) or run.rest_off in ("", NO_REST)


def _ask(run: Run, series: SeriesId, start: int, end: int) -> list[list]:
    assert isinstance(run.source, HttpSource)
    rows: list[list] = []
    page_size = _PAGE[series.market]
    while start < end:
        query: dict[str, str | int] = {
            "symbol": series.symbol,
            "interval": _NAMES.get(series.timeframe, series.timeframe),
        }
        query |= {"startTime": start // 1000, "endTime": end // 1000 - 1, "limit": page_size}
        page = run.source.klines(PATHS[series.market], query)
        if any(not isinstance(row, list) or len(row) != 12 or type(row[0]) is not int for row in page):
            raise SourceFault("answered with something other than a list of candles")
        times = [to_microseconds(row[0]) for row in page]
        # also prevents an endless loop
        if times and not start <= min(times) <= max(times) < end:
            raise SourceFault("answered with candles outside the requested time range")
        rows += page
        if len(page) < page_size:
            break
        start = grid_of(series.timeframe).end(max(times))
    return rows


def refresh_tail(run: Run) -> None:
    """Fetch the closed candles after each series' last stored candle to `provisional/`, replacing the old tail."""
    for series in run.plans:
        parts = [p for p in run.manifest.parts(series).values() if p.runs]
        if not parts or not available(run):
            continue
        last = parts[-1].runs[-1][1]
        if run.end - last > _MAX_TAIL_DAYS * DAY:
            run.notes.append(f"{series}: files end {text(last)}, too long ago to fetch the tail from REST")
            continue
        fetched = [
            f
            for day in opening_days(grid_of(series.timeframe), last, run.end)
            if (f := fetch_day(run, series, day))
        ]
        rows = _clean(run, series, fetched).filter(pl.col("open_time").to_physical() >= last)
        path = series.folder(run.home, "provisional") / "tail.parquet"
        if rows.height:
            write_parquet(path, rows, {"cpb.provisional": f"REST, up to {day_of(run.end)}"})
        else:
            path.unlink(missing_ok=True)
    if run.rest_off:
        run.notes.append(f"no tail: {run.rest_off}; data ends with the newest file")


def _clean(run: Run, series: SeriesId, fetched: list[Fetched]) -> pl.DataFrame:
    """Parse and check REST candles like candles of a file."""
    blocks, _ = trim_all(fetched)
    run.notes += [f"{item.file}: {item.fault}" for item in fetched if item.fault]
    frame, faults = read(blocks)
    checked, more = check(series, blocks, frame) if blocks else (None, {})
    run.notes += [f"{blocks[index].file}: {fault}" for index, fault in (faults | more).items()]
    return validate_klines(with_stored_columns(checked.rows if checked else frame), series.timeframe)
