"""Fills holes with candles of the daily files and then of REST, and fetches the newest candles.

Holes filled by neither are searched again after a week, or when their file changes; if REST was not available, by the
next run.

REST also has the newest candles (`--tail`). It is the last resort: it is refused in some countries (451) and bans
clients with too many requests (418). It is disabled for the rest of a run after one refusal or malformed reply.
"""

from collections import Counter
from typing import TYPE_CHECKING, Any

import polars as pl

from schemas.coins import MONTH
from schemas.identity import SeriesId
from tasks.market.client import HttpSource, NotFound, Rejected, SourceFault
from tasks.market.klines import write_parquet
from tasks.market.layout import DAY, SourceFile, grid_of, opening_days, period_bounds, utc_text
from tasks.market.parser import check, read, to_microseconds, validate_klines
from tasks.market.report import FAILED, Hole, OutageCalendar, find_holes
from tasks.market.sources import Fetched
from tasks.market.writer import store_all, store_fetched, trim_all, with_stored_columns

if TYPE_CHECKING:
    from tasks.market.ingest import Run

_MAX_REST_DAYS = 400  # per run: a request each, and Binance bans clients with too many requests

PATHS = {"spot": "api/v3/klines", "um": "fapi/v1/klines", "cm": "dapi/v1/klines", "sim": "api/v3/klines"}
# candles per page; a day of minutes fits one page of futures
_PAGE = {"spot": 1000, "um": 1500, "cm": 1500, "sim": 1000}
_MAX_TAIL_DAYS = 40  # of provisional candles; older gaps are filled by files
_NAMES = {MONTH: "1M"}  # file names use 1mo: on case-insensitive disks 1M and 1m are the same name
NO_REST = "the source has no REST API"


def fill(run: "Run", series: SeriesId, outages: OutageCalendar, holes: list[Hole], wrong: set[str]) -> None:
    """Search daily files and REST for the suspicious holes of a series, and record unfilled holes.

    `wrong`: days whose candles in the monthly files are replaced by those of their daily files.
    """
    try:
        used = _from_daily_files(run, series, sorted({*_days(series, holes), *wrong}))
    except SourceFault as fault:
        run.notes.append(f"{series}: daily files could not be listed: {fault}")
        return
    _note_use(run, series, used, "daily files")
    if not (left := _still_missing(run, series, outages, holes)):
        return
    filled, complete = _from_rest(run, series, _days(series, left))
    _note_use(run, series, filled, "days of REST")
    if filled:
        left = _still_missing(run, series, outages, holes)
    if complete:
        run.manifest.save_searched(
            series, [(hole.start, hole.end, run.now) for hole in left if hole.cause != FAILED]
        )


def _days(series: SeriesId, holes: list[Hole]) -> list[str]:
    grid = grid_of(series.timeframe)
    return sorted({day for hole in holes for day in opening_days(grid, hole.start, hole.end)})


def _from_daily_files(run: "Run", series: SeriesId, wanted: list[str]) -> list[str]:
    """Store the daily files published for these days; return the days stored without fault."""
    records = run.manifest.files(series)

    def is_due(file: SourceFile) -> bool:
        record = records.get(file.period)
        return record is None or record.version != file.version or record.status == "failed"

    listed = run.catalogue.files(series, "daily", period_bounds(wanted[0])[0], period_bounds(wanted[-1])[1])
    files = [file for file in listed if file.period in wanted and is_due(file)]
    bad = store_all(run, [(series, files)], "repaired")
    return [file.period for file in files if file not in bad]


def _from_rest(run: "Run", series: SeriesId, wanted: list[str]) -> tuple[list[str], bool]:
    """Store REST's candles of these days; return the days stored, and whether no more can be expected of REST.

    After a refusal its contents are unknown.
    """
    if not isinstance(run.source, HttpSource):
        return [], True
    if len(wanted) > _MAX_REST_DAYS:
        return [], False
    fetched = [item for day in wanted if (item := _fetch_day(run, series, day))]
    bad = store_fetched(run.home, run.manifest, series, fetched, "repaired") if fetched else []
    stored = [item.file.period for item in fetched if item.file not in bad]
    return stored, run.rest_off in ("", NO_REST) and not bad


