"""The single write path of forecasts and scores: a batch of many series, and its line in the market's chain.

A batch is checked, written to drafts, and committed as a unit. The cost is two fsyncs and a rename per file; a database
would be as safe, but its rows could not be checked with a few lines of Python.

A draft's name contains its sha256, so the line alone describes what is to be done. It is first written to
`chain.pending`, which commits the batch, and removed when the files are renamed and the line is appended: after a crash
at any point either both the rows and the line are stored, or neither, and the next process completes the batch.

`check_months` compares what is stored with the chain, for `cpb verify`.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Literal

import polars as pl

from cpbmodels.files import open_regular, read_regular
from schemas.errors import CpbError, DamagedError, MemberError, log
from schemas.forecast_rows import KEY
from schemas.identity import SeriesId, market_home, tree_of
from tasks.forecasting.lines import (
    ORIGIN,
    Chain,
    Entry,
    FileRecord,
    Line,
    Slice,
    chain_path,
    first_misfit,
    has_line,
    last_line,
    line_hash,
    parse_line,
    rows_digest,
)
from tasks.forecasting.months import (
    CLOCK_STEP,
    FORECASTS,
    LEDGER,
    Tree,
    files_of_market,
    load,
    month_bytes,
    owner_of,
    parse_rows,
)
from tasks.forecasting.published import CHAIN, RESTORE, loss_sentence, restore_command, way_back
from tasks.running.parallel import run_each, thread_pool
from tasks.storage.files import DiskFull, is_disk_full, sync, write_bytes
from tasks.storage.locks import locked

Kind = Literal["forecasts", "scores"]
"""The content of a batch."""

ANY_ERROR = (Exception, pl.exceptions.PanicException)
"""Errors of a single series; polars' panics are not subclasses of `Exception`."""

WRITERS = 8
"""Files written concurrently: a disk handles many syncs in hardly more time than a single sync."""

_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"
_CHECKERS = 2  # Python threads; polars and hashing use further threads


def append(
    home: Path, market: str, kind: Kind, batch: Mapping[SeriesId, pl.DataFrame]
) -> dict[SeriesId, int | CpbError]:
    """Store the rows of a batch that are not stored yet, and their line; the first row under a key is kept.

    A null `made_at` is set to the current time. An error in one series does not stop the others: a damaged month stays
    as it is, and its series fails until the file is restored. A damaged chain goes on; `cpb verify` names it.

    Args:
        batch: rows by series, all of one market.

    Returns:
        For each series the number of new rows, or the error for which none was stored (code `rows`: they break the
        contract or belong to another series).
    """
    if not batch:
        return {}
    tree = FORECASTS if kind == "forecasts" else LEDGER
    staged = dict[SeriesId, list[Entry] | CpbError]()
    try:
        with chain_lock(home, market):
            # Under the lock: two batches cannot have the same time or number.
            now, is_valid = _batch_time(home, market), _is_valid(tree, batch)
            with _drafts(home, market, [series.folder(home, tree.name) for series in batch]):
                calls = [
                    partial(_stage, home, market, series, tree, rows, now, is_valid=is_valid)
                    for series, rows in batch.items()
                ]
                # Concurrently: most of the time is spent waiting for the disk.
                staged |= dict(zip(batch, run_each(calls, WRITERS), strict=True))  # type: ignore[arg-type]
                entries = [entry for part in staged.values() if isinstance(part, list) for entry in part]
                if entries:
                    _commit(home, market, kind, entries, now)
    except ANY_ERROR as error:
        # The whole batch failed: nothing is stored, or the next writer completes it.
        parts = {series: staged.get(series) for series in batch}
        return {s: part if isinstance(part, CpbError) else as_error(s, error) for s, part in parts.items()}
    return {
        series: part if isinstance(part, CpbError) else sum(entry.rows for entry in part)
        for series, part in staged.items()
    }


def as_error(series: SeriesId, error: BaseException) -> CpbError:
    """Return an error as a `CpbError`; an unexpected error is also logged with its traceback."""
    if isinstance(error, CpbError):
        return error
    if is_disk_full(error):
        return DiskFull(
            f"{series}: no space left on the disk of CPB_HOME; free some, then run the same command again"
        )
    log.debug("%s failed", series, exc_info=error)
    reason = (str(error).splitlines() or [""])[0][:200]
    return CpbError(f"{series}: {type(error).__name__}: {reason}".rstrip(": "), code="unexpected")


