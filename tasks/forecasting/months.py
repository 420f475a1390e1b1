"""Month files: `HOME/forecasts/interval=IV/symbol=SYM/YYYY-MM.parquet`, and the same under `ledger`.

Rows are only appended (`chain.append`), by rename; one file per month (with a file per forecast, 40 hourly series would
make 350,000 files a year). A damaged file is reported and skipped on reading; writing to it fails until it is restored.

Each file holds its own digest, in its metadata: a reader then needs no second file, which a writer would have to
replace at the same moment. Bytes without a matching digest are never parsed: polars ends the process (SIGABRT, an
allocation of exabytes) for about one in a thousand flipped bits of a page, which no caller can catch.
"""

import hashlib
import io
import logging
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from schemas.errors import DamagedError, MemberError
from schemas.forecasts import (
    FORECAST_SCHEMA,
    KEY,
    LEDGER_SCHEMA,
    check_columns,
    check_forecasts,
    check_ledger,
)
from schemas.identity import SeriesId, stored_series

log = logging.getLogger("cpb")

MONTH_FILE = re.compile(r"(forecasts|ledger)(-\w+)?/interval=(\w+)/symbol=(\w+)/([0-9]{4}-[0-9]{2})\.parquet")
"""Path of a month file below a market's home, or in a published record."""

NO_PARQUET = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError)
"""Errors of polars for bytes that are not a complete parquet file. Some of them cause a Rust panic."""

RESTORE = "restore it from a backup"
"""What to do about a damaged file that no command makes again."""

_KEY, _BLANK = "cpb.sha256", "0" * 64
_MARK = b"\x18\x0a" + _KEY.encode() + b"\x18\x40"
"""The bytes before the 64 hex digits, in the footer's metadata: both texts with their lengths, as Thrift has them."""
_TAIL = 8  # a parquet file ends with the length of its footer, 4 bytes, and "PAR1"


@dataclass(frozen=True)
class Tree:
    """One kind of month files.

    `name` is its folder below the home, `schema` and `check` the contract of its rows, `key` the columns that identify
    a row.
    """

    name: str
    schema: dict[str, Any]
    key: tuple[str, ...]
    check: Callable[[pl.DataFrame], pl.DataFrame]


LEDGER = Tree("ledger", LEDGER_SCHEMA, KEY, check_ledger)
FORECASTS = Tree("forecasts", FORECAST_SCHEMA, KEY, check_forecasts)
TREES = (LEDGER, FORECASTS)


def owner_of(name: str, market: str) -> tuple[SeriesId, Tree] | None:
    """Return the series and tree of a month file by its path below the market's home; None for any other path."""
    if found := MONTH_FILE.fullmatch(name):
        tree = next(tree for tree in TREES if tree.name == found[1])
        return SeriesId(market, found[4], found[3]), tree  # type: ignore[arg-type]
    return None


def month_of(moment: datetime) -> str:
    """Return the month of a UTC time, as `2024-01`."""
    return f"{moment.year:04d}-{moment.month:02d}"


def month_files(folder: Path) -> list[Path]:
    """Return the month files of a folder, oldest first."""
    return sorted(folder.glob("????-??.parquet"))


def files_of_market(home: Path, market: str) -> Iterator[tuple[SeriesId, Tree, Path]]:
    """Yield series, tree and path of all month files of a market."""
    for tree in TREES:
        for series in stored_series(home, tree.name):
            if series.market == market:
                for path in month_files(series.folder(home, tree.name)):
                    yield series, tree, path


def read_months(
    home: Path, series: SeriesId, tree: Tree, since: datetime | None = None, until: datetime | None = None
) -> pl.DataFrame:
    """Return the rows of a series with `issued_at` in the bounds (inclusive).

    A damaged file is skipped and logged once; the other months are still read.
    """
    first, last = month_of(since) if since else "", month_of(until) if until else "9999-12"
    files = [f for f in month_files(series.folder(home, tree.name)) if first <= f.stem <= last]
    parts = [rows for file in files if (rows := read_month(home, series, tree, file.stem)) is not None]
    frame = pl.concat(parts) if parts else pl.DataFrame(schema=tree.schema)
    if since:
        frame = frame.filter(pl.col("issued_at") >= since)
    return frame.filter(pl.col("issued_at") <= until) if until else frame


def read_month(home: Path, series: SeriesId, tree: Tree, month: str) -> pl.DataFrame | None:
    """Return a month's rows; None if the file is missing, or damaged, which is logged once."""
    path = series.folder(home, tree.name) / f"{month}.parquet"
    try:
        return load(home, series, tree, path)
    except FileNotFoundError:
        return None
    except DamagedError as error:
        log_once(path, str(error))
        return None


