"""From downloaded files to parts of the store: parse, judge, quarantine, merge, write, enter in the manifest."""

import time
from collections.abc import Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from schemas.errors import CpbError
from schemas.klines import KLINES, validate_klines
from tasks.market.checks import Checked, check
from tasks.market.faults import BadFile, SourceFault
from tasks.market.layout import SeriesKey, SourceFile, text
from tasks.market.manifest import FileRecord, Manifest, Oddity, Part
from tasks.market.parser import Block, read, trim
from tasks.market.quarantine import quarantine, release
from tasks.market.store import read_part, series_folder, split_months, sync, write_parquet, write_part

WRITERS = 2  # while one waits for the disk, another compresses


@dataclass
class Fetched:
    """One file as it arrived: its CSV, or why there is none."""

    file: SourceFile
    csv: bytes = b""
    sha256: str = ""
    verified: bool = True
    payload: bytes = b""
    fault: BadFile | SourceFault | None = None


@dataclass
class Outcome:
    """What a batch did: one sentence for each thing worth telling."""

    notes: list[str] = field(default_factory=list)
    bad: list[SourceFile] = field(default_factory=list)


@dataclass
class Writing:
    """A judged batch whose months are on their way to disk: not in the manifest before `finish`."""

    home: Path
    manifest: Manifest
    series: SeriesKey
    batch: list[Fetched]
    status: str
    known: dict[str, FileRecord]
    checked: Checked
    good: dict[int, Fetched]  # by index into `blocks`
    blocks: list[Block]
    changed: dict[int, int]
    parts: "list[Future[Part | None]]"

    def finish(self) -> Outcome:
        """Wait for the months, then put all of the batch on record.

        Raises:
            CpbError: the disk is full or the folder cannot be written.
        """
        outcome = Outcome()
        parts = [part for future in self.parts if (part := future.result())]
        if parts:
            sync(series_folder(self.home, self.series))
        _write_off_grid(self.home, self.series, self.checked.off_grid)
        records = [_record(self.home, item, outcome, self.known) for item in self.batch if item.fault]
        records += self._good_records(outcome)
        oddities = _oddities(self.series, self.checked)
        self.manifest.save(self.series, records, parts, oddities, _span(self.good))
        return outcome

    def _good_records(self, outcome: Outcome) -> list[FileRecord]:
        counts = dict(self.checked.rows.group_by("file").len().iter_rows())
        records = []
        for index, item in self.good.items():
            rows = counts.get(index, 0)
            record = _good_record(item, self.blocks[index], rows, self.checked, index, self.status)
            if self.changed.get(index):
                record.facts["changed"] = self.changed[index]
                outcome.notes.append(f"{item.file}: changed upstream, {self.changed[index]} rows")
            records.append(record)
            if item.file.period in self.known and self.known[item.file.period].status == "quarantined":
                release(self.home, item.file)
        return records


def store_batch(
    home: Path, manifest: Manifest, series: SeriesKey, batch: list[Fetched], status: str = "ok"
) -> Outcome:
    """Put the good candles of a batch into the store and everything else on record.

    Raises:
        CpbError: the disk is full or the folder cannot be written.
    """
    with ThreadPoolExecutor(WRITERS) as writers:
        return start_batch(home, manifest, series, batch, writers, status).finish()


def start_batch(
    home: Path,
    manifest: Manifest,
    series: SeriesKey,
    batch: list[Fetched],
    writers: Executor,
    status: str = "ok",
) -> Writing:
    """Judge a batch and begin to write its months: the next series can be judged meanwhile."""
    blocks, arrived = _trim(batch)
    frame, faults = read(blocks)
    stored = [(*r, *e) for p in manifest.parts(series).values() for r, e in zip(p.runs, p.edges, strict=True)]
    checked, more = check(series, blocks, frame, [edge for edge in stored if not _replaced(edge, arrived)])
    for index, fault in {**more, **faults}.items():
        arrived[index].fault = fault
    known = manifest.files(series)
    good = {i: f for i, f in enumerate(arrived) if not f.fault}
    changed = _rows_changed(home, series, checked.rows, good, known)
    for index, item in good.items():  # only what goes into quarantine is needed as bytes any longer
        item.csv = item.payload = blocks[index].body = b""
    parts = _write_months(
        home, series, checked.rows, list(good.values()), writers, known, fill=status == "repaired"
    )
    return Writing(home, manifest, series, batch, status, known, checked, good, blocks, changed, parts)


def _replaced(edge: tuple[int, int, float, float], arrived: list[Fetched]) -> bool:
    """Tell whether a stored stretch overlaps a file that is about to replace or fill it."""
    return any(a < edge[1] and edge[0] < b for a, b in (item.file.bounds for item in arrived))


def _trim(batch: list[Fetched]) -> tuple[list[Block], list[Fetched]]:
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