@contextmanager
def chain_lock(home: Path, market: str) -> Iterator[None]:
    """Hold the write lock of a market's forecasts and scores; an interrupted batch is completed first.

    Raises:
        DamagedError: the line of an interrupted batch is damaged or not the next of the chain, the chain is missing, or
            (code `other-record`) it does not go on from the published record.
    """
    with record_lock(home, market):
        if sentence := loss_sentence(home, market):
            raise DamagedError(sentence, code="other-record", field=str(chain_path(home, market)))
        # First: an interrupted batch may have created the chain that seems to be missing.
        complete_pending(home, market)
        chain = chain_path(home, market)
        if (not chain.exists() or not chain.stat().st_size) and any(files_of_market(home, market)):
            raise DamagedError(
                f"{chain} is missing or empty though rows were stored with lines in it: {RESTORE}, or fetch what "
                f"`cpb publish` sent and run `{restore_command(home, market)} --record FOLDER`; until then nothing is "
                "stored",
                field=str(chain),
            )
        yield


@contextmanager
def record_lock(home: Path, market: str) -> Iterator[None]:
    """Hold the write lock of a market's forecasts and scores, without any check of what is stored."""
    with locked(chain_path(home, market).with_name(".chain.lock")):
        yield


def complete_pending(home: Path, market: str) -> None:
    """Complete an interrupted batch, under the lock; a pending line that the chain has is only removed.

    Raises:
        DamagedError: the pending line is damaged, or neither the next nor a line of the chain, as after one of both was
            restored from a backup.
    """
    chain, pending = chain_path(home, market), pending_path(home, market)
    if not pending.exists():
        return
    fault = ""
    try:
        line = parse_line(read_regular(pending))
    except OSError as error:
        fault = f"cannot be read ({error.strerror})"
    except DamagedError as error:  # written by rename, so a crash never leaves it partial
        fault = f"is damaged: {error}"
    else:
        if _is_next(chain, line):
            _put_in_place(home, market, line)
        elif has_line(chain, line.encode()):
            pending.unlink()
        else:
            fault = f"is of another time: its line {line.number} does not follow the last line of {chain}"
    if fault:
        raise DamagedError(
            f"{pending} {fault}; {RESTORE} with all of forecasts and ledger, or delete it: rows of its batch that are "
            "in place then have no line in the chain",
            field=str(pending),
        )


def _is_next(chain: Path, line: Line) -> bool:
    """Whether a line belongs at the chain's end, where a crash may have left all or a part of it."""
    last = b""
    with suppress(FileNotFoundError):
        last = last_line(chain)
        # A crash while the line was appended left a part of it, or all; what counts is the line before.
        if line.encode().startswith(last):
            last = last_line(chain, cut=len(last))
    return line.previous == (line_hash(last) if last else ORIGIN)


@contextmanager
def _drafts(home: Path, market: str, folders: Sequence[Path]) -> Iterator[None]:
    """Remove the drafts in these folders that belong to no batch: before, those of a killed process; after, all."""

    def sweep() -> None:
        for draft in (draft for folder in folders for draft in folder.glob(".????-??.parquet.*")):
            draft.unlink(missing_ok=True)

    # A draft without a pending line belongs to no batch: its process was killed before the commit.
    sweep()
    try:
        yield
    finally:
        if not pending_path(home, market).exists():
            sweep()


def _batch_time(home: Path, market: str) -> datetime:
    """Return the time of a batch, which is never before that of the chain's last line.

    Raises:
        CpbError: (code `clock`) the clock was set back since by more than `CLOCK_STEP`: what is made now may be a
            replay that would count as live.
    """
    now, last = datetime.now(UTC), _line_time(chain_path(home, market))
    if last is None or last <= now:
        return now
    if last - now > CLOCK_STEP:
        # Where even the published record is ahead of this clock, going back to it would not help.
        published = _line_time(tree_of(home, "hub", market) / CHAIN)
        if published is not None and published <= now + CLOCK_STEP:
            back = f"`{restore_command(home, market, set_aside=True)}` goes back to the published record"
        else:
            places = (
                tree_of(home, tree, market).relative_to(home) for tree in ("forecasts", "ledger", "hub")
            )
            back = f"move {', '.join(map(str, places))} out of {home} to begin a new record"
        raise CpbError(
            f"the clock of this machine says {now:%Y-%m-%d %H:%M} UTC, but the last batch was stored at "
            f"{last:%Y-%m-%d %H:%M}, so nothing is stored: set the clock; if it was wrong then, {back}",
            code="clock",
            field=str(chain_path(home, market)),
        )
    return last


