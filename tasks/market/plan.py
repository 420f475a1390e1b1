"""What to fetch for a series: monthly files where they are published, daily ones elsewhere, nothing twice."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from schemas.identity import SeriesId
from tasks.market.faults import SourceFault
from tasks.market.layout import SourceFile, months, period_bounds
from tasks.market.listing import Catalogue
from tasks.market.manifest import FileRecord, Part
from tasks.market.store import part_path

_RETRY_QUARANTINED = 7 * 86_400  # seconds
_DAILY_ONLY = {"1s"}  # where daily files are published: a month of seconds is 350 MB of text


@dataclass
class Plan:
    """The files of one series that a run needs (`wanted`) and those it must still get (`fetch`)."""

    series: SeriesId
    wanted: list[SourceFile] = field(default_factory=list)
    fetch: list[SourceFile] = field(default_factory=list)
    fault: SourceFault | None = None


def wanted_files(catalogue: Catalogue, series: SeriesId, start: int, end: int) -> list[SourceFile]:
    """Return the published files that cover `[start, end)` best, oldest first.

    Raises:
        SourceFault: the source cannot be asked.
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
    if start < begin and catalogue.begins_before(series, "daily", start, begin):
        spans.append((start, begin))
    daily = [file for span in spans for file in catalogue.files(series, "daily", *span)]
    return sorted({*monthly, *(f for f in daily if f.period[:7] not in covered)}, key=lambda f: f.bounds)


def to_fetch(
    home: Path, wanted: list[SourceFile], known: dict[str, FileRecord], parts: dict[str, Part]
) -> list[SourceFile]:
    """Return the files that are new, were published again, failed last time, or whose part is gone."""
    return [f for f in wanted if _is_due(f, known.get(f.period)) or _part_lost(home, f, known, parts)]


def _is_due(file: SourceFile, record: FileRecord | None) -> bool:
    if record is None or record.version != file.version or record.status == "failed":
        return True
    # a wrong CHECKSUM may be put right without the zip changing (binance-public-data#241)
    return record.status == "quarantined" and time.time() - record.facts.get("at", 0) > _RETRY_QUARANTINED


def _part_lost(home: Path, file: SourceFile, known: dict[str, FileRecord], parts: dict[str, Part]) -> bool:
    if known[file.period].rows == 0:
        return False
    month = file.period[:7]
    path = part_path(home, file.series, month)
    return month not in parts or not path.is_file() or path.stat().st_size != parts[month].bytes
