"""Which published files an ingestion needs, and which of them it has to fetch.

Monthly files are fetched where published, daily files elsewhere, and no period twice.
"""

import time
from collections.abc import Collection, Iterator
from pathlib import Path

from schemas.identity import SeriesId
from tasks.market.client import SourceFault, Unreachable
from tasks.market.ingestion import FilePlan, Ingestion
from tasks.market.klines import damage_of, part_path
from tasks.market.layout import (
    SourceFile,
    month_of,
    months,
    period_bounds,
)
from tasks.market.listing import Catalogue, unreachable
from tasks.market.manifest import FileRecord, Part
from tasks.market.writer import forget_damaged

_RETRY_QUARANTINED = 7 * 86_400  # seconds
_DAILY_ONLY = {"1s"}  # if daily files are published: a month of 1s candles is 350 MB of text


def plan_files(ingestion: Ingestion, *, checks_stored: bool) -> Iterator[FilePlan]:
    """Yield the plan of each series of the run, which keeps it too; listings are requested ahead.

    `checks_stored`: what is stored is read, so that damaged months of the time range are fetched again.

    Raises:
        CpbError: (code `unreachable`) the source cannot be reached.
    """
    stored = [set(ingestion.manifest.files(series)) for series in ingestion.scope.series]

    def list_files(series: SeriesId, stored: set[str]) -> FilePlan:
        try:
            return FilePlan(
                series, _wanted_files(ingestion.catalogue, series, ingestion.start, ingestion.end, stored)
            )
        except SourceFault as fault:
            return FilePlan(series, fault=fault)

    for plan in ingestion.pool.map(list_files, ingestion.scope.series, stored):
        series = plan.series
        if isinstance(plan.fault, Unreachable) and not any(p.wanted for p in ingestion.plans.values()):
            raise unreachable(ingestion.source, plan.fault)
        if checks_stored:  # damaged months of the time range are to be fetched
            for path in series.folder(ingestion.home, "offgrid").glob("????-??.parquet"):
                if damage_of(path):
                    path.unlink()
                    ingestion.manifest.forget(series, path.stem, "its off-grid candles were damaged")
            ingestion.notes += forget_damaged(ingestion, series, months(ingestion.start, ingestion.end))
        records, parts = ingestion.manifest.files(series), ingestion.manifest.parts(series)
        plan.fetch = [
            file
            for file in plan.wanted
            if _is_due(ingestion.home, file, records.get(file.period), parts.get(file.period[:7]))
        ]
        ingestion.plans[series] = plan
        yield plan


def _wanted_files(
    catalogue: Catalogue, series: SeriesId, start: int, end: int, stored: Collection[str]
) -> list[SourceFile]:
    """Return the published files that best cover `[start, end)`, oldest first; `stored` are recorded periods.

    Raises:
        SourceFault: the source cannot be queried.
    """
    if series.timeframe in _DAILY_ONLY and (daily := catalogue.files(series, "daily", start, end)):
        return daily
    monthly = catalogue.files(series, "monthly", start, end)
    covered = {file.period for file in monthly}
    if not monthly:
        return catalogue.files(series, "daily", start, end)
    begin = monthly[0].bounds[0]
    missing = [month for month in months(begin, end) if month not in covered]
    spans = [(max(start, period_bounds(missing[0])[0]), end)] if missing else []
    # A pair's first month may have daily files only: they are listed once, and again if there were any.
    if start < begin and (monthly[0].period not in stored or min(stored) < monthly[0].period):
        spans.append((max(start, period_bounds(month_of(begin - 1))[0]), begin))
    daily = [file for span in spans for file in catalogue.files(series, "daily", *span)]
    return sorted({*monthly, *(f for f in daily if f.period[:7] not in covered)}, key=lambda f: f.bounds)


def _is_due(home: Path, file: SourceFile, record: FileRecord | None, part: Part | None) -> bool:
    """Whether a file is new, republished, failed last time, or its month is missing."""
    if record is None or record.version != file.version or record.status == "failed":
        return True
    if record.status == "quarantined" and time.time() - record.facts.get("at", 0) > _RETRY_QUARANTINED:
        return True  # a wrong CHECKSUM may be corrected while the zip is unchanged (binance-public-data#241)
    path = part_path(home, file.series, file.period[:7])
    return record.rows > 0 and (part is None or not path.is_file() or path.stat().st_size != part.bytes)
