"""From published files to parts of the store: fetch, parse, check, quarantine, merge, write, record in the manifest.

Downloads run ahead of parsing, within a fixed memory budget: memory does not grow with the number of files. Series are
checked one after another in the calling thread; during a check, the previous series' months are written.
"""

import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path

import polars as pl

from schemas.candles import KLINES
from schemas.errors import counted
from schemas.identity import SeriesId, market_home
from tasks.market.client import BadFile
from tasks.market.fetch import Fetched, fetch
from tasks.market.ingestion import Ingestion
from tasks.market.klines import (
    damage_of,
    part_path,
    read_part,
    split_months,
    write_parquet,
    write_part,
)
from tasks.market.layout import SourceFile, grid_of, utc_text
from tasks.market.manifest import Anomaly, FileRecord, Part
from tasks.market.parser import check, read, trim, validate_klines
from tasks.market.store_files import QUARANTINE
from tasks.running.parallel import thread_pool
from tasks.running.progress import report_progress
from tasks.storage.files import sync, write_bytes

_WRITERS = 2  # threads: while one waits for the disk, another compresses
_MAX_BATCH = 16 << 20  # bytes per batch, zips and CSVs together
_MAX_AHEAD = 16 << 20  # bytes of all files being downloaded or waiting to be parsed
_GROWTH = 4  # a kline zip and its CSV together, as a multiple of the zip
_USUAL_SIZE = 100_000  # bytes of a zip, if not in the listing

Batch = tuple[SeriesId, list[SourceFile]]


def store_all(ingestion: Ingestion, groups: Iterable[Batch], status: str = "ok") -> list[SourceFile]:
    """Fetch the files of each series ahead of storing them, within the memory budget; return the faulty files."""
    batches = (batch for series, files in groups for batch in _batches(series, files))
    flying: deque[tuple[SeriesId, list[Future[Fetched]], int]] = deque()
    bad: list[SourceFile] = []
    weight, following = 0, next(batches, None)
    writing: Writing | None = None

    def finish(writing: Writing | None) -> None:
        if writing:
            bad.extend(writing.finish())
            ingestion.fetched_files += len(writing.batch)
            ingestion.notes += writing.notes
            ingestion.warnings += writing.warnings
            # below `due` until the end: holes may still be filled, and 100 % would say that nothing is left
            due = sum(len(p.fetch) for p in ingestion.plans.values())
            report_progress(
                "ingest", min(ingestion.fetched_files, due - 0.5), due, "files", str(writing.series)
            )

    with thread_pool(_WRITERS, "write", grace_s=1.5) as writers:
        while flying or following:
            while following and (not flying or weight < _MAX_AHEAD):
                series, files = following
                size = sum(map(_weight, files))
                flying.append(
                    (series, [ingestion.pool.submit(fetch, ingestion.source, f) for f in files], size)
                )
                weight, following = weight + size, next(batches, None)
            series, futures, size = flying.popleft()
            batch = [future.result() for future in futures]
            del futures  # free the bytes as soon as they are stored
            weight -= size
            if writing and writing.series == series:  # the checks compare with the candles just written
                finish(writing)
                writing = None
            started = Writing(ingestion, series, batch, writers, status)
            finish(writing)
            writing = started
        finish(writing)
    return bad


def _batches(series: SeriesId, files: list[SourceFile]) -> Iterator[Batch]:
    """Cut a series' files into batches of bounded size."""
    batch: list[SourceFile] = []
    for file in files:
        if batch and sum(map(_weight, batch)) + _weight(file) > _MAX_BATCH:
            yield series, batch
            batch = []
        batch.append(file)
    if batch:
        yield series, batch


def _weight(file: SourceFile) -> int:
    return (file.size if file.size >= 0 else _USUAL_SIZE) * _GROWTH