def _line_time(chain: Path) -> datetime | None:
    """Return the time of a chain's last line; None without one, or if it is damaged."""
    with suppress(OSError, DamagedError, ValueError):
        return datetime.strptime(parse_line(last_line(chain)).time, _TIME).replace(tzinfo=UTC)
    return None


def _is_valid(tree: Tree, batch: Mapping[SeriesId, pl.DataFrame]) -> bool:
    """Whether all rows meet their contract: one check takes a fifth of the time of a check per series."""
    with suppress(*ANY_ERROR):
        tree.check(pl.concat(batch.values()))
        return True
    return False


def _stage(
    home: Path,
    market: str,
    series: SeriesId,
    tree: Tree,
    rows: pl.DataFrame,
    now: datetime,
    *,
    is_valid: bool,
) -> list[Entry] | CpbError:
    """Write drafts of a series' months with the new rows appended, and sync them; return their entries or the error."""
    try:
        if not is_valid:
            tree.check(rows)
        values = {"market": {market}, "symbol": set(rows["symbol"]), "timeframe": set(rows["timeframe"])}
        # The file's place says whose rows it holds; a row of another coin in it would never be found.
        if others := [name for name in values if values[name] != {getattr(series, name)}]:
            text = f"rows of another series cannot be stored under {series}"
            raise MemberError(text, code="rows", field=others[0])
        if "made_at" in rows.columns:
            # The exchange's clock, by which a candle has closed, may be a little ahead.
            ahead = (pl.col("issued_at") > now) & (pl.col("issued_at") <= now + CLOCK_STEP)
            made_at = pl.when(ahead).then("issued_at").otherwise(pl.lit(now))
            rows = rows.with_columns(pl.col("made_at").fill_null(made_at))
        months = rows.group_by(pl.col("issued_at").dt.strftime("%Y-%m"), maintain_order=True)
        return [
            entry
            for (month,), part in months
            if (entry := _draft(home, series, tree, f"{month}.parquet", part))
        ]
    except ANY_ERROR as error:
        return as_error(series, error)


def _draft(home: Path, series: SeriesId, tree: Tree, name: str, rows: pl.DataFrame) -> Entry | None:
    """Write a month with its new rows appended to a draft next to its file; None if no row is new."""
    path = series.folder(home, tree.name) / name
    # The first stays: a forecast that was repeated after its candle is known must not replace it.
    new = rows.unique(KEY, keep="first", maintain_order=True)
    old = new.clear()
    place = path.relative_to(market_home(home, series.market)).as_posix()
    try:
        old = load(home, series, tree, path)
        new = new.join(old, on=list(KEY), how="anti", maintain_order="left")
    except FileNotFoundError:
        # A new file under a name that the chain knows would hide that the old one is lost.
        if _is_recorded(chain_path(home, series.market), place):
            raise DamagedError(
                f"{path.relative_to(home)} is missing, though the chain has rows of it; "
                f"{way_back(home, series.market, place)}: until then {series} stores nothing in that month",
                field=place,
            ) from None
    if new.is_empty():
        return None
    # The whole month is written anew: parquet cannot be appended to, and a month bounds the work.
    data = month_bytes(path, pl.concat([old, new]))
    digest = hashlib.sha256(data).hexdigest()
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft_of(path, digest)
    draft.write_bytes(data)
    sync(draft)
    return Entry(place, len(new), rows_digest(new), digest)


def _is_recorded(chain: Path, place: str) -> bool:
    """Whether a line of the chain names a month file; read only where the file is missing, as in a new month."""
    with suppress(FileNotFoundError, ValueError), open_regular(chain) as file:  # mmap refuses an empty file
        return mmap(file.fileno(), 0, access=ACCESS_READ).find(f'"{place}"'.encode()) >= 0
    return False


def _draft_of(path: Path, sha256: str) -> Path:
    """Return the draft of a file with this sha256."""
    return path.with_name(f".{path.name}.{sha256[:12]}")


def pending_path(home: Path, market: str) -> Path:
    """Return the path of the line of the batch being committed."""
    return chain_path(home, market).with_name("chain.pending")


