"""The single write path of forecasts and scores: a batch of many series, and its line in the market's chain.

A batch is staged in drafts, then described in `chain.pending`, then put in place: files renamed, the line appended.
Whoever takes the chain's lock next finishes what a killed process left there, so that rows and line are there both or
neither. Two fsyncs a file and a rename each is what it costs; a database would be as safe, but no one could check its
rows with a few lines of Python.
"""

import hashlib
import io
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import polars as pl

from schemas.errors import CpbError, DamagedError, MemberError
from schemas.forecasts import EARLIER_SCHEMA
from schemas.identity import SeriesId, market_home, stored_series
from tasks.forecasting.index import announce, forget, log_once, month_files
from tasks.forecasting.lines import (
    ORIGIN,
    BatchKind,
    Chain,
    Entry,
    FileRecord,
    Line,
    chain_path,
    last_line,
    line_hash,
    parse_line,
    rows_digest,
)
from tasks.forecasting.months import FORECASTS, LEDGER, TREES, UNREADABLE, Tree, consequence, load
from tasks.storage.digests import file_digest
from tasks.storage.files import DiskFull, draft_name, is_disk_full, sync, write_json
from tasks.storage.locks import locked
from tasks.storage.records import aside_name, set_aside

log = logging.getLogger("cpb")

Kind = Literal["forecasts", "scores"]
"""What a batch holds."""

ANY_ERROR = (Exception, pl.exceptions.PanicException)
"""Whatever can go wrong in one series; polars' panics are no `Exception`."""

_TREES: dict[Kind, Tree] = {"forecasts": FORECASTS, "scores": LEDGER}

_NO_ROWS = hashlib.sha256().hexdigest()


_GONE = (
    "forecasts/chain.jsonl was gone although rows had been stored with it: a new one is begun, in which they stand as "
    "stored before it; restore the old one from a backup if there is one, and compare with `cpb verify --hub USER/NAME`"
)


@dataclass(frozen=True)
class Move:
    """One rename of a batch, paths below the market's home: a draft into its place, or a lost file aside.

    `sha256` is that of the bytes which move; `lost` whether the file's digest is forgotten instead of recorded.
    """

    source: str
    target: str
    sha256: str
    lost: bool = False


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
    """Store the rows of a batch that are not there yet, and their line; the first row under a key stands.

    A null `made_at` becomes the clock's time. What is wrong with one series stops no other. A damaged file is set
    aside first, in a line of its own, and a new one begun.

    Args:
        batch: rows by series, all of one market.
        lost: called with a series and a sentence for each of its damaged files that was set aside.

    Returns:
        For each series how many of its rows were new, or why none was stored (code `rows`: they break the contract or
        are of another series).
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
            try:
                for series, rows in batch.items():
                    try:
                        mine = _stage(home, series, tree, _checked(series, market, tree, rows, now), lost)
                    except ANY_ERROR as error:
                        done[series] = as_error(series, error)
                    else:
                        staged += mine
                        done[series] = sum(one.entry.rows for one in mine)
            except BaseException:  # Ctrl-C: what is staged already is no part of any batch
                _discard(home, market, [one.move for one in staged])
                raise
            _commit(home, market, kind, [one.entry for one in staged], [one.move for one in staged], now)
    except ANY_ERROR as error:
        # Of the whole batch: nothing is stored, or the next writer finishes it.
        return {s: found if isinstance(found := done.get(s), CpbError) else as_error(s, error) for s in batch}
    return done


def as_error(series: SeriesId, error: BaseException) -> CpbError:
    """Return an error as a sentence of ours; one that nobody foresaw is also logged with its traceback."""
    if isinstance(error, CpbError):
        return error
    if is_disk_full(error):
        return DiskFull(f"{series}: no space left on the disk; free some, or set CPB_HOME to another one")
    log.debug("%s failed", series, exc_info=error)
    reason = (str(error).splitlines() or [""])[0][:200]
    return CpbError(f"{series}: {type(error).__name__}: {reason}".rstrip(": "), code="unexpected")


@contextmanager
def chain_lock(home: Path, market: str, begin: bool = True) -> Iterator[bool]:
    """Be the only writer of a market's forecasts and scores; what a killed one left unfinished is finished first.

    Yields whether the chain had been removed: there was none, but rows that were stored with one.

    Args:
        begin: where there is no chain yet, begin one with a line for all rows that are stored already.
    """
    path = chain_path(home, market)
    gone = False
    with locked(path.with_name(".chain.lock")):
        finish_pending(home, market)
        if begin and not path.exists():
            gone = _begin(home, market)
        yield gone


def lose(
    home: Path, market: str, files: Sequence[tuple[SeriesId, Tree, str]], reason: str
) -> list[tuple[Path, str]]:
    """Set months' files aside, or forget those that are gone, and write a line of it; the caller holds the lock.

    Scores of forecasts that are lost go with them: a forecast made again must not find a score that was another's.

    Args:
        files: series, tree and month, `2024-01`.

    Returns:
        Each file's path, and its name now, empty where it was gone.
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
        entries.append(Entry(_below(base, path), 0, _NO_ROWS, digest))
        moves.append(Move(_below(base, path), _below(base, target), digest, lost=True))
    _commit(home, market, "lost", entries, moves, datetime.now(UTC))
    for move in moves:
        if move.sha256:
            log.warning("%s is set aside as %s: %s", base / move.source, Path(move.target).name, reason)
    return [(base / move.source, Path(move.target).name if move.sha256 else "") for move in moves]


