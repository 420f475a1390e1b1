"""Crash-safe commit of a batch: its line is written beside the chain, its files are renamed, its line is appended.

A batch's files wait in drafts whose names contain their sha256, so the line alone describes what is to be done. It is
first written to `chain.pending`, which commits the batch, and removed when all is in place: after a crash at any point
either both the rows and the line are stored, or neither, and the next process completes the batch. All functions except
the names of files require the chain's lock.
"""

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path

from schemas.errors import DamagedError
from schemas.identity import market_home
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
from tasks.forecasting.months import log_once
from tasks.running.parallel import run_each
from tasks.storage.digests import file_digest
from tasks.storage.files import rename, sync, write_bytes
from tasks.storage.records import aside_name, set_aside

log = logging.getLogger("cpb")

WRITERS = 8
"""Files written concurrently: a disk handles many syncs in hardly more time than a single sync."""


def draft_of(path: Path, sha256: str) -> Path:
    """Return the draft of a file with this sha256."""
    return path.with_name(f".{path.name}.{sha256[:12]}")


def pending_path(home: Path, market: str) -> Path:
    """Return the path of the line of the batch being committed."""
    return chain_path(home, market).with_name("chain.pending")


def commit(home: Path, market: str, kind: BatchKind, entries: Sequence[Entry], now: datetime) -> None:
    """Commit a batch, whose drafts are on disk; of kind `lost`, the files of the entries are set aside instead."""
    if not entries:
        return
    chain = chain_path(home, market)
    chain.parent.mkdir(parents=True, exist_ok=True)
    line = _next_line(chain, kind, entries, now)
    write_bytes(pending_path(home, market), line.encode())
    sync(chain.parent)
    _put_in_place(home, market, line)


def finish_pending(home: Path, market: str) -> None:
    """Complete the batch of a killed process.

    Raises:
        DiskFull, OSError: it cannot be completed now; the next call tries again.
    """
    pending = pending_path(home, market)
    try:
        line = parse_line(pending.read_bytes())
    except FileNotFoundError:
        return
    except DamagedError as error:
        # It is written by rename, so a crash never leaves it partial. `cpb verify` finds rows that are in no line.
        set_aside(pending, str(error))
        return
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
    calls = [
        partial(_rename, base / entry.file, entry.file_sha256, line.kind == "lost") for entry in line.entries
    ]
    for error in run_each(calls, WRITERS):
        if error is not None:
            raise error
    _append_line(chain_path(home, market), line.encode())
    pending_path(home, market).unlink()


def _rename(path: Path, sha256: str, is_lost: bool) -> None:
    """Rename a draft into its place, or a lost file aside, unless that is done."""
    if not is_lost and (draft := draft_of(path, sha256)).exists():
        rename(draft, path)
    elif is_lost and path.exists() and file_digest(path) == sha256:
        rename(path, aside_name(path))


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
