"""The contents of the store and the source of each candle: a SQLite file beside the parquet files.

A part is written first and recorded here second: a part without a row here is fetched again, and a row without its
part cannot exist. WAL with synchronous=FULL survives kill -9 and power loss.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

from schemas.errors import CpbError
from schemas.identity import SeriesId
from tasks.market.layout import period_bounds

MANIFEST = "manifest.db"
VERSION = 2  # of the tables below: increase it with every change
_REBUILD = "move that folder away and run `cpb ingest` again, or set CPB_HOME to another folder"
"""The remedy for an unusable manifest."""


def unusable(path: Path, error: BaseException) -> CpbError:
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
    facts: dict = field(default_factory=dict)  # verified, duplicates, notes, table, at (time of a refusal)


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

    def __init__(self, path: Path, read_only: bool = False) -> None:
        name = f"{path.absolute().as_uri()}?mode=ro&immutable=1" if read_only else str(path)
        self._db = sqlite3.connect(name, timeout=30, isolation_level=None, uri=read_only)
        try:
            self._open(path)
            if not read_only:
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=FULL")
        except BaseException as error:
            self._db.close()
            if is_corrupt(error):
                raise unusable(path, error) from error
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
        found = {m: Part(m, n, b, d, _pairs(r), z, _pairs(e)) for m, n, b, d, r, z, e in rows}
        return dict(sorted(found.items()))

    def anomalies(self, series: SeriesId) -> list[Anomaly]:
        """Return the anomalous candles of a series, oldest first."""
        return [Anomaly(*r) for r in self._select(_columns(Anomaly), "oddities", series)]

    def searched(self, series: SeriesId) -> list[tuple[int, int, int]]:
        """Return the holes `[start, until)` that neither other files nor REST filled, and the time of the search."""
        return self._select("start, until, asked", "searched", series)

    def series(self) -> list[SeriesId]:
        """Return every series with a part."""
        return [SeriesId(*r) for r in self._db.execute("SELECT DISTINCT market, symbol, interval FROM parts")]

    def problems(self) -> list[str]:
        """Return SQLite's integrity errors of the file; empty if none."""
        try:
            found = [row[0] for row in self._db.execute("PRAGMA integrity_check(3)")]
        except sqlite3.DatabaseError as error:
            return [str(error)]
        return [] if found == ["ok"] else found

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

    def _select(self, columns: str, table: str, series: SeriesId) -> list[tuple]:
        query = f"SELECT {columns} FROM {table} WHERE {_SERIES}"
        return self._db.execute(query, _name(series)).fetchall()

    def _insert(self, table: str, rows: list[tuple]) -> None:
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


def manifest_damage(path: Path, read_only: bool = False) -> str:
    """Return the damage of a manifest file, or ""; `read_only` and other errors as in `Manifest`."""
    try:
        with Manifest(path, read_only) as manifest:
            return "; ".join(manifest.problems())
    except CpbError as error:
        if error.code != "damaged":
            raise
        return str(error.__cause__ or error)


def is_corrupt(error: BaseException) -> bool:
    """Whether SQLite reports that a file is not a database; locked or full databases raise other classes."""
    return type(error) is sqlite3.DatabaseError


def _name(series: SeriesId) -> tuple[str, str, str]:
    return series.market, series.symbol, series.timeframe


def _columns(kind: type[FileRecord | Part | Anomaly]) -> str:
    """Return the columns of a kind of record: its fields, in their order."""
    return ", ".join(field.name for field in fields(kind))


def _pairs(text: str) -> list:
    return [tuple(pair) for pair in json.loads(text)]


def _flat(record: FileRecord | Part | Anomaly) -> tuple:
    return tuple(json.dumps(v) if isinstance(v, list | dict) else v for v in asdict(record).values())