def pending_path(home: Path, market: str) -> Path:
    """Return the file that describes a batch which is being put in place."""
    return chain_path(home, market).with_name("chain.pending")


def restart(home: Path, market: str) -> None:
    """Begin a new chain with the rows that are stored; an old one is set aside. The caller holds the lock."""
    with suppress(FileNotFoundError):
        set_aside(chain_path(home, market), "it is damaged, as `cpb verify` says")
    _begin(home, market)


def adopt(home: Path, market: str, files: Sequence[tuple[SeriesId, Tree, Path]]) -> None:
    """Write a line for the rows at the end of files that have none; the caller holds the lock.

    Raises:
        DamagedError: a file cannot be read.
    """
    chain = Chain.read(chain_path(home, market)) or Chain()
    entries = []
    for series, tree, path in files:
        file = _below(market_home(home, market), path)
        rows = load(home, series, tree, path)
        known = chain.files.get(file, FileRecord()).rows
        entries.append(Entry(file, len(rows) - known, rows_digest(rows[known:]), file_digest(path)))
    _commit(home, market, "before", entries, [], datetime.now(UTC))


def finish_pending(home: Path, market: str) -> None:
    """Finish the batch that a killed process left; the caller holds the lock.

    Raises:
        DiskFull, OSError: it cannot be finished now; it stays for the next call.
    """
    pending = pending_path(home, market)
    try:
        found = json.loads(pending.read_bytes())
        line, offset = str(found["line"]).encode(), int(found["offset"])
        moves = [Move(**move) for move in found["moves"]]
        parse_line(line)
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError, DamagedError) as error:
        # It is written by rename, so no crash leaves a half of it. `cpb verify` finds rows that have no line.
        aside = pending.rename(aside_name(pending))
        log.warning("%s cannot be read (%s) and is set aside as %s", pending, error, aside.name)
        return
    _put_in_place(home, market, moves, line, offset)


def _checked(series: SeriesId, market: str, tree: Tree, rows: pl.DataFrame, now: datetime) -> pl.DataFrame:
    if series.market != market:
        raise MemberError(f"{series} is not of market {market}", code="rows", field="market")
    if "made_at" in tree.schema and rows.schema.get("made_at") == tree.schema["made_at"]:
        rows = rows.with_columns(pl.col("made_at").fill_null(now))
    tree.check(rows)
    if rows.select("symbol", "timeframe").unique().rows() != [(series.symbol, series.timeframe)]:
        raise MemberError(
            f"rows of another series cannot be stored under {series}", code="rows", field="symbol"
        )
    return rows


def _stage(
    home: Path,
    series: SeriesId,
    tree: Tree,
    rows: pl.DataFrame,
    lost: Callable[[SeriesId, str], None] | None,
) -> list[_Staged]:
    """Write the months of one series with the new rows at their end into drafts; none where one fails."""
    months = rows.with_columns(month=pl.col("issued_at").dt.strftime("%Y-%m"))
    staged: list[_Staged] = []
    try:
        for (month,), part in months.partition_by("month", as_dict=True).items():
            path = series.folder(home, tree.name) / f"{month}.parquet"
            old = _load_or_lose(home, series, tree, path, lost)
            new = part.drop("month").unique(tree.key, keep="first", maintain_order=True)
            if old is not None:
                new = new.join(old, on=list(tree.key), how="anti")
            if not new.is_empty():
                whole = new if old is None else pl.concat([old, new])
                staged.append(_draft(home, series.market, path, whole, new))
    except BaseException:
        _discard(home, series.market, [one.move for one in staged])
        raise
    return staged


def _load_or_lose(
    home: Path,
    series: SeriesId,
    tree: Tree,
    path: Path,
    lost: Callable[[SeriesId, str], None] | None,
) -> pl.DataFrame | None:
    """Return a month's rows, None where there are none or they are damaged, and so are set aside."""
    try:
        return load(home, series, tree, path)
    except FileNotFoundError:
        return None
    except DamagedError as error:
        if error.code == UNREADABLE:
            raise
        reason = str(error.__cause__ or error)
    (_, aside), *_ = lose(home, series.market, [(series, tree, path.stem)], reason)
    if lost:
        place = path.relative_to(home)
        lost(
            series,
            f"{place} was damaged ({reason}) and is set aside as {aside}; {consequence(series, tree)}",
        )
    return None


