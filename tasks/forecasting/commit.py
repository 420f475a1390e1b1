"""Crash-safe commit of a batch: described, renamed, its line appended; completed by the next process after a crash.

The batch is described in `chain.pending`, its drafts are renamed into place, then `chain.pending` is removed. So after
a crash at any point either both the rows and the line are stored, or neither. All functions except `pending_path` and
`below` require the chain's lock.
"""

import json
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from schemas.errors import DamagedError
from schemas.identity import market_home
from tasks.forecasting.index import announce, forget, log_once
from tasks.forecasting.lines import (
    ORIGIN,
    BatchKind,
    Entry,
    Line,
    chain_path,
    last_line,
    line_hash,
    parse_line,
)
from tasks.running.parallel import run_each
from tasks.storage.digests import file_digest
from tasks.storage.files import sync, write_json
from tasks.storage.records import aside_name

log = logging.getLogger("cpb")

WRITERS = 8
"""Files written concurrently: a disk handles many syncs in hardly more time than a single sync."""


@dataclass(frozen=True)
class Move:
    """One rename of a batch, paths below the market's home: a draft into its place, or a lost file aside.

    `sha256`: of the file's bytes. `lost`: the file's digest is removed instead of recorded.
    """

    source: str
    target: str
    sha256: str
    lost: bool = False


def commit(
    home: Path, market: str, kind: BatchKind, entries: Sequence[Entry], moves: Sequence[Move], now: datetime
) -> None:
    """Describe a batch in the pending file, then apply it; remove the drafts if the description cannot be written."""
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
            discard(home, market, moves)
        raise
    _put_in_place(home, market, moves, line, offset)


def finish_pending(home: Path, market: str) -> None:
    """Complete the batch of a killed process; the caller holds the lock.

    Raises:
        DiskFull, OSError: it cannot be completed now; the next call tries again.
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
        # It is written by rename, so a crash never leaves it partial. `cpb verify` finds rows that are in no line.
        aside = pending.rename(aside_name(pending))
        log.warning("%s cannot be read (%s) and is set aside as %s", pending, error, aside.name)
        return
    _put_in_place(home, market, moves, line, offset)


def pending_path(home: Path, market: str) -> Path:
    """Return the path of the file that describes the batch being committed."""
    return chain_path(home, market).with_name("chain.pending")


def discard(home: Path, market: str, moves: Sequence[Move]) -> None:
    """Remove the drafts of a cancelled batch."""
    for move in moves:
        if not move.lost:
            with suppress(OSError):
                (market_home(home, market) / move.source).unlink(missing_ok=True)


def below(base: Path, path: Path) -> str:
    """Return a path relative to the market's home, as batches and lines record it."""
    return path.relative_to(base).as_posix()


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


def _put_in_place(home: Path, market: str, moves: Sequence[Move], line: bytes, offset: int) -> None:
    """Rename the files, append the line, remove the pending file; can be repeated after a crash at any point."""
    base, chain = market_home(home, market), chain_path(home, market)
    folders: dict[Path, list[Move]] = {}
    for move in moves:
        folders.setdefault((base / move.target).parent, []).append(move)
    calls = [partial(_put_folder_in_place, base, folder, mine) for folder, mine in folders.items()]
    for error in run_each(calls, WRITERS):
        if error is not None:
            raise error
    _append_line(chain, line, offset)
    pending_path(home, market).unlink()


def _put_folder_in_place(base: Path, folder: Path, moves: Sequence[Move]) -> None:
    """Rename the files of one folder in order: they share the folder's index."""
    for move in moves:
        source, target = base / move.source, base / move.target
        if move.lost:
            if move.sha256 and source.exists() and file_digest(source) == move.sha256:
                source.rename(target)
            forget(source.parent, source.stem)
        elif source.exists():
            announce(target, move.sha256)
            source.rename(target)
    if folder.exists():  # it may be missing together with its file
        sync(folder)


def _append_line(chain: Path, line: bytes, offset: int) -> None:
    """Write a line at `offset`, replacing a partial copy left by a crash; append it after any other content."""
    new = not chain.exists()
    handle = os.open(chain, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    with os.fdopen(handle, "r+b") as file:
        start = min(file.seek(0, 2), offset)
        if start:  # a truncated last line must not corrupt this line
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
