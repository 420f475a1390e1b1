"""The chain's format: its lines with their hashes, and the canonical form of the rows that they describe.

docs/publishing.md describes both, so that they can be recomputed without cpb. This module writes nothing.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from cpbmodels.files import open_regular
from schemas.errors import DamagedError
from schemas.forecast_rows import ADDED_COLUMNS, OF_BEFORE
from schemas.identity import tree_of

BatchKind = Literal["forecasts", "scores", "before"]
"""Kinds of lines: forecasts stored, scores stored; `before`: rows found without a line by an older version."""

ORIGIN = "0" * 64
"""`previous` of the first line."""

MONTH_FILE = re.compile(r"(forecasts|ledger)(-\w+)?/interval=(\w+)/symbol=(\w+)/([0-9]{4}-[0-9]{2})\.parquet")
"""Path of a month file below a market's home, or in a published record."""

_TAIL = ',"hash":"'
_TAIL_BYTES = len(_TAIL) + 64 + len('"}\n')

_BEFORE = "of_before"


class Entry(NamedTuple):
    """A line's entry for one file.

    `file` is its path below the market's home, `rows` the number of rows appended, `rows_sha256` their digest
    (`RowDigests`), `file_sha256` that of the whole file afterwards.
    """

    file: str
    rows: int
    rows_sha256: str
    file_sha256: str


@dataclass(frozen=True)
class Line:
    """One line: its number from 1, UTC time, kind, entries, and the hash of the previous line."""

    number: int
    time: str
    kind: BatchKind
    entries: tuple[Entry, ...]
    previous: str

    def encode(self) -> bytes:
        """Return the line's bytes. Its hash is the sha256 of its text without the hash field `,"hash":"…"`."""
        value = {
            "number": self.number,
            "time": self.time,
            "kind": self.kind,
            "entries": [entry._asdict() for entry in self.entries],
            "previous": self.previous,
        }
        # The hash is of these bytes, so the order of the fields and the separators never change.
        text = json.dumps(value, separators=(",", ":"))
        return f'{text[:-1]}{_TAIL}{hashlib.sha256(text.encode()).hexdigest()}"}}\n'.encode()


def chain_path(home: Path, market: str) -> Path:
    """Return a market's chain, `HOME/forecasts/chain.jsonl`."""
    return tree_of(home, "forecasts", market) / "chain.jsonl"


def line_hash(raw: bytes) -> str:
    """Return the hash that a line's bytes should contain."""
    return hashlib.sha256(raw[:-_TAIL_BYTES] + b"}").hexdigest()


def parse_line(raw: bytes) -> Line:
    """Return the line in these bytes, line break included.

    Raises:
        DamagedError: they are not the bytes written; the message is only the reason.
    """
    # Before anything is parsed: of bytes that are not ours JSON may say anything.
    if raw[-_TAIL_BYTES:] != f'{_TAIL}{line_hash(raw)}"}}\n'.encode():
        raise DamagedError("its hash does not match its text")
    try:
        fields = json.loads(raw)
        entries = tuple(Entry(**entry) for entry in fields["entries"])
        line = Line(fields["number"], fields["time"], fields["kind"], entries, fields["previous"])
        is_valid = (
            line.kind in get_args(BatchKind)
            and isinstance(line.time, str)
            # bool is an int for isinstance, and a hash can be made for any line: its fields are checked all
            # the same.
            and all(type(e.rows) is int and e.rows >= 0 for e in entries)
        )
    except (ValueError, KeyError, TypeError):
        is_valid = False
    if not is_valid:
        raise DamagedError("it is not a line of a chain")
    return line


def read_lines(path: Path) -> Iterator[Line]:
    """Yield the lines of a chain up to the first invalid line.

    Raises:
        FileNotFoundError: there is no chain.
        DamagedError: a line is invalid; the message names the line and the reason.
    """
    previous, time = ORIGIN, ""
    with open_regular(path) as file:
        for number, raw in enumerate(file, 1):
            try:
                line = parse_line(raw)
            except DamagedError as error:
                raise DamagedError(f"line {number} does not fit: {error}") from error
            if (line.number, line.previous) != (number, previous):
                raise DamagedError(f"line {number} does not fit: it does not follow line {number - 1}")
            # Texts of one format compare as times. A clock that was set back would let a replay count as
            # live.
            if line.time < time:
                raise DamagedError(
                    f"line {number} does not fit: its time, {line.time}, is before that of line {number - 1}, {time}"
                )
            time = line.time
            # The hash in the line, which `parse_line` has compared with its text.
            previous = raw[-_TAIL_BYTES + len(_TAIL) : -3].decode()
            yield line


def last_line(path: Path, *, cut: int = 0) -> bytes:
    """Return the bytes of a file's last line, empty if the file is empty; errors as in `open`.

    Args:
        cut: number of bytes at the file's end that are left out.
    """
    with open_regular(path) as file:
        if (end := file.seek(0, 2) - cut) <= 0:
            return b""
        with mmap(file.fileno(), 0, access=ACCESS_READ) as content:  # only the pages at its end are read
            return content[content.rfind(b"\n", 0, end - 1) + 1 : end]


