"""Candles of the exchange's REST API: a day of a hole, and the newest, which no file has yet (`--tail`).

REST is the last resort: it is refused in some countries (451) and bans clients with too many requests (418). It is
disabled for the rest of a run after one refusal or malformed reply.
"""

from typing import Any

import polars as pl

from cpbmodels.data.series import instant
from schemas.coins import MONTH
from schemas.errors import MINUTE
from schemas.identity import SeriesId
from tasks.market.client import HttpSource, NotFound, Rejected, SourceFault
from tasks.market.fetch import Fetched
from tasks.market.ingestion import Ingestion
from tasks.market.klines import write_parquet
from tasks.market.layout import DAY, SourceFile, grid_of, opening_days, period_bounds
from tasks.market.parser import check, read, to_microseconds, validate_klines
from tasks.market.writer import trim_all, with_stored_columns

PATHS = {"spot": "api/v3/klines", "um": "fapi/v1/klines", "cm": "dapi/v1/klines", "sim": "api/v3/klines"}
# candles per page; a day of minutes fits one page of futures
_PAGE = {"spot": 1000, "um": 1500, "cm": 1500, "sim": 1000}
_MAX_TAIL_DAYS = 40  # of provisional candles; older gaps are filled by files
_NAMES = {MONTH: "1M"}  # file names use 1mo: on case-insensitive disks 1M and 1m are the same name
NO_REST = "the source has no REST API"


def fetch_day(ingestion: Ingestion, series: SeriesId, day: str) -> Fetched | None:
    """Return a day of candles that ended before the run's end; None if REST has none or is not available.

    Only servers have REST, until the first refusal.
    """
    if ingestion.rest_off or not isinstance(ingestion.source, HttpSource):
        return None
    try:
        rows = _ask(ingestion.source, series, *period_bounds(day))
    # of this series alone, as for a delisted pair: REST stays on for the others
    except Rejected:
        return None
    except NotFound:
        ingestion.rest_off = NO_REST
        return None
    except SourceFault as fault:
        ingestion.rest_off = f"REST {fault}"
        ingestion.notes.append(f"REST not available: {fault}")
        return None
    # a local clock ahead of the exchange's would take an open candle for a closed one
    end = min(ingestion.end, ingestion.now + int(1e6 * min(0, ingestion.source.clock_ahead or 0)))
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
        # a full page: the next begins behind its last candle
        start = grid_of(series.timeframe).end(max(times))
    return rows


def refresh_tail(ingestion: Ingestion) -> None:
    """Fetch the closed candles after each series' last stored candle to `provisional/`, replacing the old tail."""
    if not isinstance(ingestion.source, HttpSource):
        ingestion.notes.append(f"no tail: {ingestion.source.name} has no REST API")
        return
    for series in ingestion.plans:
        parts = [p for p in ingestion.manifest.parts(series).values() if p.runs]
        if not parts or ingestion.rest_off:
            continue
        last = parts[-1].runs[-1][1]
        if ingestion.end - last > _MAX_TAIL_DAYS * DAY:
            ingestion.notes.append(
                f"{series}: files end {instant(last):{MINUTE}} UTC, too long ago to fetch the tail from REST"
            )
            continue
        fetched = [
            f
            for day in opening_days(grid_of(series.timeframe), last, ingestion.end)
            if (f := fetch_day(ingestion, series, day))
        ]
        # a day begins before the last stored candle: what the files have is not provisional
        rows = _clean(ingestion, series, fetched).filter(pl.col("open_time").to_physical() >= last)
        path = series.folder(ingestion.home, "provisional") / "tail.parquet"
        if rows.height:
            write_parquet(path, rows)
        else:
            path.unlink(missing_ok=True)
    if ingestion.rest_off:
        ingestion.notes.append(f"no tail: {ingestion.rest_off}; data ends with the newest file")


def _clean(ingestion: Ingestion, series: SeriesId, fetched: list[Fetched]) -> pl.DataFrame:
    """Parse and check REST candles like candles of a file."""
    arrived = trim_all(fetched)
    ingestion.notes += [f"{item.file}: {item.fault}" for item in fetched if item.fault]
    frame, faults = read(arrived)
    checked, more = check(series, arrived, frame)
    ingestion.notes += [f"{arrived[index].file}: {fault}" for index, fault in (faults | more).items()]
    return validate_klines(with_stored_columns(checked.rows), series.timeframe)
