"""A market home's manifest (the contents of the store and the source of each candle, in SQLite), lock and drafts.

A part is written first and recorded here second: a part without a row here is fetched again, and a row without its
part cannot exist. WAL with synchronous=FULL survives kill -9 and power loss.

Each row ends with a checksum of its table and values, since SQLite has none: a flipped byte of a cell is otherwise
undetectable. A manifest is checked whenever it is opened (17 ms for 40 series of four years). Of a damaged manifest the
intact rows are used; what the others recorded is fetched again.

CPB_HOME may contain other files of the user, also in `reports/` or `features/`. A file is cpb's own if its folder has
cpb's structure (`TREE/interval=…/symbol=…`) and its name is a valid name of cpb; no other file there is ever moved or
deleted.
"""

import hashlib
import itertools
import json
import os
import re
import shlex
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from schemas.errors import BusyError, CpbError, counted, log
from schemas.identity import MARKETS, SPOT, SeriesId, series_folders
from tasks.market.layout import period_bounds
from tasks.storage.files import DRAFT, DiskFull, draft_name, is_disk_full
from tasks.storage.locks import acquire, open_lock

MANIFEST = "manifest.db"
VERSION = 3  # of the tables below: increase it with every change
_ENDINGS = ("", "-wal", "-shm")
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

_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""Errors for a damaged file: sqlite3 cannot decode a message of SQLite that quotes damaged names."""

_MANIFEST_DRAFT = re.compile(rf"{DRAFT.pattern}({'|'.join(_ENDINGS)})")
_MONTH_FILE = re.compile(r"[0-9]{4}-[0-9]{2}\.parquet")
CANDLES = {"klines": _MONTH_FILE, "offgrid": _MONTH_FILE, "provisional": re.compile(r"tail\.parquet")}
"""Trees of series folders with candles, and the names of cpb's files in them."""

QUARANTINE = "quarantine"


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
        self._db = _connect(path, read_only=read_only)
        try:
            self._open(path)
            if not read_only:
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=FULL")
        except BaseException as error:
            self._db.close()
            if _is_corrupt(error, path):
                raise _unusable(path, error) from error
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
        if not version and not tables:
            script = ";".join([*_TABLES.values(), f"PRAGMA user_version={VERSION}"])
            self._db.executescript(f"BEGIN;{script};COMMIT;")
        elif version != VERSION and tables != _TABLES:
            files = shlex.join(str(path) + ending for ending in _ENDINGS)
            raise CpbError(
                f"{path} was written by another version of cpb (tables {version}, this one has {VERSION}): use that "
                f"version, or delete the file with `rm -f {files}`, and `cpb ingest` fetches its candles again",
                code="manifest-version",
                field=str(path),
            )
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
        except _ERRORS as error:
            return str(error)
        faults = [f"{counted(number, 'row')} of {table}" for table, number in damaged.items() if number]
        return f"{', '.join(faults)} not as written" if faults else ""

    def copy_intact(self, damaged: sqlite3.Connection) -> None:
        """Copy the intact rows of a damaged manifest into this one, which is empty.

        A lost file or part is fetched again. Lost anomalies leave no trace in the other tables: the files of their
        series are marked as failed, or those of all series if even that is not known.
        """
        lost = set[tuple[Any, ...]]()
        for table in _TABLES:
            rows, is_complete = _readable_rows(damaged, table)
            intact = {row for row in rows if _is_intact(table, row)}
            with self._transaction():
                self._insert(table, sorted((row[:-1] for row in intact), key=repr))
            if table == "oddities":
                lost = {row[:3] for row in rows - intact} | (set() if is_complete else {()})
        stored = {_name(series): series for series in self.series()}
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


def _connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    name = f"{path.absolute().as_uri()}?mode=ro&immutable=1" if read_only else str(path)
    db = sqlite3.connect(name, timeout=30, isolation_level=None, uri=read_only)
    db.text_factory = lambda text: text.decode(errors="surrogateescape")  # damaged text must be readable, too
    return db


def _checksum(table: str, row: tuple[Any, ...]) -> str:
    """Return the checksum of a row's values, which are texts and whole numbers; exchanged tables are found, too."""
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
    for order in ("ASC", "DESC"):
        try:
            rows.update(_rows(db, table, order))
        except _ERRORS:
            is_complete = False
    with suppress(*_ERRORS):
        is_complete &= db.execute(f"PRAGMA integrity_check({table})").fetchone()[0] == "ok"
    return rows, is_complete


def _unusable(path: Path, error: BaseException) -> CpbError:
    """Return the error for a damaged manifest."""
    return CpbError(
        f"{path} is damaged ({error}); `cpb ingest` keeps its intact rows and fetches the rest again",
        code="damaged",
        field=str(path),
    )


