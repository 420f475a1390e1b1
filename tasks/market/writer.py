"""From downloaded files to parts of the store: parse, check, quarantine, merge, write, record in the manifest."""

import time
from collections.abc import Collection
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from schemas.frames import KLINES
from schemas.identity import SeriesId, market_home
from tasks.market.checks import Checked, check, validate_klines
from tasks.market.client import BadFile
from tasks.market.klines import (
    QUARANTINE,
    damage_of,
    part_path,
    read_part,
    split_months,
    write_parquet,
    write_part,
)
from tasks.market.layout import SourceFile, grid_of, text
from tasks.market.manifest import Anomaly, FileRecord, Manifest, Part
from tasks.market.parser import Block, Fetched, read, trim
from tasks.running.parallel import thread_pool
from tasks.storage.files import sync, write_bytes

WRITERS = 2  # threads: while one waits for the disk, another compresses


@dataclass
class Writing:
    """A checked batch whose months are being written: not in the manifest before `finish`, which adds to `notes`."""

    home: Path
    manifest: Manifest
    series: SeriesId
    batch: list[Fetched]
    status: str
    known: dict[str, FileRecord]
    checked: Checked
    good: dict[int, Fetched]  # by index into `blocks`
    blocks: list[Block]
    parts: "list[Future[Part | None]]"
    notes: list[str]

    def finish(self) -> list[SourceFile]:
        """Wait for the months, then record the whole batch; return its faulty files.

        Raises:
            CpbError: the disk is full or the folder cannot be written.
        """
        parts = [written for future in self.parts if (written := future.result())]
        if parts:
            sync(self.series.folder(self.home, "klines"))
        for month, part in split_months(with_stored_columns(self.checked.off_grid)):
            write_parquet(self.series.folder(self.home, "offgrid") / f"{month}.parquet", part, {})
        root = market_home(self.home, self.series.market)
        faulty = [item for item in self.batch if item.fault]
        records = [_record(root, item, self.known) for item in faulty]
        self.notes += [f"{item.file}: {item.fault}" for item in faulty]
        records += self._good_records(root)
        anomalies = _anomalies(self.series, self.checked)
        self.manifest.save(self.series, records, parts, anomalies, _span(self.good))
        return [item.file for item in faulty]

    def _good_records(self, root: Path) -> list[FileRecord]:
        counts = dict(self.checked.rows.group_by("file").len().iter_rows())
        records = []
        for index, item in self.good.items():
            rows = counts.get(index, 0)
            records.append(_good_record(item, self.blocks[index], rows, self.checked, index, self.status))
            if item.file.period in self.known and self.known[item.file.period].status == "quarantined":
                for path in _quarantined(root, item.file):
                    path.unlink(missing_ok=True)
        return records


def store_fetched(
    home: Path, manifest: Manifest, series: SeriesId, batch: list[Fetched], status: str = "ok"
) -> list[SourceFile]:
    """Store the good candles of a batch and record everything else; return its faulty files.

    Raises:
        CpbError: the disk is full or the folder cannot be written.
    """
    with thread_pool(WRITERS, "write", grace_s=1.5) as writers:
        return start_batch(home, manifest, series, batch, writers, status).finish()


def start_batch(
    home: Path,
    manifest: Manifest,
    series: SeriesId,
    batch: list[Fetched],
    writers: Executor,
    status: str = "ok",
) -> Writing:
    """Check a batch and start writing its months, while the next series can be checked."""
    blocks, arrived = trim_all(batch)
    frame, faults = read(blocks)
    stored = [(*r, *e) for p in manifest.parts(series).values() for r, e in zip(p.runs, p.edges, strict=True)]
    coming = [item.file.bounds for item in arrived]
    kept = [e for e in stored if not any(a < e[1] and e[0] < b for a, b in coming)]  # not replaced or filled
    checked, more = check(series, blocks, frame, kept)
    for index, fault in {**more, **faults}.items():
        arrived[index].fault = fault
    notes = forget_damaged(home, manifest, series, {i.file.period[:7] for i in arrived if not i.fault})
    known = manifest.files(series)
    fill = status == "repaired"
    good = {i: f for i, f in enumerate(arrived) if not f.fault}
    for index, item in good.items():  # free the memory: only quarantined files are needed as bytes
        item.csv = item.payload = blocks[index].body = b""
    stored_months = manifest.parts(series).keys()
    parts = _write_months(home, series, stored_months, checked.rows, list(good.values()), writers, fill)
    return Writing(home, manifest, series, batch, status, known, checked, good, blocks, parts, notes)


def forget_damaged(home: Path, manifest: Manifest, series: SeriesId, months: Collection[str]) -> list[str]:
    """Mark the files of damaged months as to be fetched; return a sentence for each such month.

    A damaged month stays, and is refused, until new candles replace it: no step goes on with a hole.
    """
    notes = []
    for month, part in manifest.parts(series).items():
        path = part_path(home, series, month)
        if month in months and path.is_file() and (reason := damage_of(path, part)):
            manifest.forget(series, month, f"stored month was damaged: {reason}")
            notes.append(f"{series} {month}: the stored month was damaged ({reason}) and is fetched anew")
    return notes


