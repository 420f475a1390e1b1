"""A market home's manifest (the contents of the store and the source of each candle, in SQLite), lock and drafts.

A part is written first and recorded here second: a part without a row here is fetched again, and a row without its
part cannot exist. WAL with synchronous=FULL survives kill -9 and power loss.

CPB_HOME may contain other files of the user, also in `reports/` or `features/`. A file is cpb's own if its folder has
cpb's structure (`TREE/interval=…/symbol=…`) and its name is a valid name of cpb; no other file there is ever moved or
deleted.
"""

import itertools
import json
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from schemas.errors import BusyError, CpbError, log
from schemas.identity import MARKETS, SPOT, SeriesId, series_folders
from tasks.market.layout import period_bounds
from tasks.storage.files import DRAFT, DiskFull, is_disk_full
from tasks.storage.locks import acquire, open_lock

MANIFEST = "manifest.db"
VERSION = 2  # of the tables below: increase it with every change
_REBUILD = "move that folder away and run `cpb ingest` again, or set CPB_HOME to another folder"
"""The remedy for an unusable manifest."""


def _unusable(path: Path, error: BaseException) -> CpbError:
    """Return the error for a damaged manifest."""
    return CpbError(f"{path} is damaged ({error}); {_REBUILD}", code="damaged", field=str(path))


# The table of anomalies keeps its original name, `oddities`, so that existing stores stay readable.
_TABLES = """
CREATE TABLE files (
  market TEXT, symbol TEXT, interval TEXT, period TEXT, key TEXT, version TEXT, sha256 TEXT, rows INTEGER,
  status TEXT, reason TEXT, facts TEXT, PRIMARY KEY (market, symbol, interval, period)) WITHOUT ROWID;
CREATE TABLE parts (
  market TEXT, symbol TEXT, interval TEXT, month TEXT, rows INTEGER, bytes INTEGER, digest TEXT, runs TEXT,
  zeros INTEGER, edges TEXT, PRIMARY KEY (market, symbol, interval, month)) WITHOUT ROWID;
CREATE TABLE oddities (
  market TEXT, symbol TEXT, interval TEXT, open_time INTEGER, kind TEXT, detail TEXT,
  PRIMARY KEY (market, symbol, interval, open_time, kind)) WITHOUT ROWID;
CREATE TABLE searched (
  market TEXT, symbol TEXT, interval TEXT, start INTEGER, until INTEGER, asked INTEGER,
  PRIMARY KEY (market, symbol, interval, start)) WITHOUT ROWID;
"""
_SERIES = "market=? AND symbol=? AND interval=?"


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
    edges: list[tuple[float, float]]


@dataclass(frozen=True)
class Anomaly:
    """A candle to be reported: `off-grid`, `odd close` or `conflict`."""

    open_time: int
    kind: str
    detail: str


class Manifest:
    """The manifest of one market home; opened by a single writer at a time, readable by any process.

    `read_only` opens it in a folder that cannot be written (SQLite's WAL needs write access).

    Raises:
        CpbError: the file was written by another version of cpb, or is not a manifest, or (code `manifest`) SQLite
            cannot open it, for example on a full disk.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        name = f"{path.absolute().as_uri()}?mode=ro&immutable=1" if read_only else str(path)
        self._db = sqlite3.connect(name, timeout=30, isolation_level=None, uri=read_only)
        try:
            self._open(path)
            if not read_only:
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=FULL")
        except BaseException as error:
            self._db.close()
            if _is_corrupt(error):
                raise _unusable(path, error) from error
            if isinstance(error, sqlite3.OperationalError):
                raise CpbError(
                    f"{path} cannot be opened ({error}); check that its disk has free space, that this user may write "
                    "there, and that no other process holds it", code="manifest", field=str(path),
                ) from error  # fmt: skip
            raise

    def _open(self, path: Path) -> None:
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if not version and not self._db.execute("SELECT 1 FROM sqlite_master").fetchone():
            self._db.executescript(f"BEGIN;{_TABLES}PRAGMA user_version={VERSION};COMMIT;")
        elif version != VERSION:
            raise CpbError(
                f"{path} was written by another version of cpb (tables {version}, this one has {VERSION}); {_REBUILD}",
                code="manifest-version",
            )

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
        parts = {m: Part(m, n, b, d, _pairs(r), z, _pairs(e)) for m, n, b, d, r, z, e in rows}
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
        """Return SQLite's integrity errors of the file; empty if none."""
        try:
            errors = "; ".join(row[0] for row in self._db.execute("PRAGMA integrity_check(3)"))
        except sqlite3.DatabaseError as error:
            return str(error)
        return "" if errors == "ok" else errors

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
            marks = ",".join("?" * len(rows[0]))
            self._db.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", rows)

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


