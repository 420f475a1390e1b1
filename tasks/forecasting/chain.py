"""The single write path of forecasts and scores: a batch of many series, and its line in the market's chain.

A batch is checked, staged in drafts, and committed as a unit (`commit.py`). The cost is two fsyncs and a rename per
file; a database would be as safe, but its rows could not be checked with a few lines of Python.
"""

import hashlib
import io
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal, cast

import numpy as np
import polars as pl

from schemas.errors import CpbError, DamagedError, MemberError
from schemas.identity import SeriesId, market_home, stored_series
from tasks.forecasting.commit import WRITERS, Move, below, commit, discard, finish_pending
from tasks.forecasting.index import log_once, month_files
from tasks.forecasting.lines import Chain, Entry, FileRecord, chain_path, rows_digest
from tasks.forecasting.months import FORECASTS, LEDGER, TREES, UNREADABLE, Tree, consequence, load
from tasks.running.parallel import run_each
from tasks.storage.digests import file_digest
from tasks.storage.files import DiskFull, draft_name, is_disk_full, sync
from tasks.storage.locks import locked
from tasks.storage.records import aside_name, set_aside

log = logging.getLogger("cpb")

Kind = Literal["forecasts", "scores"]
"""The content of a batch."""

ANY_ERROR = (Exception, pl.exceptions.PanicException)
"""Errors of a single series; polars' panics are not subclasses of `Exception`."""

_TREES: dict[Kind, Tree] = {"forecasts": FORECASTS, "scores": LEDGER}

_NO_ROWS = hashlib.sha256().hexdigest()

_GONE = (
    "forecasts/chain.jsonl was gone although rows had been stored with it: a new one is begun, in which they stand as "
    "stored before it; restore the old one from a backup if there is one, and compare with `cpb verify --hub USER/NAME`"
)


@dataclass(frozen=True)
class _Staged:
    """One file of a batch, in its draft."""

    entry: Entry
    move: Move


def append(
    home: Path,
    market: str,
    kind: Kind,
    batch: Mapping[SeriesId, pl.DataFrame],
    *,
    lost: Callable[[SeriesId, str], None] | None = None,
) -> dict[SeriesId, int | CpbError]:
    """Store the rows of a batch that are not stored yet, and their line; the first row under a key is kept.

    A null `made_at` is set to the current time. An error in one series does not stop the others. A damaged file is
    set aside first, recorded in its own line, and a new file is started.

    Args:
        batch: rows by series, all of one market.
        lost: called with a series and a sentence for each of its damaged files that was set aside.

    Returns:
        For each series the number of new rows, or the error for which none was stored (code `rows`: they break the
        contract or belong to another series).
    """
    done: dict[SeriesId, int | CpbError] = {}
    if not batch:
        return done
    tree, staged = _TREES[kind], list[_Staged]()
    try:
        with chain_lock(home, market) as chain_was_gone:
            now = datetime.now(UTC)
            if chain_was_gone and lost:
                lost(next(iter(batch)), _GONE)
            found = _stage_all(home, market, tree, _checked_all(batch, market, tree, now), lost)
            for series, mine in found.items():
                if isinstance(mine, CpbError):
                    done[series] = mine
                else:
                    staged += mine
                    done[series] = sum(one.entry.rows for one in mine)
            commit(home, market, kind, [one.entry for one in staged], [one.move for one in staged], now)
    except ANY_ERROR as error:
        # The whole batch failed: nothing is stored, or the next writer completes it.
        return {s: known if isinstance(known := done.get(s), CpbError) else as_error(s, error) for s in batch}
    return done


def as_error(series: SeriesId | str, error: BaseException) -> CpbError:
    """Return an error as a `CpbError`; an unexpected error is also logged with its traceback."""
    if isinstance(error, CpbError):
        return error
    if is_disk_full(error):
        return DiskFull(f"{series}: no space left on the disk; free some, or set CPB_HOME to another one")
    log.debug("%s failed", series, exc_info=error)
    reason = (str(error).splitlines() or [""])[0][:200]
    return CpbError(f"{series}: {type(error).__name__}: {reason}".rstrip(": "), code="unexpected")


@contextmanager
def chain_lock(home: Path, market: str, begin: bool = True) -> Iterator[bool]:
    """Hold the write lock of a market's forecasts and scores; an interrupted batch is completed first.

    Yields whether the chain file had been removed: it is missing, but rows were stored with a chain.

    Args:
        begin: start a missing chain, with a line for all rows that are already stored.
    """
    path = chain_path(home, market)
    gone = False
    with locked(path.with_name(".chain.lock")):
        finish_pending(home, market)
        if begin and not path.exists():
            gone = _begin(home, market)
        yield gone