def _commit(home: Path, market: str, kind: Kind, entries: Sequence[Entry], now: datetime) -> None:
    """Commit a batch, whose drafts are on disk."""
    chain = chain_path(home, market)
    chain.parent.mkdir(parents=True, exist_ok=True)
    number, previous = 0, ORIGIN
    with suppress(FileNotFoundError):
        if raw := last_line(chain):
            previous = line_hash(raw)  # for a damaged line, the hash of its current text
            try:
                number = parse_line(raw).number
            except DamagedError:
                number = len(chain.read_bytes().splitlines())
    time = now.strftime(_TIME)
    line = Line(number + 1, time, kind, tuple(entries), previous)
    # The commit: from here on the batch is completed, by this process or the next.
    write_bytes(pending_path(home, market), line.encode())
    sync(chain.parent)
    _put_in_place(home, market, line)


def _put_in_place(home: Path, market: str, line: Line) -> None:
    """Rename the files, append the line, remove the pending line; can be repeated after a crash at any point."""
    base = market_home(home, market)
    calls = [partial(_rename, base / entry.file, entry.file_sha256) for entry in line.entries]
    # All files before the line: a line whose file is missing would look like a loss.
    for error in run_each(calls, WRITERS):
        if error is not None:
            raise error
    _append_line(chain_path(home, market), line.encode())
    pending_path(home, market).unlink()


def _rename(path: Path, sha256: str) -> None:
    """Rename a draft into its place, unless that is done."""
    if (draft := _draft_of(path, sha256)).exists():
        draft.replace(path)
        sync(path.parent)


def _append_line(chain: Path, line: bytes) -> None:
    """Append a line if it is not there yet; a part of it that a crash left is replaced, any other content stays."""
    new = not chain.exists()
    # Not through a link: a planted one would have the line appended to a file elsewhere.
    handle = os.open(chain, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    with os.fdopen(handle, "r+b") as file:
        last = last_line(chain)
        if last == line:
            return
        end = file.seek(0, 2)
        # A part of this very line, as a crash in the middle of the write leaves.
        if line.startswith(last):
            file.truncate(file.seek(end - len(last)))
        elif not last.endswith(b"\n"):  # a truncated last line must not corrupt this line
            line = b"\n" + line
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
    if new:
        sync(chain.parent)


def check_months(home: Path, market: str) -> Iterator[tuple[Path, str]]:
    """Yield a market's chain, and its months of forecasts and scores, each with its fault ("" for none).

    Writers wait meanwhile. A home that cannot be written has none, and gets no lock.
    """
    base, path, pending = market_home(home, market), chain_path(home, market), pending_path(home, market)
    with ExitStack() as stack:
        if (pending.exists() or any(files_of_market(home, market))) and os.access(base, os.W_OK):
            stack.enter_context(record_lock(home, market))
            try:
                complete_pending(home, market)
            except DamagedError as error:
                yield pending, str(error)
        chain = Chain.read(path)
        stored = {month.relative_to(base).as_posix() for _, _, month in files_of_market(home, market)}
        if chain is None:
            if stored:
                yield path, "the file is missing, though rows were stored with lines in it"
        elif stored or chain.lines:  # else the file may not be cpb's
            empty = "the file is empty, though rows were stored with lines in it"
            yield path, chain.fault or ("" if path.stat().st_size else empty)
        # A chain that cannot be read to its end says nothing of later rows: the months are then checked by
        # their own digests alone.
        records = None if chain is None or chain.fault else chain.files

        def check(name: str) -> tuple[Path, str]:
            slices = None if records is None else records.get(name, FileRecord()).slices
            return base / name, _fault(
                base / name, FORECASTS if name.startswith("forecasts") else LEDGER, slices
            )

        months = [name for name in sorted(stored.union(records or ())) if owner_of(name, market)]
        with thread_pool(_CHECKERS, "verify") as pool:
            yield from pool.map(check, months)


def _fault(path: Path, tree: Tree, slices: Sequence[Slice] | None) -> str:
    """Return the fault of a month file, "" for none; `slices`: the chain's, None if it is missing or damaged."""
    try:
        rows = parse_rows(path, tree.schema)
    except FileNotFoundError:
        return "the file is missing"
    except DamagedError as error:
        return (
            f"{error}; line {slices[0].line} of the chain records its first batch" if slices else str(error)
        )
    misfit = None if slices is None else first_misfit(rows, slices)
    if not misfit:
        return ""
    start, line = misfit
    if not line:
        return f"row {start + 1} and the rows after it have no line in the chain"
    return f"row {start + 1}, or a later row of the same batch, is missing or differs from line {line} of the chain"
