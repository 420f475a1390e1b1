"""The single write path of forecasts and scores: a batch of many series, and its line in the market's chain.

A batch is checked, written to drafts, and committed as a unit. The cost is two fsyncs and a rename per file; a database
would be as safe, but its rows could not be checked with a few lines of Python.

A draft's name contains its sha256, so the line alone describes what is to be done. It is first written to
`chain.pending`, which commits the batch, and removed when the files are renamed and the line is appended: after a crash
at any point either both the rows and the line are stored, or neither, and the next process completes the batch.
"""

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl

from schemas.errors import CpbError, DamagedError, MemberError
from schemas.identity import SeriesId, market_home
from tasks.forecasting.lines import (
    ORIGIN,
    BatchKind,
    Entry,
    Line,
    chain_path,
    last_line,
    line_hash,
    parse_line,
    rows_digest,
)
from tasks.forecasting.months import (
    FORECASTS,
    LEDGER,
    RESTORE,
    Tree,
    files_of_market,
    load,
    log_once,
    month_bytes,
)
from tasks.running.parallel import run_each
from tasks.storage.files import DiskFull, is_disk_full, rename, sync, write_bytes
from tasks.storage.locks import locked
from tasks.storage.records import file_digest

log = logging.getLogger("cpb")

Kind = Literal["forecasts", "scores"]
"""The content of a batch."""

ANY_ERROR = (Exception, pl.exceptions.PanicException)
"""Errors of a single series; polars' panics are not subclasses of `Exception`."""

WRITERS = 8
"""Files written concurrently: a disk handles many syncs in hardly more time than a single sync."""

_TREES: dict[Kind, Tree] = {"forecasts": FORECASTS, "scores": LEDGER}


def append(
    home: Path, market: str, kind: Kind, batch: Mapping[SeriesId, pl.DataFrame]
) -> dict[SeriesId, int | CpbError]:
    """Store the rows of a batch that are not stored yet, and their line; the first row under a key is kept.

    A null `made_at` is set to the current time. An error in one series does not stop the others: a damaged month stays
    as it is, and its series fails until the file is restored.

    Args:
        batch: rows by series, all of one market.

    Returns:
        For each series the number of new rows, or the error for which none was stored (code `rows`: they break the
        contract or belong to another series).
    """
    if not batch:
        return {}
    tree, found = _TREES[kind], dict[SeriesId, list[Entry] | CpbError]()
    try:
        with chain_lock(home, market):
            now = datetime.now(UTC)
            with _drafts(home, market, [series.folder(home, tree.name) for series in batch]):
                found |= _stage_all(home, market, tree, batch, now)
                _commit(
                    home,
                    market,
                    kind,
                    [entry for mine in found.values() if isinstance(mine, list) for entry in mine],
                    now,
                )
    except ANY_ERROR as error:
        # The whole batch failed: nothing is stored, or the next writer completes it.
        return {
            s: known if isinstance(known := found.get(s), CpbError) else as_error(s, error) for s in batch
        }
    return {
        s: new if isinstance(new, CpbError) else sum(entry.rows for entry in new) for s, new in found.items()
    }


def as_error(series: SeriesId | str, error: BaseException) -> CpbError:
    """Return an error as a `CpbError`; an unexpected error is also logged with its traceback."""
    if isinstance(error, CpbError):
        return error
    if is_disk_full(error):
        return DiskFull(f"{series}: no space left on the disk; free some, or set CPB_HOME to another disk")
    log.debug("%s failed", series, exc_info=error)
    reason = (str(error).splitlines() or [""])[0][:200]
    return CpbError(f"{series}: {type(error).__name__}: {reason}".rstrip(": "), code="unexpected")


@contextmanager
def chain_lock(home: Path, market: str, begin: bool = True) -> Iterator[None]:
    """Hold the write lock of a market's forecasts and scores; an interrupted batch is completed first.

    Args:
        begin: start a missing chain, with a line for all rows that are already stored.

    Raises:
        DamagedError: the line of an interrupted batch is damaged.
    """
    path = chain_path(home, market)
    with locked(path.with_name(".chain.lock")):
        _finish_pending(home, market)
        if begin and not path.exists():
            _begin_chain(home, market)
        yield