def quarantine(
    home: Path, market: str, files: Sequence[tuple[SeriesId, Tree, str]], reason: str
) -> list[tuple[Path, str]]:
    """Set month files aside, or remove the records of missing files, and write a line; the caller holds the lock.

    Scores of lost forecasts are set aside too: a reissued forecast must not match the score of the lost forecast.

    Args:
        files: series, tree and month, `2024-01`.

    Returns:
        Each file's path and its new name, empty if the file was missing.
    """
    base = market_home(home, market)
    places: dict[Path, None] = {}
    for series, tree, month in files:
        places[series.folder(home, tree.name) / f"{month}.parquet"] = None
        for other in tree.companions:
            scores = series.folder(home, other.name) / f"{month}.parquet"
            if scores.exists():
                places[scores] = None
    entries, moves = [], []
    for path in places:
        digest = file_digest(path) if path.exists() else ""
        target = aside_name(path) if digest else path
        entries.append(Entry(below(base, path), 0, _NO_ROWS, digest))
        moves.append(Move(below(base, path), below(base, target), digest, lost=True))
    commit(home, market, "lost", entries, moves, datetime.now(UTC))
    for move in moves:
        if move.sha256:
            log.warning("%s is set aside as %s: %s", base / move.source, Path(move.target).name, reason)
    return [(base / move.source, Path(move.target).name if move.sha256 else "") for move in moves]


def restart(home: Path, market: str) -> None:
    """Start a new chain with the stored rows; an old chain is set aside. The caller holds the lock."""
    with suppress(FileNotFoundError):
        set_aside(chain_path(home, market), "it is damaged, as `cpb verify` says")
    _begin(home, market)


def register_rows(home: Path, market: str, files: Sequence[tuple[SeriesId, Tree, Path]]) -> None:
    """Write a line for the rows at the end of files that are in no line; the caller holds the lock.

    Raises:
        DamagedError: a file cannot be read.
    """
    chain = Chain.read(chain_path(home, market)) or Chain()
    entries = []
    for series, tree, path in files:
        file = below(market_home(home, market), path)
        rows = load(home, series, tree, path)
        known = chain.files.get(file, FileRecord()).rows
        entries.append(Entry(file, len(rows) - known, rows_digest(rows[known:]), file_digest(path)))
    commit(home, market, "before", entries, [], datetime.now(UTC))


def _checked_all(
    batch: Mapping[SeriesId, pl.DataFrame], market: str, tree: Tree, now: datetime
) -> dict[SeriesId, pl.DataFrame | CpbError]:
    """Return the rows of each series as they are to be stored, or its error.

    The contract is checked on all rows at once, since every rule compares rows of a single series; if that fails, it
    is checked series by series.
    """
    try:
        return {**_checked(batch, market, tree, now)}
    except ANY_ERROR as error:
        if len(batch) == 1:
            return {series: as_error(series, error) for series in batch}
    return {
        s: found for s, rows in batch.items() for found in _checked_all({s: rows}, market, tree, now).values()
    }


def _checked(
    batch: Mapping[SeriesId, pl.DataFrame], market: str, tree: Tree, now: datetime
) -> dict[SeriesId, pl.DataFrame]:
    """Return the rows as they are to be stored; raises the first error in any of them."""
    if others := [series for series in batch if series.market != market]:
        raise MemberError(f"{others[0]} is not of market {market}", code="rows", field="market")
    whole = pl.concat([_stamped(tree, rows, now) for rows in batch.values()], how="vertical")
    tree.check(whole)
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
    batch: Mapping[SeriesId, pl.DataFrame | CpbError],
    lost: Callable[[SeriesId, str], None] | None,
) -> dict[SeriesId, list[_Staged] | CpbError]:
    """Stage the rows of all series concurrently: most of the time is spent waiting for the disk."""
    staged, one_at_a_time, stopped = list[_Staged](), threading.Lock(), threading.Event()

    def stage(series: SeriesId, rows: pl.DataFrame | CpbError) -> list[_Staged] | CpbError:
        if isinstance(rows, CpbError):
            return rows
        try:
            mine = _stage(home, series, tree, rows, lost, one_at_a_time)
        except ANY_ERROR as error:
            return as_error(series, error)
        staged.extend(mine)
        if stopped.is_set():
            discard(home, market, [one.move for one in mine])
        return mine

    try:
        found = run_each([partial(stage, *one) for one in batch.items()], WRITERS)
    except BaseException:  # Ctrl-C: files staged so far belong to no batch
        stopped.set()
        discard(home, market, [one.move for one in staged])
        raise
    for one in found:
        if isinstance(one, Exception) and not isinstance(one, CpbError):
            raise one
    return dict(zip(batch, cast("list[list[_Staged] | CpbError]", found), strict=True))


