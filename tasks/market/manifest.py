"""The manifest of a market home: the contents of the store and the source of each candle, in SQLite.

A part is written first and recorded here second: a part without a row here is fetched again, and a row without its
part cannot exist. WAL with synchronous=FULL survives kill -9 and power loss.

Each row ends with a checksum of its table and values, since SQLite has none: a flipped byte of a cell is otherwise
undetectable.
"""

import hashlib
import json
import os
import re
import shlex
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from schemas.errors import CpbError, DamagedError, counted
from schemas.identity import SeriesId
from tasks.market.layout import period_bounds

MANIFEST = "manifest.db"
VERSION = 3  # of the tables below: increase it with every change
ENDINGS = ("", "-wal", "-shm")
"""Endings of the files that SQLite makes of one database."""

# The table of anomalies keeps its original name, `oddities`.
_COLUMNS = {
    "files": (
        "market TEXT, symbol TEXT, interval TEXT, period TEXT, key TEXT, version TEXT, sha256 TEXT, rows INTEGER, "
        "status TEXT, reason TEXT, facts TEXT, checksum TEXT"
    ),
    "parts": (
        "market TEXT, symbol TEXT, interval TEXT, month TEXT, rows INTEGER, bytes INTEGER, digest TEXT, runs TEXT, "
        "zeros INTEGER, still INTEGER, edges TEXT, checksum TEXT"
    ),
    "oddities": (
        "market TEXT, symbol TEXT, interval TEXT, open_time INTEGER, kind TEXT, detail TEXT, checksum TEXT"
    ),
    "searched": (
        "market TEXT, symbol TEXT, interval TEXT, start INTEGER, until INTEGER, asked INTEGER, checksum TEXT"
    ),
}
_NAMES = {table: tuple(re.findall(r"(\w+) [A-Z]+", text)) for table, text in _COLUMNS.items()}
_KEYS = {table: _NAMES[table][: 5 if table == "oddities" else 4] for table in _COLUMNS}
"""The columns of each table's primary key, which are its first."""
_TABLES = {
    table: f"CREATE TABLE {table} ({text}, PRIMARY KEY ({', '.join(_KEYS[table])})) WITHOUT ROWID"
    for table, text in _COLUMNS.items()
}
_SERIES = "market=? AND symbol=? AND interval=?"

SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""Errors for a damaged file: sqlite3 cannot decode a message of SQLite that quotes damaged names."""


@dataclass
class FileRecord:
    """A published file at its last fetch: `ok`, `repaired`, `quarantined` or `failed`, with the reason."""

    period: str
    key: str
    version: str
    sha256: str = ""
    rows: int = 0
    status: str = "ok"
    reason: str = ""
    # unverified, duplicates, notes, at (time of a refusal)
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass
class Part:
    """A month of a series in the store. `runs` are its contiguous runs `[from, until)`, in microseconds.

    `edges` has the first open and the last close of each run: enough to detect a relisting, or a leap of the price
    level, at which a run ends too.
    `digest` is that of the candles' values, `bytes` the size of the file.
    """

    month: str
    rows: int
    bytes: int
    digest: str
    runs: list[tuple[int, int]]
    zeros: int  # candles without volume
    still: int  # those that stand still (`cpbmodels.data.columns.stands_still`)
    edges: list[tuple[float, float]]


@dataclass(frozen=True)
class Anomaly:
    """A candle to be reported: `off-grid`, `odd close` or `conflict`."""

    open_time: int
    kind: str
    detail: str


class Manifest:
    """The manifest of one market home; opened by a single writer at a time, readable by any process.

    `read_only` opens it in a folder that cannot be written (SQLite's WAL needs write access). `fault`: the damage of
    the file whose intact rows it holds, else empty.

    Raises:
        CpbError: the file was written by another version of cpb, or is not a manifest, or (code `manifest`) SQLite
            cannot open it, for example on a full disk.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.fault = ""
        self._db = connect(path, read_only=read_only)
        try:
            self._open(path)
            if not read_only:
                # readers go on while a run writes; each commit is on the disk before the next file is taken
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=FULL")
        except BaseException as error:
            self._db.close()
            if is_corrupt(error, path):
                raise unusable(path, error) from error
            if isinstance(error, sqlite3.OperationalError):
                raise CpbError(
                    f"{path} cannot be opened ({error}); check that its disk has free space, that this user may write "
                    "there, and that no other process holds it",
                    code="manifest",
                    field=str(path),
                ) from error
            raise

    def _open(self, path: Path) -> None:
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        tables = dict(self._db.execute("SELECT name, sql FROM sqlite_master"))
        # a new file: SQLite has just made it, empty
        if not version and not tables:
            script = ";".join([*_TABLES.values(), f"PRAGMA user_version={VERSION}"])
            self._db.executescript(f"BEGIN;{script};COMMIT;")
        # version and tables differ together: an older or newer cpb wrote it, and no byte is damaged
        elif version != VERSION and tables != _TABLES:
            files = shlex.join(str(path) + ending for ending in ENDINGS)
            raise CpbError(
                f"{path} was written by another version of cpb (tables {version}, this one has {VERSION}): use that "
                f"version, or delete the file with `rm -f {files}`, and `cpb ingest` fetches its candles again",
                code="manifest-version",
                field=str(path),
            )
        # one of the two alone: a flipped byte, as no version of cpb has written that
        elif version != VERSION:
            raise sqlite3.DatabaseError(f"its version is {version}, its tables are those of {VERSION}")
        elif tables != _TABLES:
            raise sqlite3.DatabaseError("its tables are not those that were made")

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def __enter__(self) -> "Manifest":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def files(self, series: SeriesId) -> dict[str, FileRecord]:
        """Return the records of a series' files by period."""
        rows = self._select(_columns(FileRecord), "files", series)
        return {row[0]: FileRecord(*[*row[:-1], json.loads(row[-1])]) for row in rows}

    def parts(self, series: SeriesId) -> dict[str, Part]:
        """Return the parts of a series by month, oldest first."""
        rows = self._select(_columns(Part), "parts", series)
        parts = {m: Part(m, n, b, d, _pairs(r), z, s, _pairs(e)) for m, n, b, d, r, z, s, e in rows}
        return dict(sorted(parts.items()))

    def anomalies(self, series: SeriesId) -> list[Anomaly]:
        """Return the anomalous candles of a series, oldest first."""
        return [Anomaly(*r) for r in self._select(_columns(Anomaly), "oddities", series)]

    def searched(self, series: SeriesId) -> list[tuple[int, int, int]]:
        """Return the holes `[start, until)` that neither other files nor REST filled, and the time of the search."""
        return self._select("start, until, asked", "searched", series)

    def series(self) -> list[SeriesId]:
        """Return every series with a part."""
        return [SeriesId(*r) for r in self._db.execute("SELECT DISTINCT market, symbol, interval FROM parts")]

    def damage(self) -> str:
        """Return SQLite's integrity errors of the file, and the number of damaged rows; empty if there are none."""
        try:
            errors = "; ".join(row[0] for row in self._db.execute("PRAGMA integrity_check(3)"))
            if errors != "ok":
                return errors
            damaged = {t: sum(not _is_intact(t, row) for row in _rows(self._db, t)) for t in _TABLES}
        except SQLITE_ERRORS as error:
            return str(error)
        faults = [f"{counted(number, 'row')} of {table}" for table, number in damaged.items() if number]
        return f"{', '.join(faults)} not as written" if faults else ""

    def copy_intact(self, damaged: sqlite3.Connection) -> None:
        """Copy the intact rows of a damaged manifest into this one, which is empty.

        A lost file or part is fetched again. Lost anomalies leave no trace in the other tables: the files of their
        series are marked as failed, or those of all series if even that is not known.
        """
        # series of which an anomaly was lost; the empty tuple: of an unknown series
        lost = set[tuple[Any, ...]]()
        for table in _TABLES:
            rows, is_complete = _readable_rows(damaged, table)
            intact = {row for row in rows if _is_intact(table, row)}
            with self._transaction():
                # sorted: equal contents give an equal file, whatever order the damaged one was read in
                self._insert(table, sorted((row[:-1] for row in intact), key=repr))
            if table == "oddities":
                lost = {row[:3] for row in rows - intact} | (set() if is_complete else {()})
        stored = {_name(series): series for series in self.series()}
        # a damaged row may name a series that does not exist: then any series may be the one
        for series in stored.values() if lost - stored.keys() else (stored[name] for name in lost):
            reason = "anomalies of its candles were lost with a damaged manifest"
            records = self.files(series).values()
            self.save(series, [replace(record, status="failed", reason=reason) for record in records])

    def save(
        self,
        series: SeriesId,
        files: Iterable[FileRecord] = (),
        parts: Iterable[Part] = (),
        anomalies: Iterable[Anomaly] = (),
        span: tuple[int, int] = (0, 0),
    ) -> None:
        """Record files, parts and anomalies in one transaction; anomalies inside `span` are replaced."""
        name, files, parts = _name(series), list(files), list(parts)
        with self._transaction():
            for file in files:  # an intact monthly file replaces the daily files of its month
                if file.status == "ok" and len(file.period) == 7:
                    self._db.execute(
                        f"DELETE FROM files WHERE {_SERIES} AND period LIKE ?", (*name, f"{file.period}-%")
                    )
            self._insert("files", [(*name, *_flat(f)) for f in files])
            self._insert("parts", [(*name, *_flat(p)) for p in parts])
            # what the new candles say of this time replaces what the old ones said
            within = f"DELETE FROM oddities WHERE {_SERIES} AND open_time>=? AND open_time<?"
            self._db.execute(within, (*name, *span))
            self._insert("oddities", [(*name, *_flat(a)) for a in anomalies])
            for part in parts:  # with new candles, holes of that month must be searched again
                start, until = period_bounds(part.month)
                overlapping = f"DELETE FROM searched WHERE {_SERIES} AND start<? AND until>?"
                self._db.execute(overlapping, (*name, until, start))

    def forget(self, series: SeriesId, month: str, reason: str) -> None:
        """Remove a damaged month and mark its files as failed, so that the next run fetches them."""
        with self._transaction():
            self._db.execute(f"DELETE FROM parts WHERE {_SERIES} AND month=?", (*_name(series), month))
            failed = [
                replace(record, status="failed", reason=reason)
                for period, record in self.files(series).items()
                if period.startswith(month)
            ]
            self._insert("files", [(*_name(series), *_flat(f)) for f in failed])

    def save_searched(self, series: SeriesId, holes: list[tuple[int, int, int]]) -> None:
        """Record holes `(start, until, asked)` that were searched without result."""
        with self._transaction():
            self._insert("searched", [(*_name(series), *h) for h in holes])

    def _select(self, columns: str, table: str, series: SeriesId) -> list[tuple[Any, ...]]:
        query = f"SELECT {columns} FROM {table} WHERE {_SERIES}"
        return self._db.execute(query, _name(series)).fetchall()

    def _insert(self, table: str, rows: list[tuple[Any, ...]]) -> None:
        if rows:
            # one more than the values: the row's checksum
            marks = ",".join("?" * (len(rows[0]) + 1))
            signed = [(*row, _checksum(table, row)) for row in rows]
            self._db.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", signed)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """BEGIN IMMEDIATE … COMMIT; sqlite3's own context manager would take the write lock too late."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Open a database file; `read_only`: also in a folder that cannot be written."""
    name = f"{path.absolute().as_uri()}?mode=ro&immutable=1" if read_only else str(path)
    db = sqlite3.connect(name, timeout=30, isolation_level=None, uri=read_only)
    db.text_factory = lambda text: text.decode(errors="surrogateescape")  # damaged text must be readable, too
    return db


def _checksum(table: str, row: tuple[Any, ...]) -> str:
    """Return the checksum of a row's values, which are texts and whole numbers; exchanged tables are found, too."""
    # repr tells 1 from "1" and None; the table's name is in it, as rows of two tables may look alike
    text = repr((table, *row)).encode(errors="backslashreplace")
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def _is_intact(table: str, row: tuple[Any, ...]) -> bool:
    return bool(row[-1] == _checksum(table, row[:-1]))


def _rows(db: sqlite3.Connection, table: str, order: str = "ASC") -> Iterator[tuple[Any, ...]]:
    order_by = ", ".join(f"{name} {order}" for name in _KEYS[table])
    # the columns by name: sqlite3 cannot decode a damaged name
    yield from db.execute(f"SELECT {', '.join(_NAMES[table])} FROM {table} ORDER BY {order_by}")


def _readable_rows(db: sqlite3.Connection, table: str) -> tuple[set[tuple[Any, ...]], bool]:
    """Return the rows of a table before and after an unreadable page, and whether there is no such page."""
    rows = set[tuple[Any, ...]]()
    is_complete = True
    # a scan ends at the damaged page: from the other end the rows behind it are reached, too
    for order in ("ASC", "DESC"):
        try:
            rows.update(_rows(db, table, order))
        except SQLITE_ERRORS:
            is_complete = False
    with suppress(*SQLITE_ERRORS):
        # a lost page may be skipped without an error, and only SQLite's own check tells
        is_complete &= db.execute(f"PRAGMA integrity_check({table})").fetchone()[0] == "ok"
    return rows, is_complete


def unusable(path: Path, error: BaseException) -> CpbError:
    """Return the error for a damaged manifest."""
    return DamagedError.of(path, error, "`cpb ingest` keeps its intact rows and fetches the rest again")


def is_corrupt(error: BaseException, path: Path) -> bool:
    """Whether an error of SQLite is due to the file's content, not to a lock, the disk or missing rights."""
    if isinstance(error, UnicodeDecodeError):
        return True
    if not isinstance(error, sqlite3.DatabaseError):
        return False
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    if code == sqlite3.SQLITE_READONLY:  # also by a flipped byte in the header
        return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    return code in (
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_FORMAT,
    )


def _name(series: SeriesId) -> tuple[str, str, str]:
    return series.market, series.symbol, series.timeframe


def _columns(kind: type[FileRecord | Part | Anomaly]) -> str:
    """Return the columns of a kind of record: its fields, in their order."""
    return ", ".join(field.name for field in fields(kind))


def _pairs(text: str) -> list[tuple[Any, ...]]:
    return [tuple(pair) for pair in json.loads(text)]


def _flat(record: FileRecord | Part | Anomaly) -> tuple[Any, ...]:
    return tuple(json.dumps(v) if isinstance(v, list | dict) else v for v in asdict(record).values())