def has_line(path: Path, line: bytes) -> bool:
    """Whether a file has exactly this line, searched from its end; False if there is no file."""
    with (
        suppress(FileNotFoundError, ValueError),  # mmap refuses an empty file
        open_regular(path) as file,
        mmap(file.fileno(), 0, access=ACCESS_READ) as content,
    ):
        # From the end: the line that is sought is nearly always the last.
        place = content.rfind(line)
        return place == 0 or (place > 0 and content[place - 1] == ord("\n"))
    return False


class Slice(NamedTuple):
    """The rows that one line added to a file: line number, row count, digest."""

    line: int
    rows: int
    rows_sha256: str


@dataclass
class FileRecord:
    """A chain's record of one file: its rows, line by line, and its digest after the last line."""

    slices: list[Slice] = field(default_factory=list)
    file_sha256: str = ""

    @property
    def rows(self) -> int:
        """The number of rows that it should contain."""
        return sum(part.rows for part in self.slices)


@dataclass
class Chain:
    """A chain's record of all files of a market, by their path below the market's home.

    `fault` names the invalid line (empty if there is none); `files` then covers the lines before it.
    """

    files: dict[str, FileRecord] = field(default_factory=dict)
    lines: int = 0
    fault: str = ""

    @classmethod
    def read(cls, path: Path) -> "Chain | None":
        """Return the chain at `path`; None if there is no such file."""
        chain = cls()
        try:
            for line in read_lines(path):
                chain.lines = line.number
                for entry in line.entries:
                    record = chain.files.setdefault(entry.file, FileRecord())
                    record.slices.append(Slice(line.number, entry.rows, entry.rows_sha256))
                    # The newest line's: each batch rewrites its month.
                    record.file_sha256 = entry.file_sha256
        except FileNotFoundError:
            return None
        except DamagedError as error:
            chain.fault = str(error)
        except OSError as error:
            chain.fault = f"it cannot be read ({error.strerror})"
        return chain


class RowDigests:
    """Digests of slices of rows in their canonical form.

    The text columns of each row, joined with commas and ended with a line break; after the text of all rows, every
    other column as little-endian float64, row by row: times as microseconds since 1970 (exact until the year 2255), a
    missing value as NaN. A row that has none of `ADDED_COLUMNS` is hashed without them, as when it was stored: so its
    digest stays when newer rows are appended to its file. Whole files are converted to bytes once, so that each digest
    reads two slices of memory.
    """

    def __init__(self, rows: pl.DataFrame) -> None:
        has_added = ADDED_COLUMNS.keys() <= set(rows.columns)
        # Digests of rows of an older version must stay as they are published: its columns, no more.
        rows = rows.with_columns((OF_BEFORE if has_added else pl.lit(value=True)).alias(_BEFORE))
        texts = [name for name, kind in rows.schema.items() if kind == pl.String]
        numbers = [name for name in rows.columns if name not in (*texts, _BEFORE)]
        whole, without = (
            # "" for a missing text, which breaks the contract: such a row is found as another.
            pl.concat_str([pl.col(name).fill_null("") for name in names], separator=",")
            for names in (texts, [name for name in texts if name not in ADDED_COLUMNS])
        )
        lines = rows.select(pl.when(_BEFORE).then(without).otherwise(whole) + "\n").to_series()
        self._text = "".join(lines.to_list()).encode()
        self._text_ends = _ends(lines.str.len_bytes().to_numpy())
        # One cast for all numbers: float64 holds times in µs and counts exactly, and a verifier in plain
        # Python needs only struct.
        values = rows.select(
            pl.col(numbers).to_physical().cast(pl.Float64).fill_null(float("nan"))
        ).to_numpy()
        is_hashed = np.ones(values.shape, dtype=np.bool_)
        for place, name in enumerate(numbers):
            if name in ADDED_COLUMNS:
                is_hashed[:, place] = ~rows[_BEFORE].to_numpy()
        # A mask in row order flattens row by row, which is the canonical order.
        self._numbers = np.ascontiguousarray(values[is_hashed], "<f8").tobytes()
        self._number_ends = _ends(8 * is_hashed.sum(axis=1))

    def of(self, start: int, stop: int) -> str:
        """Return the sha256 of the rows `start … stop - 1`."""
        digest = hashlib.sha256(self._text[self._text_ends[start] : self._text_ends[stop]])
        digest.update(self._numbers[self._number_ends[start] : self._number_ends[stop]])
        return digest.hexdigest()


def _ends(lengths: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Return where each row begins, and where the last one ends, from the rows' lengths in bytes."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def rows_digest(rows: pl.DataFrame) -> str:
    """Return the sha256 of all rows of a frame in canonical form."""
    return RowDigests(rows).of(0, len(rows))


def first_misfit(rows: pl.DataFrame, slices: Iterable[Slice]) -> tuple[int, int] | None:
    """Return the first slice of rows that its line does not match, as (row from 0, line); None if all match.

    Rows that are in no line are reported with line 0.
    """
    digests = RowDigests(rows)
    start = 0
    for part in slices:
        # A month that lost rows at its end has no bytes to hash for its last slices.
        if start + part.rows > len(rows) or digests.of(start, start + part.rows) != part.rows_sha256:
            return start, part.line
        start += part.rows
    return None if start == len(rows) else (start, 0)