def _stamped(tree: Tree, rows: pl.DataFrame, now: datetime) -> pl.DataFrame:
    """Return rows with null `made_at` set to `now`."""
    if "made_at" in tree.schema and rows.schema.get("made_at") == tree.schema["made_at"]:
        return rows.with_columns(pl.col("made_at").fill_null(now))
    return rows


def _stage(
    home: Path,
    series: SeriesId,
    tree: Tree,
    rows: pl.DataFrame,
    lost: Callable[[SeriesId, str], None] | None,
    one_at_a_time: threading.Lock,
) -> list[_Staged]:
    """Write drafts of a series' months with the new rows appended; if one month fails, all drafts are removed."""
    months = rows.with_columns(month=pl.col("issued_at").dt.strftime("%Y-%m"))
    staged: list[_Staged] = []
    try:
        for (month,), part in months.partition_by("month", as_dict=True).items():
            path = series.folder(home, tree.name) / f"{month}.parquet"
            old = _load_or_lose(home, series, tree, path, lost, one_at_a_time)
            new = part.drop("month").unique(tree.key, keep="first", maintain_order=True)
            if old is not None:
                new = new.join(old, on=list(tree.key), how="anti")
            if not new.is_empty():
                whole = new if old is None else pl.concat([old, new])
                staged.append(_draft(home, series.market, path, whole, new))
    except BaseException:
        discard(home, series.market, [one.move for one in staged])
        raise
    return staged


def _load_or_lose(
    home: Path,
    series: SeriesId,
    tree: Tree,
    path: Path,
    lost: Callable[[SeriesId, str], None] | None,
    one_at_a_time: threading.Lock,
) -> pl.DataFrame | None:
    """Return a month's rows; None if the file is missing or damaged. A damaged file is set aside.

    `one_at_a_time` is held while the line of a loss is written: only one line can be appended at a time.
    """
    try:
        return load(home, series, tree, path)
    except FileNotFoundError:
        return None
    except DamagedError as error:
        if error.code == UNREADABLE:
            raise
        reason = str(error.__cause__ or error)
    with one_at_a_time:
        (_, aside), *_ = quarantine(home, series.market, [(series, tree, path.stem)], reason)
        if lost:
            place = path.relative_to(home)
            text = f"{place} was damaged ({reason}) and is set aside as {aside}; {consequence(series, tree)}"
            lost(series, text)
    return None


def _draft(home: Path, market: str, path: Path, whole: pl.DataFrame, new: pl.DataFrame) -> _Staged:
    """Write a month's rows to a draft next to its file and sync it."""
    buffer = io.BytesIO()
    whole.write_parquet(buffer, compression="zstd")
    data = buffer.getbuffer()
    digest = hashlib.sha256(data).hexdigest()
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = draft_name(path)
    try:
        draft.write_bytes(data)
        sync(draft)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    base = market_home(home, market)
    file = below(base, path)
    return _Staged(Entry(file, len(new), rows_digest(new), digest), Move(below(base, draft), file, digest))


def _begin(home: Path, market: str) -> bool:
    """Start a chain with one line for all stored months.

    Returns whether forecasts are among them: they were written with a chain, which has been removed.
    """
    entries, gone = [], False
    for tree in TREES:
        for series in stored_series(home, tree.name):
            for path in month_files(series.folder(home, tree.name)) if series.market == market else ():
                try:
                    rows = load(home, series, tree, path)
                except DamagedError as error:  # the next write to it, or `cpb verify --repair`, sets it aside
                    log_once(path, f"{error}; it is left out of the chain")
                    continue
                if rows.is_empty():
                    continue
                gone |= tree is FORECASTS
                file = below(market_home(home, market), path)
                entries.append(Entry(file, len(rows), rows_digest(rows), file_digest(path)))
    commit(home, market, "before", entries, [], datetime.now(UTC))
    return gone