def count_rows(path: Path) -> int:
    """Return the row count in a file's footer; -1 if the file is missing or damaged."""
    try:
        return int(
            pl.scan_parquet(path, glob=False, hive_partitioning=False).select(pl.len()).collect().item()
        )
    except NO_PARQUET:
        return -1


def load(home: Path, series: SeriesId, tree: Tree, path: Path) -> pl.DataFrame:
    """Return a month file's rows.

    Raises:
        FileNotFoundError: the file is missing.
        DamagedError: it is not the file written, or may not be read; the message states the file, the reason and what
            to do.
    """
    try:
        return parse_rows(tree, read_bytes(path))
    except DamagedError as error:
        place = path.relative_to(home)
        raise DamagedError(
            f"{place} is damaged: {error}; {RESTORE}: until then {series} stores nothing in that month",
            field=place.as_posix(),
        ) from error


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a month file if they match its own digest.

    Hashing costs a third of a read (1.3 ms a month), so a process hashes each state of a file once.

    Raises:
        FileNotFoundError: the file is missing.
        DamagedError: they do not match, or the file may not be read; the message is only the reason.
    """
    try:
        with path.open("rb") as file:
            content, state = file.read(), _state(os.fstat(file.fileno()))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DamagedError(f"it cannot be read ({error.strerror})") from error
    if _checked.get(path) != state:
        at = _digest_at(content)
        if at < 0 or content[at : at + 64] != _own_digest(path, content, at):
            raise DamagedError("its sha256 differs from the recorded sha256")
        _checked[path] = state
    return content


def month_bytes(path: Path, rows: pl.DataFrame) -> bytes:
    """Return the content of the month file at `path` with these rows, its digest included."""
    buffer = io.BytesIO()
    # Without statistics, which no reader uses: they are 6 kB of a file and a third of the time.
    rows.write_parquet(buffer, compression="zstd", statistics=False, metadata={_KEY: _BLANK})
    content = bytearray(buffer.getbuffer())
    at = _digest_at(content)
    content[at : at + 64] = _own_digest(path, content, at)
    return bytes(content)


def recorded_digest(path: Path) -> str:
    """Return the digest in a month file without checking it: the identity of its content; "" if there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL))
            file.seek(max(0, size - _TAIL - _footer_bytes(file.read())))
            footer = file.read()
    except FileNotFoundError:
        return ""
    at = _digest_at(footer)
    return footer[at : at + 64].decode(errors="replace") if at >= 0 else ""


def _digest_at(content: bytes | bytearray) -> int:
    """Return where the digest begins in a file's bytes, or in those of its footer; -1 if it has none."""
    start = max(0, len(content) - _TAIL - _footer_bytes(content[-_TAIL:]))
    found = content.rfind(_MARK, start)
    return -1 if found < 0 else found + len(_MARK)


def _footer_bytes(tail: bytes | bytearray) -> int:
    return int.from_bytes(tail[:4], "little")


def _own_digest(path: Path, content: bytes | bytearray, at: int) -> bytes:
    """Return the sha256, in hex, of a file's path and of its bytes with zeros in place of the digest.

    The path below the market's home is included, so that exchanged files are found.
    """
    view = memoryview(content)
    digest = hashlib.sha256("/".join(path.parts[-4:]).encode())
    for part in (view[:at], _BLANK.encode(), view[at + 64 :]):
        digest.update(part)
    return digest.hexdigest().encode()


def parse_rows(tree: Tree, content: bytes) -> pl.DataFrame:
    """Return the rows in a month file's bytes; the message of a `DamagedError` is only the reason."""
    try:
        rows = pl.read_parquet(io.BytesIO(content), hive_partitioning=False)
        return check_columns(rows, tree.schema)
    except MemberError as error:
        raise DamagedError(str(error)) from error
    except NO_PARQUET as error:
        raise _no_rows(error) from error


def _no_rows(error: BaseException) -> DamagedError:
    text = (str(error).splitlines() or [type(error).__name__])[0][:80]
    return DamagedError(f"no rows can be read from it ({text})")


def forecast_command(series: SeriesId) -> str:
    """Return the command that forecasts a series, which also scores due forecasts."""
    return f"cpb forecast {series.options}"


def log_once(path: Path, text: str) -> None:
    """Log a warning about a file once per state of the file: page reloads must not fill the log."""
    try:
        state = _state(path.stat())
    except OSError:
        state = None
    if (path, state) not in _logged:
        _logged.add((path, state))
        log.warning("%s", text)


_State = tuple[int, int, int]
_checked: dict[Path, _State] = {}
_logged: set[tuple[Path, _State | None]] = set()


def _state(status: os.stat_result) -> _State:
    return status.st_ino, status.st_mtime_ns, status.st_size