@contextmanager
def _drafts(home: Path, market: str, folders: Sequence[Path]) -> Iterator[None]:
    """Remove the drafts in these folders that belong to no batch: before, those of a killed process; after, all."""

    def sweep() -> None:
        for draft in (draft for folder in folders for draft in folder.glob(".????-??.parquet.*")):
            draft.unlink(missing_ok=True)

    sweep()
    try:
        yield
    finally:
        if not pending_path(home, market).exists():
            sweep()


def _checked(
    batch: Mapping[SeriesId, pl.DataFrame], market: str, tree: Tree, now: datetime
) -> dict[SeriesId, pl.DataFrame]:
    """Return the rows as they are to be stored; raises the first error in any of them."""
    if others := [series for series in batch if series.market != market]:
        raise MemberError(f"{others[0]} is not of market {market}", code="rows", field="market")
    whole = pl.concat(batch.values(), how="vertical")
    tree.check(whole)
    if "made_at" in tree.schema:
        whole = whole.with_columns(pl.col("made_at").fill_null(now))
    sizes = [len(rows) for rows in batch.values()]
    owners = np.repeat(np.arange(len(batch)), sizes)
    names = {f: pl.Series([getattr(s, f) for s in batch]).gather(owners) for f in ("symbol", "timeframe")}
    if not all(sizes) or not all((whole[field] == expected).all() for field, expected in names.items()):
        text = f"rows of another series cannot be stored under {next(iter(batch))}"
        raise MemberError(text, code="rows", field="symbol")
    starts = np.cumsum([0, *sizes]).tolist()
    return {s: whole.slice(start, size) for s, start, size in zip(batch, starts[:-1], sizes, strict=True)}


def _stage_all(
    home: Path,
    market: str,
    tree: Tree,
    batch: Mapping[SeriesId, pl.DataFrame],
    now: datetime,
) -> dict[SeriesId, list[Entry] | CpbError]:
    """Check the rows and write the drafts of all series concurrently: most of the time is spent waiting for the disk.

    The contract is checked on all rows at once, since every rule compares rows of a single series; if that fails, it
    is checked series by series.
    """
    checked = dict[SeriesId, pl.DataFrame]()
    with suppress(*ANY_ERROR):
        checked = _checked(batch, market, tree, now)

    def stage(series: SeriesId, rows: pl.DataFrame) -> list[Entry] | CpbError:
        try:
            rows = checked[series] if checked else _checked({series: rows}, market, tree, now)[series]
            return _stage(home, series, tree, rows)
        except ANY_ERROR as error:
            return as_error(series, error)

    found = run_each([partial(stage, *item) for item in batch.items()], WRITERS)
    return dict(zip(batch, found, strict=True))  # type: ignore[arg-type]


def _stage(home: Path, series: SeriesId, tree: Tree, rows: pl.DataFrame) -> list[Entry]:
    """Write drafts of a series' months with the new rows appended; raises `DamagedError` for a damaged month."""
    months = rows.with_columns(month=pl.col("issued_at").dt.strftime("%Y-%m"))
    entries: list[Entry] = []
    for (month,), part in months.partition_by("month", as_dict=True).items():
        path = series.folder(home, tree.name) / f"{month}.parquet"
        new, old = part.drop("month").unique(tree.key, keep="first", maintain_order=True), None
        with suppress(FileNotFoundError):
            old = load(home, series, tree, path)
            new = new.join(old, on=list(tree.key), how="anti")
        if not new.is_empty():
            entries.append(
                _draft(home, series.market, path, new if old is None else pl.concat([old, new]), new)
            )
    return entries


def _draft(home: Path, market: str, path: Path, whole: pl.DataFrame, new: pl.DataFrame) -> Entry:
    """Write a month's rows to a draft next to its file and sync it; return its entry."""
    data = month_bytes(path, whole)
    digest = hashlib.sha256(data).hexdigest()
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft_of(path, digest)
    draft.write_bytes(data)
    sync(draft)
    return Entry(_place(home, market, path), len(new), rows_digest(new), digest)


def _place(home: Path, market: str, path: Path) -> str:
    """Return a path relative to the market's home, as lines record it."""
    return path.relative_to(market_home(home, market)).as_posix()