def _draft(home: Path, market: str, path: Path, whole: pl.DataFrame, new: pl.DataFrame) -> _Staged:
    """Write a month's rows into a draft beside its file, synced."""
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
    file = _below(base, path)
    return _Staged(Entry(file, len(new), rows_digest(new), digest), Move(_below(base, draft), file, digest))


def _begin(home: Path, market: str) -> bool:
    """Begin a chain with one line for all months that are stored; those of earlier versions get today's columns.

    Returns whether a month has them already: it was written with a chain, which is gone.
    """
    entries, moves, gone = [], [], False
    try:
        for tree in TREES:
            for series in stored_series(home, tree.name):
                for path in month_files(series.folder(home, tree.name)) if series.market == market else ():
                    try:
                        rows = load(home, series, tree, path)
                    except DamagedError as error:  # its next writer, or `cpb verify --repair`, sets it aside
                        log_once(path, f"{error}; it is left out of the chain")
                        continue
                    if rows.is_empty():
                        continue
                    if tree is FORECASTS and pl.read_parquet_schema(path).keys() == EARLIER_SCHEMA.keys():
                        staged = _draft(home, market, path, rows, rows)
                        entries.append(staged.entry)
                        moves.append(staged.move)
                        continue
                    gone |= tree is FORECASTS
                    file = _below(market_home(home, market), path)
                    entries.append(Entry(file, len(rows), rows_digest(rows), file_digest(path)))
        _commit(home, market, "before", entries, moves, datetime.now(UTC))
    except BaseException:
        if not pending_path(home, market).exists():
            _discard(home, market, moves)
        raise
    return gone


def _commit(
    home: Path, market: str, kind: BatchKind, entries: Sequence[Entry], moves: Sequence[Move], now: datetime
) -> None:
    """Describe a batch in the pending file, then put it in place; drafts vanish where it cannot be described."""
    if not entries:
        return
    chain = chain_path(home, market)
    chain.parent.mkdir(parents=True, exist_ok=True)
    line = _next_line(chain, kind, entries, now).encode()
    offset = chain.stat().st_size if chain.exists() else 0
    try:
        found = {"line": line.decode(), "offset": offset, "moves": [asdict(move) for move in moves]}
        write_json(pending_path(home, market), found)
        sync(chain.parent)
    except BaseException:
        if not pending_path(home, market).exists():
            _discard(home, market, moves)
        raise
    _put_in_place(home, market, moves, line, offset)


def _next_line(chain: Path, kind: BatchKind, entries: Sequence[Entry], now: datetime) -> Line:
    """Return the chain's next line. Behind a damaged last line it goes on; `cpb verify` names that one."""
    number, previous = 0, ORIGIN
    with suppress(FileNotFoundError):
        if raw := last_line(chain):
            previous = line_hash(raw)  # of a damaged line: that of its text as it is
            try:
                number = parse_line(raw).number
            except DamagedError as error:
                number = len(chain.read_bytes().splitlines())
                log_once(
                    chain, f"the last line of {chain} is damaged ({error}); `cpb verify` says what to do"
                )
    time = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return Line(number + 1, time, kind, tuple(entries), previous)


def _put_in_place(home: Path, market: str, moves: Sequence[Move], line: bytes, offset: int) -> None:
    """Rename the files, append the line, remove the pending file; can be repeated from any point on."""
    base, chain = market_home(home, market), chain_path(home, market)
    for move in moves:
        source, target = base / move.source, base / move.target
        if move.lost:
            if move.sha256 and source.exists() and file_digest(source) == move.sha256:
                source.rename(target)
            forget(source.parent, source.stem)
        elif source.exists():
            announce(target, move.sha256)
            source.rename(target)
    for folder in {(base / move.target).parent for move in moves}:
        if folder.exists():  # that of a file which is gone may be gone too
            sync(folder)
    _append_line(chain, line, offset)
    pending_path(home, market).unlink()


def _append_line(chain: Path, line: bytes, offset: int) -> None:
    """Write a line at `offset`, over a part of it that a crash left there; behind anything else at the end."""
    new = not chain.exists()
    handle = os.open(chain, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    with os.fdopen(handle, "r+b") as file:
        start = min(file.seek(0, 2), offset)
        if start:  # a last line that lost its end is not to spoil this one
            file.seek(start - 1)
            line = line if file.read(1) == b"\n" else b"\n" + line
        file.seek(start)
        there = file.read()
        if there == line:
            return
        if line.startswith(there):
            file.truncate(start)
        file.seek(0, 2)
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
    if new:
        sync(chain.parent)


def _discard(home: Path, market: str, moves: Sequence[Move]) -> None:
    for move in moves:
        if not move.lost:
            with suppress(OSError):
                (market_home(home, market) / move.source).unlink(missing_ok=True)


def _below(base: Path, path: Path) -> str:
    return path.relative_to(base).as_posix()