class Writing:
    """A checked batch whose months are being written, while the next series can be checked.

    Its candles are in the manifest only after `finish`, which adds to `notes` and `warnings`. Status `repaired` adds
    candles to the stored candles of the months; otherwise they replace them in the time that the files cover.
    """

    def __init__(
        self,
        ingestion: Ingestion,
        series: SeriesId,
        batch: list[Fetched],
        writers: Executor,
        status: str,
    ) -> None:
        self.home, self.manifest = ingestion.home, ingestion.manifest
        self.series, self.batch, self.status = series, batch, status
        arrived = trim_all(batch)
        # all files of a series at once: neighbours are compared, and one parse is cheaper than fifty
        frame, faults = read(arrived)
        coming = [item.file.bounds for item in arrived]
        kept = [  # neither replaced nor filled
            (start, end, *edge)
            for part in self.manifest.parts(series).values()
            for (start, end), edge in zip(part.runs, part.edges, strict=True)
            if not any(a < end and start < b for a, b in coming)
        ]
        self.checked, more = check(series, arrived, frame, kept)
        for index, fault in {**more, **faults}.items():
            arrived[index].fault = fault
        months = dict.fromkeys(item.file.period[:7] for item in arrived if not item.fault)
        self.notes = forget_damaged(ingestion, series, months)
        self.warnings: list[str] = []
        self.records = self.manifest.files(series)
        # by index in the frame
        self.good = {index: item for index, item in enumerate(arrived) if not item.fault}
        for item in self.good.values():  # free the memory: only quarantined files are needed as bytes
            item.csv = item.payload = b""
        self.stored_months = self.manifest.parts(series).keys()
        rows = validate_klines(with_stored_columns(self.checked.rows), series.timeframe)
        fresh = dict(split_months(rows))
        self.parts: list[Future[tuple[Part | None, int]]] = [
            writers.submit(self._write, month, fresh.get(month, rows.clear())) for month in months
        ]

    def _write(self, month: str, fresh: pl.DataFrame) -> tuple[Part | None, int]:
        """Write a month; return its part, and how many stored candles the source has changed."""
        files = [item for item in self.good.values() if item.file.period[:7] == month]
        spans = [] if self.status == "repaired" else [item.file.covered for item in files]
        # a month that was forgotten as damaged is not read
        old = read_part(self.home, self.series, month) if month in self.stored_months else fresh.clear()
        rows = merge(old, fresh, spans)
        changed = old.join(rows, on=old.columns, how="anti").height if old.height else 0
        return (write_part(self.home, self.series, month, rows) if rows.height else None), changed

    def finish(self) -> list[SourceFile]:
        """Wait for the months, then record the whole batch; return its faulty files.

        Raises:
            CpbError: the disk is full or the folder cannot be written.
        """
        written = [future.result() for future in self.parts]
        parts = [part for part, _ in written if part]
        if changed := sum(number for _, number in written):
            self.warnings.append(
                f"{self.series}: {counted(changed, 'stored candle')} replaced: the source has changed them"
            )
        if parts:
            # the renames must be on the disk before the manifest says so
            sync(self.series.folder(self.home, "klines"))
        for month, part in split_months(with_stored_columns(self.checked.off_grid)):
            write_parquet(self.series.folder(self.home, "offgrid") / f"{month}.parquet", part)
        faulty = [item for item in self.batch if item.fault]
        self.notes += [f"{item.file}: {item.fault}" for item in faulty]
        records = [self._faulty_record(item) for item in faulty]
        records += [self._good_record(index, item) for index, item in self.good.items()]
        bounds = [item.file.bounds for item in self.good.values()]
        span = (min(a for a, _ in bounds), max(b for _, b in bounds)) if bounds else (0, 0)
        self.manifest.save(self.series, records, parts, self._anomalies(), span)
        return [item.file for item in faulty]

    def _faulty_record(self, item: Fetched) -> FileRecord:
        """Quarantine a bad file; a file that could not be downloaded will be requested again."""
        file, status = item.file, "failed"
        if isinstance(item.fault, BadFile):
            path, beside = self._quarantined(file)
            write_bytes(path, item.fault.payload or item.payload or item.csv)
            write_bytes(beside, f"{file}: {item.fault}\nsource: {file.key}\n".encode())
            status = "quarantined"
        # the stored candles are kept; a later version is compared with them
        before = self.records.get(file.period, FileRecord(file.period, "", ""))
        facts = {"at": int(time.time())}
        return FileRecord(
            file.period, file.key, file.version, before.sha256, before.rows, status, str(item.fault), facts
        )

    def _good_record(self, index: int, item: Fetched) -> FileRecord:
        file, before = item.file, self.records.get(item.file.period)
        if before and before.status == "quarantined":
            for path in self._quarantined(file):
                path.unlink(missing_ok=True)
        rows = int((self.checked.rows["file"] == index).sum())
        facts = {"notes": item.notes, "unverified": not item.verified}
        return FileRecord(file.period, file.key, file.version, item.sha256, rows, self.status, "", facts)

    def _quarantined(self, file: SourceFile) -> tuple[Path, Path]:
        """Return the path of a refused file, `quarantine/spot/monthly/…/BTCUSDT-1h-2024-01.zip`, and of its reason."""
        root = market_home(self.home, self.series.market)
        path = root / QUARANTINE / file.key.removeprefix("data/")
        return path, path.with_name(f"{path.name}.reason.txt")

    def _anomalies(self) -> list[Anomaly]:
        checked = self.checked
        both = pl.concat([checked.rows, checked.off_grid]) if checked.off_grid.height else checked.rows
        ends = grid_of(self.series.timeframe).end(both["open_time"].to_numpy())
        odd = both.filter(both["close_time"].to_numpy() != ends).select("open_time", "close_time")
        return [
            *(Anomaly(opened, "off-grid", "") for opened in checked.off_grid["open_time"]),
            *(Anomaly(opened, "odd close", f"closes {utc_text(end - 1)}") for opened, end in odd.iter_rows()),
            *(Anomaly(opened, "conflict", "two different candles") for _, opened in checked.conflicts),
        ]