def _begin_chain(home: Path, market: str) -> None:
    """Start a chain, with one line for all stored months; the caller holds the lock."""
    entries = []
    for series, tree, path in files_of_market(home, market):
        try:
            rows = load(home, series, tree, path)
        except DamagedError as error:
            log_once(path, f"{error}; it is left out of the chain")
            continue
        if not rows.is_empty():
            entries.append(Entry(_place(home, market, path), len(rows), rows_digest(rows), file_digest(path)))
    if entries:
        log.warning(
            "%s is missing although rows were stored with it: a new chain records them as stored before it; restore "
            "the old one from a backup or from what `cpb publish` wrote, if possible", chain_path(home, market),
        )  # fmt: skip
    _commit(home, market, "before", entries, datetime.now(UTC))


def _draft_of(path: Path, sha256: str) -> Path:
    """Return the draft of a file with this sha256."""
    return path.with_name(f".{path.name}.{sha256[:12]}")


def pending_path(home: Path, market: str) -> Path:
    """Return the path of the line of the batch being committed."""
    return chain_path(home, market).with_name("chain.pending")


def _commit(home: Path, market: str, kind: BatchKind, entries: Sequence[Entry], now: datetime) -> None:
    """Commit a batch, whose drafts are on disk."""
    if not entries:
        return
    chain = chain_path(home, market)
    chain.parent.mkdir(parents=True, exist_ok=True)
    line = _next_line(chain, kind, entries, now)
    write_bytes(pending_path(home, market), line.encode())
    sync(chain.parent)
    _put_in_place(home, market, line)


def _finish_pending(home: Path, market: str) -> None:
    """Complete the batch of a killed process; the caller holds the lock.

    Raises:
        DiskFull, OSError: it cannot be completed now; the next call tries again.
        DamagedError: its line is damaged. It is written by rename, so a crash never leaves it partial.
    """
    pending = pending_path(home, market)
    try:
        line = parse_line(pending.read_bytes())
    except FileNotFoundError:
        return
    except DamagedError as error:
        raise DamagedError(
            f"{pending} is damaged: {error}; {RESTORE} with all of forecasts and ledger, or delete it: rows of its "
            "batch that are in place then have no line in the chain", field=str(pending),
        ) from error  # fmt: skip
    _put_in_place(home, market, line)


def _next_line(chain: Path, kind: BatchKind, entries: Sequence[Entry], now: datetime) -> Line:
    """Return the chain's next line. It also follows a damaged last line, which `cpb verify` reports."""
    number, previous = 0, ORIGIN
    with suppress(FileNotFoundError):
        if raw := last_line(chain):
            previous = line_hash(raw)  # for a damaged line, the hash of its current text
            try:
                number = parse_line(raw).number
            except DamagedError as error:
                number = len(chain.read_bytes().splitlines())
                log_once(
                    chain, f"the last line of {chain} is damaged ({error}); `cpb verify` says what to do"
                )
    time = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return Line(number + 1, time, kind, tuple(entries), previous)


def _put_in_place(home: Path, market: str, line: Line) -> None:
    """Rename the files, append the line, remove the pending line; can be repeated after a crash at any point."""
    base = market_home(home, market)
    calls = [partial(_rename, base / entry.file, entry.file_sha256) for entry in line.entries]
    for error in run_each(calls, WRITERS):
        if error is not None:
            raise error
    _append_line(chain_path(home, market), line.encode())
    pending_path(home, market).unlink()


def _rename(path: Path, sha256: str) -> None:
    """Rename a draft into its place, unless that is done."""
    if (draft := _draft_of(path, sha256)).exists():
        rename(draft, path)


def _append_line(chain: Path, line: bytes) -> None:
    """Append a line if it is not there yet; a part of it that a crash left is replaced, any other content stays."""
    new = not chain.exists()
    handle = os.open(chain, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    with os.fdopen(handle, "r+b") as file:
        last = last_line(chain)
        if last == line:
            return
        end = file.seek(0, 2)
        if line.startswith(last):
            file.truncate(file.seek(end - len(last)))
        elif not last.endswith(b"\n"):  # a truncated last line must not corrupt this line
            line = b"\n" + line
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
    if new:
        sync(chain.parent)
