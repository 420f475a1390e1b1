"""Binance's REST candles: to fill holes that no file fills, and for the newest candles (`--tail`).

REST is the source of last resort: it is refused in some countries (451) and bans those who ask too often
(418). The first refusal ends it for the run.
"""

import polars as pl

from schemas.klines import KLINES, validate_klines
from schemas.universe import MONTH
from tasks.market.checks import check
from tasks.market.client import FolderSource
from tasks.market.faults import BadFile, NotFound, Rejected, SourceFault
from tasks.market.layout import DAY, SeriesKey, SourceFile, day_of, opening_days, period_bounds, text
from tasks.market.parser import Block, read, trim
from tasks.market.run import Run
from tasks.market.store import series_folder, write_parquet
from tasks.market.writer import Fetched

PATHS = {"spot": "api/v3/klines", "um": "fapi/v1/klines", "cm": "dapi/v1/klines"}
_PAGE = {
    "spot": 1000,
    "um": 1500,
    "cm": 1500,
}  # a day of minutes is one page of futures: cm's pages end at the end
_LONGEST_TAIL = 40  # days of provisional candles; an older gap is for the files to fill


_NAMES = {MONTH: "1M"}  # files call it 1mo: on some disks 1M and 1m are the same name
NO_REST = "the source has no REST"


def fetch_day(run: Run, series: SeriesKey, day: str) -> Fetched | None:
    """Return a day of candles that ended before the run's end; None where REST has none, or is not to be had."""
    file = SourceFile(series, "rest", day, f"rest/{series.symbol}/{series.interval}/{day}.json", "rest")
    if not available(run):
        return None
    try:
        rows = _ask(run, series, *period_bounds(day))
    except Rejected:
        return None
    except NotFound:
        run.rest_off = NO_REST
        return None
    except SourceFault as fault:  # whoever refuses or talks nonsense once is not asked again in this run
        run.rest_off = f"REST {fault}"
        run.notes.append(f"REST not available: {fault}")
        return None
    end = min(run.end, run.now + int(1e6 * min(0, getattr(run.source, "clock_ahead", None) or 0)))
    closed = [row for row in rows if series.grid.end(row[0] * _unit(row[0])) <= end]
    csv = "".join(",".join(map(str, row)) + "\n" for row in closed)
    return Fetched(file, csv.encode(), "rest") if closed else None


def available(run: Run) -> bool:
    """Tell whether REST may be asked: only servers have it, and only until they refuse."""
    return not run.rest_off and not isinstance(run.source, FolderSource)


def was_asked(run: Run) -> bool:
    """Tell whether REST has said all it could: where it refused, what it has is not known."""
    return isinstance(run.source, FolderSource) or run.rest_off in ("", NO_REST)


def _unit(time: int) -> int:
    return 1 if time >= 10**14 else 1000


def _ask(run: Run, series: SeriesKey, start: int, end: int) -> list[list]:
    assert not isinstance(run.source, FolderSource)
    rows: list[list] = []
    most = _PAGE[series.market]
    while start < end:
        query: dict[str, str | int] = {
            "symbol": series.symbol,
            "interval": _NAMES.get(series.interval, series.interval),
        }
        query |= {"startTime": start // 1000, "endTime": end // 1000 - 1, "limit": most}
        page = run.source.klines(PATHS[series.market], query)
        if any(not isinstance(row, list) or len(row) != 12 or type(row[0]) is not int for row in page):
            raise SourceFault("answered something that is not a list of candles")
        times = [row[0] * _unit(row[0]) for row in page]
        if times and not start <= min(times) <= max(times) < end:  # nor would the loop ever end
            raise SourceFault("answered candles of another time than asked for")
        rows += page
        if len(page) < most:
            break
        start = series.grid.end(max(times))
    return rows


def refresh_tail(run: Run) -> None:
    """Fetch the closed candles after each series' last stored one into `provisional/`, replacing the old tail."""
    for series in run.plans:
        parts = [p for p in run.manifest.parts(series).values() if p.runs]
        if not parts or not available(run):
            continue
        last = parts[-1].runs[-1][1]
        if run.end - last > _LONGEST_TAIL * DAY:
            run.notes.append(f"{series}: files end {text(last)}, too long ago for a tail")
            continue
        fetched = [
            f for day in opening_days(series.grid, last, run.end) if (f := fetch_day(run, series, day))
        ]
        rows = _clean(run, series, fetched).filter(pl.col("open_time").to_physical() >= last)
        path = series_folder(run.home, series, "provisional") / "tail.parquet"
        if rows.height:
            write_parquet(path, rows, {"cpb.provisional": f"REST, up to {day_of(run.end)}"})
        else:
            path.unlink(missing_ok=True)
    if run.rest_off:
        run.notes.append(f"no tail: {run.rest_off}; data ends with the newest file")


def _clean(run: Run, series: SeriesKey, fetched: list[Fetched]) -> pl.DataFrame:
    """Parse and check REST candles like those of a file."""
    blocks: list[Block] = []
    for item in fetched:
        try:
            blocks.append(trim(item.file, item.csv))
        except BadFile as fault:
            run.notes.append(f"{item.file}: {fault}")
    frame, faults = read(blocks)
    checked, more = check(series, blocks, frame) if blocks else (None, {})
    run.notes += [f"{blocks[index].file}: {fault}" for index, fault in (faults | more).items()]
    rows = checked.rows if checked else frame
    clean = rows.select(pl.col("open_time").cast(KLINES["open_time"]), *list(KLINES)[1:])
    return validate_klines(clean)