def _write_months(
    home: Path,
    series: SeriesKey,
    rows: pl.DataFrame,
    good: list[Fetched],
    writers: Executor,
    known: Iterable[str],
    fill: bool,
) -> "list[Future[Part | None]]":
    """Begin to write each month the batch touches; candles of files that are not in the batch are kept.

    With `fill` the new candles join the old ones and win where both exist: a daily file that lacks a candle
    does not take it away.
    """
    clean = rows.select(pl.col("open_time").cast(KLINES["open_time"]), *list(KLINES)[1:])
    validate_klines(clean)
    replaced: dict[str, list[Fetched]] = {}
    for item in good:
        replaced.setdefault(item.file.period[:7], []).append(item)
    fresh = dict(split_months(clean))

    def write(month: str) -> Part | None:
        spans = [] if fill else [i.file.bounds for i in replaced[month]]
        anew = {i.file.period for i in replaced[month]}.issuperset(p for p in known if p[:7] == month)
        part = merge(_stored(home, series, month, anew), fresh.get(month, clean.clear()), spans)
        origin = {
            "cpb.files": " ".join(f"{i.file.key.rsplit('/', 1)[-1]}={i.sha256}" for i in replaced[month])
        }
        return write_part(home, series, month, part, origin) if part.height else None

    return [writers.submit(write, month) for month in replaced]


def _stored(home: Path, series: SeriesKey, month: str, anew: bool = True) -> pl.DataFrame:
    """Return a month as stored; a damaged one counts as empty if all of its files have just come `anew`."""
    try:
        return read_part(home, series, month)
    except pl.exceptions.PolarsError as error:
        if anew:
            return pl.DataFrame(schema=KLINES)
        path = series_folder(home, series) / f"{month}.parquet"
        raise CpbError(f"{path} is damaged: delete it and run again, and it is fetched anew") from error


def merge(old: pl.DataFrame, new: pl.DataFrame, spans: list[tuple[int, int]]) -> pl.DataFrame:
    """Return `old` with everything inside the spans dropped and `new` put in, sorted; `new` wins."""
    for start, end in spans:
        old = old.filter(~pl.col("open_time").to_physical().is_between(start, end, closed="left"))
    return (
        pl.concat([old.join(new, on="open_time", how="anti"), new]).sort("open_time") if old.height else new
    )


def _rows_changed(
    home: Path, series: SeriesKey, rows: pl.DataFrame, good: dict[int, Fetched], known: dict[str, FileRecord]
) -> dict[int, int]:
    """Count, for files published again with other bytes, the candles that are new, gone or different."""
    changed = {}
    for index, item in good.items():
        record = known.get(item.file.period)
        if not record or record.sha256 in ("", item.sha256) or record.status == "repaired":
            continue
        new = rows.filter(pl.col("file") == index).select(
            pl.col("open_time").cast(KLINES["open_time"]), *list(KLINES)[1:]
        )
        start, end = item.file.bounds
        old = _stored(home, series, item.file.period[:7])
        old = old.filter(pl.col("open_time").to_physical().is_between(start, end, closed="left"))
        differing = pl.concat(
            [new.join(old, on=list(KLINES), how="anti"), old.join(new, on=list(KLINES), how="anti")]
        )
        changed[index] = differing["open_time"].n_unique()
    return changed


def _record(home: Path, item: Fetched, outcome: Outcome, known: dict[str, FileRecord]) -> FileRecord:
    """Put a file at fault on record; one that only failed to arrive will be asked for again."""
    outcome.bad.append(item.file)
    reason = str(item.fault)
    outcome.notes.append(f"{item.file}: {reason}")
    if isinstance(item.fault, BadFile):
        quarantine(home, item.file, item.fault.payload or item.payload or item.csv, reason)
        status = "quarantined"
    else:
        status = "failed"
    before = known.get(item.file.period)  # what is stored stays, and a later version is compared with it
    rows, sha = (before.rows, before.sha256) if before else (0, "")
    facts = {"at": int(time.time())}
    return FileRecord(item.file.period, item.file.key, item.file.version, sha, rows, status, reason, facts)


def _good_record(
    item: Fetched, block: Block, rows: int, checked: Checked, index: int, status: str
) -> FileRecord:
    facts: dict = {"notes": block.notes} if block.notes else {}
    if not item.verified:
        facts["unverified"] = True
    if checked.duplicates.get(index):
        facts["duplicates"] = checked.duplicates[index]
    file = item.file
    return FileRecord(file.period, file.key, file.version, item.sha256, rows, status, "", facts)


def _write_off_grid(home: Path, series: SeriesKey, rows: pl.DataFrame) -> None:
    clean = rows.select(pl.col("open_time").cast(KLINES["open_time"]), *list(KLINES)[1:])
    for month, part in split_months(clean):
        write_parquet(series_folder(home, series, "offgrid") / f"{month}.parquet", part, {})


def _oddities(series: SeriesKey, checked: Checked) -> list[Oddity]:
    off = [Oddity(t, "off-grid", "") for t in checked.off_grid["open_time"]]
    both = pl.concat([checked.rows, checked.off_grid]) if checked.off_grid.height else checked.rows
    opens, closes = (both[name].to_numpy() for name in ("open_time", "close_time"))
    cut = both.filter(closes != series.grid.end(opens)).select("open_time", "close_time")
    odd = [Oddity(opened, "odd close", f"closes {text(closed - 1)}") for opened, closed in cut.iter_rows()]
    return off + odd + [Oddity(t, "conflict", "two different candles") for _, t in checked.conflicts]


def _span(good: dict[int, Fetched]) -> tuple[int, int]:
    bounds = [item.file.bounds for item in good.values()]
    return (min(a for a, _ in bounds), max(b for _, b in bounds)) if bounds else (0, 0)