def manifest_damage(path: Path, *, read_only: bool = False) -> str:
    """Return the damage of a manifest file, or ""; `read_only` and other errors as in `Manifest`."""
    try:
        with Manifest(path, read_only=read_only) as manifest:
            return manifest.damage()
    except CpbError as error:
        if error.code != "damaged":
            raise
        return str(error.__cause__ or error)


def _is_corrupt(error: BaseException) -> bool:
    """Whether SQLite reports that a file is not a database; locked or full databases raise other classes."""
    return type(error) is sqlite3.DatabaseError


def _name(series: SeriesId) -> tuple[str, str, str]:
    return series.market, series.symbol, series.timeframe


def _columns(kind: type[FileRecord | Part | Anomaly]) -> str:
    """Return the columns of a kind of record: its fields, in their order."""
    return ", ".join(field.name for field in fields(kind))


def _pairs(text: str) -> list[tuple[Any, ...]]:
    return [tuple(pair) for pair in json.loads(text)]


def _flat(record: FileRecord | Part | Anomaly) -> tuple[Any, ...]:
    return tuple(json.dumps(v) if isinstance(v, list | dict) else v for v in asdict(record).values())


_MONTH_FILE = re.compile(r"[0-9]{4}-[0-9]{2}\.parquet")
CANDLES = {"klines": _MONTH_FILE, "offgrid": _MONTH_FILE, "provisional": re.compile(r"tail\.parquet")}
"""Trees of series folders with candles, and the names of cpb's files in them."""

QUARANTINE = "quarantine"


def sweep(root: Path) -> None:
    """Delete the drafts left by a killed run in a market home, including futures (`klines-um`)."""
    for path in (root / QUARANTINE).rglob(".*"):
        if DRAFT.fullmatch(path.name):
            path.unlink(missing_ok=True)
    for market, (tree, names) in itertools.product(MARKETS, CANDLES.items()):
        for folder, _, _ in series_folders(root / (tree if market == SPOT else f"{tree}-{market}")):
            for path in folder.iterdir():
                if (draft := DRAFT.fullmatch(path.name)) and names.fullmatch(draft["name"]):
                    path.unlink(missing_ok=True)


@contextmanager
def writer_lock(root: Path) -> Iterator[None]:
    """Hold the write lock of a market home; writers of other homes, such as the simulator's, are not affected.

    Raises:
        BusyError: another process writes there. CpbError: the folder is read-only.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = open_lock(root / "writer.lock")
    except (OSError, CpbError) as error:
        raise CpbError(
            f"cannot write in {root} ({error}); set CPB_HOME to a folder you own", code="read-only"
        ) from error
    with lock:
        try:
            acquire(lock, wait=False)
        except BusyError as error:
            raise BusyError(
                f"another cpb is writing in {root}; wait for it, or use another CPB_HOME"
            ) from error
        yield


@contextmanager
def open_manifest(root: Path, *, offline: bool) -> Iterator[Manifest]:
    """Open the manifest of a market home; a damaged one is set aside and replaced by an empty one.

    Offline, nothing is created or replaced.
    """
    path = root / MANIFEST
    try:
        if offline and not path.exists():
            manifest = Manifest(Path(":memory:"))
        else:
            if not offline and path.exists() and (reason := manifest_damage(path)):
                log.warning(
                    "%s is damaged (%s) and replaced: every file of its series is fetched again",
                    path,
                    reason,
                )
                for file in (Path(f"{path}{ending}") for ending in ("", "-wal", "-shm")):
                    if file.exists():  # the caller is the only writer
                        file.replace(f"{file}.damaged")
            manifest = Manifest(path, read_only=offline and not os.access(root, os.W_OK))
        with manifest:
            yield manifest
    except Exception as error:
        if not isinstance(error, CpbError) and is_disk_full(error):
            raise DiskFull(f"no space left in {root}: free some, or set CPB_HOME to another disk") from error
        if _is_corrupt(error):
            raise _unusable(path, error) from error
        if isinstance(error, OSError | sqlite3.OperationalError):
            raise CpbError(
                f"cannot work in {root} ({error}); set CPB_HOME to a folder you own", code="store"
            ) from error
        raise