def store_days(ingestion: Ingestion, series: SeriesId, days: list[Fetched]) -> list[SourceFile]:
    """Add the good candles of fetched days to their months and record everything else; return the faulty days.

    Raises:
        CpbError: the disk is full or the folder cannot be written.
    """
    with thread_pool(_WRITERS, "write", grace_s=1.5) as writers:
        return Writing(ingestion, series, days, writers, "repaired").finish()


def forget_damaged(ingestion: Ingestion, series: SeriesId, months: Collection[str]) -> list[str]:
    """Mark the files of damaged months as to be fetched; return a sentence for each such month.

    A damaged month stays, and is refused, until new candles replace it: no step goes on with a hole.
    """
    notes = []
    for month, part in ingestion.manifest.parts(series).items():
        path = part_path(ingestion.home, series, month)
        if month in months and path.is_file() and (reason := damage_of(path, part)):
            ingestion.manifest.forget(series, month, f"stored month was damaged: {reason}")
            notes.append(f"{series} {month}: the stored month was damaged ({reason}) and is fetched anew")
    return notes


def trim_all(batch: list[Fetched]) -> list[Fetched]:
    """Trim the downloaded files and return those with candles; a file without candles gets a fault."""
    for item in batch:
        try:
            if not item.fault:
                trim(item)
        except BadFile as fault:
            item.fault = fault
    return [item for item in batch if not item.fault]


def with_stored_columns(rows: pl.DataFrame) -> pl.DataFrame:
    """Return checked candles with the columns of the store."""
    return rows.select(pl.col("open_time").cast(KLINES["open_time"]), *list(KLINES)[1:])


def merge(old: pl.DataFrame, new: pl.DataFrame, spans: list[tuple[int, int]]) -> pl.DataFrame:
    """Return `old` without the candles inside the spans, merged with `new` and sorted; `new` wins."""
    for start, end in spans:
        old = old.filter(~pl.col("open_time").to_physical().is_between(start, end, closed="left"))
    return (
        pl.concat([old.join(new, on="open_time", how="anti"), new]).sort("open_time") if old.height else new
    )
