"""Fills holes with candles of the daily files and then of REST.

Holes filled by neither are searched again after a week, or when their file changes; if REST was not available, by the
next run.
"""

from collections import Counter

import numpy as np

from schemas.identity import SPOT, SeriesId
from tasks.market.client import HttpSource, SourceFault
from tasks.market.holes import FAILED, LACKING, OUTAGE, Hole, OutageCalendar, find_holes
from tasks.market.ingestion import Ingestion
from tasks.market.layout import DAY, SourceFile, grid_of, opening_days, period_bounds
from tasks.market.rest import NO_REST, fetch_day
from tasks.market.writer import store_all, store_days

_MAX_REST_DAYS = 400  # per run: a request each, and Binance bans clients with too many requests
_SEARCH_AGAIN = 7 * DAY  # missing candles are searched again after a week: files are published late

WRONG_DAYS = ("2020-12-21", "2021-09-29")
"""The monthly 15m and 1h files are wrong on these days; daily files and REST agree (binance-public-data#475)."""


def fill_holes(ingestion: Ingestion) -> None:
    """Search other files and REST for the candles that the run's series lack, and store what is found."""
    # once for all series, before the first repair: the outages are those of the published files
    holdings, calendar = ingestion.calendars()
    for series in (series for series, plan in ingestion.plans.items() if not plan.fault):
        outages = calendar[series.timeframe]
        recent = [
            (a, b)
            for a, b, when in ingestion.manifest.searched(series)
            if ingestion.now - when < _SEARCH_AGAIN
        ]
        holes = [
            hole
            for hole in find_holes(holdings[series], outages)
            if _is_suspicious(hole, outages) and not any(a <= hole.start and hole.end <= b for a, b in recent)
        ]
        wrong: set[str] = set()
        # only after their month was fetched anew: the repaired days are on record, and stay
        if series.market == SPOT and series.timeframe in ("15m", "1h"):
            fetched = {file.period for file in ingestion.plans[series].fetch}
            wrong = {day for day in WRONG_DAYS if day[:7] in fetched}
        if holes or wrong:
            _fill(ingestion, series, outages, holes, wrong)


def _is_suspicious(hole: Hole, outages: OutageCalendar) -> bool:
    """Whether the source should have the candles, or an outage is confirmed by no second symbol."""
    alone = hole.cause == OUTAGE and outages.silent(np.array([hole.start]))[0] == 1
    return hole.cause in LACKING or bool(alone)


def _fill(
    ingestion: Ingestion, series: SeriesId, outages: OutageCalendar, holes: list[Hole], wrong: set[str]
) -> None:
    """Search daily files and REST for the suspicious holes of a series, and record unfilled holes.

    `wrong`: days whose candles in the monthly files are replaced by those of their daily files.
    """
    try:
        used = _from_daily_files(ingestion, series, sorted({*_days(series, holes), *wrong}))
    except SourceFault as fault:
        ingestion.notes.append(f"{series}: daily files could not be listed: {fault}")
        return
    _note_use(ingestion, series, used, "daily files")
    if not (left := _still_missing(ingestion, series, outages, holes)):
        return
    filled, complete = _from_rest(ingestion, series, _days(series, left))
    _note_use(ingestion, series, filled, "days of REST")
    if filled:
        left = _still_missing(ingestion, series, outages, holes)
    # searched without result: not again for a week, unless REST could not be asked to the end
    if complete:
        ingestion.manifest.save_searched(
            series, [(hole.start, hole.end, ingestion.now) for hole in left if hole.cause != FAILED]
        )


def _days(series: SeriesId, holes: list[Hole]) -> list[str]:
    grid = grid_of(series.timeframe)
    return sorted({day for hole in holes for day in opening_days(grid, hole.start, hole.end)})


def _from_daily_files(ingestion: Ingestion, series: SeriesId, wanted: list[str]) -> list[str]:
    """Store the daily files published for these days; return the days stored without fault."""
    records = ingestion.manifest.files(series)

    def is_due(file: SourceFile) -> bool:
        record = records.get(file.period)
        # a daily file that was stored without fault holds nothing more: its candles are in the store
        return record is None or record.version != file.version or record.status == "failed"

    listed = ingestion.catalogue.files(
        series, "daily", period_bounds(wanted[0])[0], period_bounds(wanted[-1])[1]
    )
    files = [file for file in listed if file.period in wanted and is_due(file)]
    bad = store_all(ingestion, [(series, files)], "repaired")
    return [file.period for file in files if file not in bad]


def _from_rest(ingestion: Ingestion, series: SeriesId, wanted: list[str]) -> tuple[list[str], bool]:
    """Store REST's candles of these days; return the days stored, and whether no more can be expected of REST.

    After a refusal its contents are unknown.
    """
    if not isinstance(ingestion.source, HttpSource):
        return [], True
    # too many to ask: the holes stay open, and are not recorded as searched
    if len(wanted) > _MAX_REST_DAYS:
        return [], False
    fetched = [item for day in wanted if (item := fetch_day(ingestion, series, day))]
    bad = store_days(ingestion, series, fetched) if fetched else []
    stored = [item.file.period for item in fetched if item.file not in bad]
    return stored, ingestion.rest_off in ("", NO_REST) and not bad


def _still_missing(
    ingestion: Ingestion, series: SeriesId, outages: OutageCalendar, holes: list[Hole]
) -> list[Hole]:
    now = find_holes(ingestion.holdings(series), outages)
    return [h for h in now if any(h.start < old.end and h.end > old.start for old in holes)]


def _note_use(ingestion: Ingestion, series: SeriesId, used: list[str], what: str) -> None:
    for month, count in Counter(day[:7] for day in used).items():
        ingestion.notes.append(f"{series} {month}: used {count} {what}")