def _still_missing(run: "Run", series: SeriesId, outages: OutageCalendar, holes: list[Hole]) -> list[Hole]:
    now = find_holes(run.holdings(series), outages)
    return [h for h in now if any(h.start < old.end and h.end > old.start for old in holes)]


def _note_use(run: "Run", series: SeriesId, used: list[str], what: str) -> None:
    for month, count in Counter(day[:7] for day in used).items():
        run.notes.append(f"{series} {month}: used {count} {what}")


def _fetch_day(run: "Run", series: SeriesId, day: str) -> Fetched | None:
    """Return a day of candles that ended before the run's end; None if REST has none or is not available.

    Only servers have REST, until the first refusal.
    """
    if run.rest_off or not isinstance(run.source, HttpSource):
        return None
    try:
        rows = _ask(run.source, series, *period_bounds(day))
    except Rejected:
        return None
    except NotFound:
        run.rest_off = NO_REST
        return None
    except SourceFault as fault:
        run.rest_off = f"REST {fault}"
        run.notes.append(f"REST not available: {fault}")
        return None
    end = min(run.end, run.now + int(1e6 * min(0, run.source.clock_ahead or 0)))
    closed = [row for row in rows if grid_of(series.timeframe).end(to_microseconds(row[0])) <= end]
    csv = "".join(",".join(map(str, row)) + "\n" for row in closed)
    file = SourceFile(series, "rest", day, f"rest/{series.symbol}/{series.timeframe}/{day}.json", "rest")
    return Fetched(file, csv.encode(), "rest") if closed else None


def _ask(source: HttpSource, series: SeriesId, start: int, end: int) -> list[list[Any]]:
    rows: list[list[Any]] = []
    page_size = _PAGE[series.market]
    while start < end:
        query: dict[str, str | int] = {
            "symbol": series.symbol,
            "interval": _NAMES.get(series.timeframe, series.timeframe),
        }
        query |= {"startTime": start // 1000, "endTime": end // 1000 - 1, "limit": page_size}
        page = source.klines(PATHS[series.market], query)
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


def refresh_tail(run: "Run") -> None:
    """Fetch the closed candles after each series' last stored candle to `provisional/`, replacing the old tail."""
    if not isinstance(run.source, HttpSource):
        run.notes.append(f"no tail: {run.source.name} has no REST API")
        return
    for series in run.plans:
        parts = [p for p in run.manifest.parts(series).values() if p.runs]
        if not parts or run.rest_off:
            continue
        last = parts[-1].runs[-1][1]
        if run.end - last > _MAX_TAIL_DAYS * DAY:
            run.notes.append(
                f"{series}: files end {utc_text(last)}, too long ago to fetch the tail from REST"
            )
            continue
        fetched = [
            f
            for day in opening_days(grid_of(series.timeframe), last, run.end)
            if (f := _fetch_day(run, series, day))
        ]
        rows = _clean(run, series, fetched).filter(pl.col("open_time").to_physical() >= last)
        path = series.folder(run.home, "provisional") / "tail.parquet"
        if rows.height:
            write_parquet(path, rows)
        else:
            path.unlink(missing_ok=True)
    if run.rest_off:
        run.notes.append(f"no tail: {run.rest_off}; data ends with the newest file")


def _clean(run: "Run", series: SeriesId, fetched: list[Fetched]) -> pl.DataFrame:
    """Parse and check REST candles like candles of a file."""
    arrived = trim_all(fetched)
    run.notes += [f"{item.file}: {item.fault}" for item in fetched if item.fault]
    frame, faults = read(arrived)
    checked, more = check(series, arrived, frame)
    run.notes += [f"{arrived[index].file}: {fault}" for index, fault in (faults | more).items()]
    return validate_klines(with_stored_columns(checked.rows), series.timeframe)