def manifest_damage(path: Path, *, read_only: bool = False) -> str:
    """Return the damage of a manifest file, or ""; `read_only` and other errors as in `Manifest`.

    A missing or empty file is damage where months of candles are stored.
    """
    try:
        if not path.stat().st_size:
            return "it is empty, though candles are stored" if _has_candles(path.parent) else ""
    except FileNotFoundError:
        return "it is missing, though candles are stored" if _has_candles(path.parent) else ""
    try:
        with Manifest(path, read_only=read_only) as manifest:
            return manifest.damage()
    except CpbError as error:
        if error.code != "damaged":
            raise
        return str(error.__cause__ or error)


def _is_corrupt(error: BaseException, path: Path) -> bool:
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


@contextmanager
def intact_manifest(path: Path, *, read_only: bool = False) -> Iterator[Manifest]:
    """Yield a manifest; of a damaged or missing file, with its `fault`, a copy of its intact rows in memory."""
    damage = manifest_damage(path, read_only=read_only)
    if damage or not path.exists():
        with Manifest(Path(":memory:")) as manifest:
            if damage and path.exists():
                _copy_damaged(path, manifest, read_only=read_only)
            manifest.fault = damage
            yield manifest
    else:
        with Manifest(path, read_only=read_only) as manifest:
            yield manifest


def _copy_damaged(path: Path, manifest: Manifest, *, read_only: bool) -> None:
    with suppress(*_ERRORS), closing(_connect(path, read_only=read_only)) as db:
        manifest.copy_intact(db)


def _rebuild(path: Path) -> None:
    """Replace a damaged manifest with one of its intact rows; the caller is the only writer.

    The damaged file is renamed, with the ending `.damaged`.
    """
    draft = draft_name(path)
    try:
        with Manifest(draft) as manifest:
            if path.exists():
                _copy_damaged(path, manifest, read_only=False)
        for file in (path.with_name(path.name + ending) for ending in _ENDINGS):
            if file.exists():
                file.replace(f"{file}.damaged")
        draft.replace(path)
    finally:
        for file in (draft.with_name(draft.name + ending) for ending in _ENDINGS):
            file.unlink(missing_ok=True)


def _name(series: SeriesId) -> tuple[str, str, str]:
    return series.market, series.symbol, series.timeframe


def _columns(kind: type[FileRecord | Part | Anomaly]) -> str:
    """Return the columns of a kind of record: its fields, in their order."""
    return ", ".join(field.name for field in fields(kind))


def _pairs(text: str) -> list[tuple[Any, ...]]:
    return [tuple(pair) for pair in json.loads(text)]


def _flat(record: FileRecord | Part | Anomaly) -> tuple[Any, ...]:
    return tuple(json.dumps(v) if isinstance(v, list | dict) else v for v in asdict(record).values())


def _has_candles(root: Path) -> bool:
    """Whether months of candles are stored in a market home, including futures (`klines-um`)."""
    trees = (root / ("klines" if market == SPOT else f"klines-{market}") for market in MARKETS)
    folders = (folder for tree in trees for folder, _, _ in series_folders(tree))
    return any(_MONTH_FILE.fullmatch(path.name) for folder in folders for path in folder.iterdir())


def sweep(root: Path) -> None:
    """Delete the drafts left by a killed run in a market home, including futures (`klines-um`)."""
    for path in root.glob(f".{MANIFEST}.*"):
        if _MANIFEST_DRAFT.fullmatch(path.name):
            path.unlink(missing_ok=True)
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
    """Open the manifest of a market home; of a damaged one only the intact rows are used.

    A damaged file is set aside and replaced; offline, nothing is created or replaced.
    """
    path = root / MANIFEST
    try:
        if offline:
            with intact_manifest(path, read_only=not os.access(root, os.W_OK)) as manifest:
                if manifest.fault:
                    log.warning(
                        "%s is damaged (%s): its intact rows are used, and `cpb ingest` fetches what "
                        "the others recorded",
                        path,
                        manifest.fault,
                    )
                yield manifest
            return
        if damage := manifest_damage(path):
            log.warning(
                "%s is damaged (%s) and replaced: its intact rows are kept, and what the others recorded is "
                "fetched again",
                path,
                damage,
            )
            _rebuild(path)
        with Manifest(path) as manifest:
            yield manifest
    except Exception as error:
        if not isinstance(error, CpbError) and is_disk_full(error):
            raise DiskFull(f"no space left in {root}: free some, or set CPB_HOME to another disk") from error
        if _is_corrupt(error, path):
            raise _unusable(path, error) from error
        if isinstance(error, OSError | sqlite3.Error):
            raise CpbError(
                f"cannot work in {root} ({error}); set CPB_HOME to a folder you own", code="store"
            ) from error
        raise