def trim_all(batch: list[Fetched]) -> tuple[list[Block], list[Fetched]]:
    """Return the candle lines of the downloaded files, and these files; a file without candles gets a fault."""
    blocks, arrived = [], []
    for item in batch:
        if item.fault:
            continue
        try:
            blocks.append(trim(item.file, item.csv))
            arrived.append(item)
        except BadFile as fault:
            item.fault = fault
    return blocks, arrived


def with_stored_columns(rows: pl.DataFrame) -> pl.DataFrame:
    """Return checked candles with the columns of the store."""
    return rows.select(pl.col("open_time").cast(KLINES["open_time"]), *list(KLINES)[1:])


def _write_months(
    home: Path,
    series: SeriesId,
    stored: Collection[str],
    rows: pl.DataFrame,
    good: list[Fetched],
    writers: Executor,
    fill: bool,
) -> "list[Future[Part | None]]":
    """Start writing each month in the batch; in a month that is stored, candles of files not in the batch are kept.

    With `fill` the new candles are added to the old candles and win where both exist: a daily file that lacks a candle
    does not remove it.
    """
    clean = validate_klines(with_stored_columns(rows), series.timeframe)
    replaced: dict[str, list[Fetched]] = {}
    for item in good:
        replaced.setdefault(item.file.period[:7], []).append(item)
    fresh = dict(split_months(clean))

    def write(month: str) -> Part | None:
        spans = [] if fill else [i.file.covered for i in replaced[month]]
        old = read_part(home, series, month) if month in stored else clean.clear()
        part = merge(old, fresh.get(month, clean.clear()), spans)
        files = (f"{i.file.key.rsplit('/', 1)[-1]}={i.sha256}" for i in replaced[month])
        return write_part(home, series, month, part, {"cpb.files": " ".join(files)}) if part.height else None

    return [writers.submit(write, month) for month in replaced]


def merge(old: pl.DataFrame, new: pl.DataFrame, spans: list[tuple[int, int]]) -> pl.DataFrame:
    """Return `old` without the candles inside the spans, merged with `new` and sorted; `new` wins."""
    for start, end in spans:
        old = old.filter(~pl.col("open_time").to_physical().is_between(start, end, closed="left"))
    return (
        pl.concat([old.join(new, on="open_time", how="anti"), new]).sort("open_time") if old.height else new
    )


def _record(root: Path, item: Fetched, known: dict[str, FileRecord]) -> FileRecord:
    """Record a faulty file; a file that could not be downloaded will be requested again."""
    reason = str(item.fault)
    if isinstance(item.fault, BadFile):
        path, beside = _quarantined(root, item.file)
        write_bytes(path, item.fault.payload or item.payload or item.csv)
        write_bytes(beside, f"{item.file}: {reason}\nsource: {item.file.key}\n".encode())
        status = "quarantined"
    else:
        status = "failed"
    before = known.get(item.file.period)  # the stored candles are kept; a later version is compared with them
    rows, sha = (before.rows, before.sha256) if before else (0, "")
    facts = {"at": int(time.time())}
    return FileRecord(item.file.period, item.file.key, item.file.version, sha, rows, status, reason, facts)


def _quarantined(root: Path, file: SourceFile) -> tuple[Path, Path]:
    """Return the path of a refused file, `quarantine/spot/monthly/…/BTCUSDT-1h-2024-01.zip`, and of its reason."""
    path = root / QUARANTINE / file.key.removeprefix("data/")
    return path, path.with_name(f"{path.name}.reason.txt")


def _good_record(
    item: Fetched, block: Block, rows: int, checked: Checked, index: int, status: str
) -> FileRecord:
    facts: dict = {"notes": block.notes} if block.notes else {}
    if not item.verified:
        facts["unverified"] = True
    if checked.duplicates.get(index):
        facts["duplicates"] = checked.duplicates[index]
    file = item.file
    if file.table:
        facts["table"] = file.table
    return FileRecord(file.period, file.key, file.version, item.sha256, rows, status, "", facts)


def _anomalies(series: SeriesId, checked: Checked) -> list[Anomaly]:
    off = [Anomaly(t, "off-grid", "") for t in checked.off_grid["open_time"]]
    both = pl.concat([checked.rows, checked.off_grid]) if checked.off_grid.height else checked.rows
    opens, closes = (both[name].to_numpy() for name in ("open_time", "close_time"))
    cut = both.filter(closes != grid_of(series.timeframe).end(opens)).select("open_time", "close_time")
    odd = [Anomaly(opened, "odd close", f"closes {text(closed - 1)}") for opened, closed in cut.iter_rows()]
    return off + odd + [Anomaly(t, "conflict", "two different candles") for _, t in checked.conflicts]


def _span(good: dict[int, Fetched]) -> tuple[int, int]:
    bounds = [item.file.bounds for item in good.values()]
    return (min(a for a, _ in bounds), max(b for _, b in bounds)) if bounds else (0, 0)
