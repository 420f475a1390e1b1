"""The parquet files: `klines/interval=15m/symbol=BTCUSDT/2024-01.parquet`, one for each month.

A month is the unit of source, storage and quarantine. Files appear by rename, so readers never see half of
one; off-grid candles (`offgrid/`) and unconfirmed ones from REST (`provisional/`) lie in trees of their own.
"""

import errno
import hashlib
import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

import numpy as np
import polars as pl

from schemas.errors import BusyError, CpbError, MemberError
from schemas.klines import KLINES
from tasks.market import cache
from tasks.market.grid import Grid
from tasks.market.layout import SeriesKey, month_of, period_bounds, to_us
from tasks.market.manifest import Part

MANIFEST = "manifest.db"
_PART = re.compile(r"[0-9]{4}-[0-9]{2}\.parquet")
_TEMP = ".tmp"  # at the end of the name: nobody's `*.parquet` may match half a file


class DiskFull(CpbError):
    """Nothing more fits; what is stored is whole."""


_TREES = ("cache", "klines", "offgrid", "provisional", "quarantine", "reports")


def series_folder(home: Path, series: SeriesKey, tree: str = "klines") -> Path:
    """Return the folder of a series; futures markets have trees of their own (`klines-um`)."""
    root = tree if series.market == "spot" else f"{tree}-{series.market}"
    return home / root / f"interval={series.interval}" / f"symbol={series.symbol}"


def read_klines(
    home: Path,
    symbol: str,
    timeframe: str,
    since: datetime | None = None,
    as_of: datetime | None = None,
    market: str = "spot",
    columns: list[str] | None = None,
    provisional: bool = False,
) -> pl.DataFrame:
    """Return stored candles: sorted, unique, on the grid, `since <= open_time`, closed by `as_of` (UTC).

    `provisional` adds the unconfirmed newest candles that `ingest --tail` fetched.

    Raises:
        MemberError: the store holds nothing of this series.
    """
    series = SeriesKey(market, symbol, timeframe)
    first = to_us(since) if since else 0
    last = series.grid.latest(to_us(as_of) if as_of else 1 << 62)
    parts = part_paths(home, series)
    if not parts:
        raise MemberError(
            f"{series}: no candles in {home}; fetch them first with "
            f"`cpb ingest --coins {symbol} --timeframes {timeframe}`"
        )
    try:
        frame = _between(_load(home, series, parts, first, last, columns), first, last)
    except pl.exceptions.ComputeError as error:
        folder = series_folder(home, series)
        raise MemberError(
            f"{series}: a part in {folder} is damaged ({str(error).splitlines()[0][:80]}); "
            f"delete {home / MANIFEST} and that folder, and ingest again"
        ) from error
    tail = series_folder(home, series, "provisional") / "tail.parquet"
    if provisional and tail.is_file():
        newest = _between(_read([tail], columns), first, last)
        frame = pl.concat([frame, newest]).unique("open_time", keep="first", maintain_order=True)
    return frame


def _load(
    home: Path, series: SeriesKey, parts: list[Path], first: int, last: int, columns: list[str] | None
) -> pl.DataFrame:
    """Return at least the candles in `[first, last]`, from the cache of the whole series if there is one."""
    cached = cache.cache_path(series_folder(home, series, "cache"), parts)
    if (frame := cache.load(cached, _names(columns))) is not None:
        return frame
    needed = [p for p in parts if _overlaps(p.stem, first, last)]
    if needed != parts:
        return _read(needed, columns)
    whole = _read(parts, None)
    if whole.height <= cache.MAX_ROWS:
        cache.keep(cached, whole)
    return whole.select(_names(columns))


def part_paths(home: Path, series: SeriesKey) -> list[Path]:
    """Return the files of a series, oldest first."""
    folder = series_folder(home, series)
    if not folder.is_dir():
        return []
    names = sorted(entry.name for entry in os.scandir(folder))
    return [folder / n for n in names if _PART.fullmatch(n)]


def _overlaps(month: str, first: int, last: int) -> bool:
    start, end = period_bounds(month)
    return start <= last and end > first


def _names(columns: list[str] | None) -> list[str]:
    return [*dict.fromkeys(["open_time", *columns])] if columns else list(KLINES)


def _read(paths: list[Path], columns: list[str] | None) -> pl.DataFrame:
    if not paths:
        return pl.DataFrame(schema=KLINES).select(_names(columns))
    return pl.read_parquet(paths, columns=_names(columns), glob=False, hive_partitioning=False)


def _between(frame: pl.DataFrame, first: int, last: int) -> pl.DataFrame:
    """Cut sorted candles by binary search: a filter would copy every column."""
    times = times_of(frame)
    start, end = np.searchsorted(times, [first, last + 1])
    return frame if (start, end) == (0, len(times)) else frame.slice(start, end - start)


def read_part(home: Path, series: SeriesKey, month: str) -> pl.DataFrame:
    """Return a month's candles; empty if there is no such part."""
    path = series_folder(home, series) / f"{month}.parquet"
    return _read([path], None) if path.is_file() else pl.DataFrame(schema=KLINES)


def write_part(home: Path, series: SeriesKey, month: str, rows: pl.DataFrame, origin: dict[str, str]) -> Part:
    """Write a month's candles and return its manifest entry; `origin` goes into the file's metadata."""
    path = series_folder(home, series) / f"{month}.parquet"
    size = write_parquet(path, rows, origin)
    runs, edges = find_runs(rows, series.grid)
    zeros = int((rows["volume"].to_numpy() == 0).sum())
    return Part(month, rows.height, size, digest_of(rows), runs, zeros, edges)


def write_parquet(path: Path, rows: pl.DataFrame, metadata: dict[str, str]) -> int:
    """Write a parquet file so that it is there whole or not at all; return its size in bytes."""
    buffer = io.BytesIO()  # polars writing to a full disk does not always say that it is full
    rows.write_parquet(buffer, compression="zstd", compression_level=3, metadata=metadata)
    with replacing(path) as temp:
        temp.write_bytes(buffer.getbuffer())
    return buffer.tell()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary name in the same folder; move it to `path` once it is safely on disk.

    The new name itself is safe after a `sync` of the folder: once for many files.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temp = path.with_name(f"{path.name}{_TEMP}")
    try:
        yield temp
        sync(temp)
        temp.replace(path)
    except BaseException as error:
        with suppress(OSError):
            temp.unlink(missing_ok=True)
        if is_full(error):
            raise DiskFull(
                f"no space left in {path.parent}: free some, or set CPB_HOME to another disk"
            ) from error
        raise


def is_full(error: BaseException) -> bool:
    """Tell whether an error means that the disk is full (polars hides the number in its text)."""
    number = getattr(error, "errno", None)
    return (
        number in (errno.ENOSPC, errno.EDQUOT) or "o space left" in str(error) or "disk is full" in str(error)
    )


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def times_of(rows: pl.DataFrame) -> np.ndarray:
    """Return open times as int64 microseconds, without a copy (polars' own cast starts a query each time)."""
    return rows["open_time"].to_numpy().view(np.int64)


def find_runs(rows: pl.DataFrame, grid: Grid) -> tuple[list[tuple[int, int]], list[tuple[float, float]]]:
    """Return the unbroken stretches `[from, until)` of sorted candles and each one's first open, last close."""
    times = times_of(rows)
    if not len(times):
        return [], []
    breaks = np.flatnonzero(grid.end(times[:-1]) != times[1:])
    first, last = np.r_[0, breaks + 1], np.r_[breaks, len(times) - 1]
    runs = [(int(a), grid.end(int(b))) for a, b in zip(times[first], times[last], strict=True)]
    opens, closes = rows["open"].to_numpy()[first], rows["close"].to_numpy()[last]
    return runs, [(float(a), float(b)) for a, b in zip(opens, closes, strict=True)]


def digest_of(rows: pl.DataFrame) -> str:
    """Return a digest of the candles' values, whatever file they came from."""
    state = hashlib.sha256()
    for name in KLINES:
        state.update(np.ascontiguousarray(rows[name].to_numpy()).view(np.int64).data)
    return state.hexdigest()


def series_digest(home: Path, series: SeriesKey, parts: list[Part], first: int, last: int) -> str:
    """Return a digest of the candles with `first <= open_time <= last`: whole months are known by theirs."""
    state = hashlib.sha256()
    for part in parts:
        share = _share(part, series, first, last)
        if share:
            cut = share == "some"
            digest = digest_of(_cut_part(home, series, part, first, last)) if cut else part.digest
            state.update(f"{part.month}:{digest};".encode())
    return state.hexdigest()


def zeros_of(home: Path, series: SeriesKey, part: Part, first: int, last: int) -> int:
    """Return how many of a part's candles in `[first, last]` have no volume."""
    share = _share(part, series, first, last)
    if share == "some" and part.zeros:
        return int((_cut_part(home, series, part, first, last)["volume"] == 0).sum())
    return part.zeros if share else 0


def provisional_rows(home: Path, series: SeriesKey, first: int, last: int) -> int:
    """Return how many unconfirmed candles lie in `[first, last]`."""
    tail = series_folder(home, series, "provisional") / "tail.parquet"
    return _between(_read([tail], ["open_time"]), first, last).height if tail.is_file() else 0


def _share(part: Part, series: SeriesKey, first: int, last: int) -> str:
    """Tell how much of a part lies in `[first, last]`: `all`, `some` or nothing (an empty text)."""
    if not part.runs:
        return ""
    begin, newest = part.runs[0][0], series.grid.latest(part.runs[-1][1])
    if begin > last or newest < first:
        return ""
    return "all" if begin >= first and newest <= last else "some"


def _cut_part(home: Path, series: SeriesKey, part: Part, first: int, last: int) -> pl.DataFrame:
    return _between(read_part(home, series, part.month), first, last)


def split_months(rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield sorted candles month by month."""
    times = times_of(rows)
    start = 0
    while start < len(times):
        month = month_of(int(times[start]))
        end = int(np.searchsorted(times, period_bounds(month)[1]))
        yield month, rows.slice(start, end - start)
        start = end


def sweep(home: Path) -> int:
    """Remove what a killed run left half-written; return how many files that were."""
    trees = [p for name in _TREES for p in home.glob(f"{name}*") if p.is_dir()]
    leftovers = [path for tree in trees for path in tree.rglob(f"*{_TEMP}") if path.is_file()]
    for path in leftovers:
        path.unlink(missing_ok=True)
    return len(leftovers)


@contextmanager
def writer_lock(home: Path) -> Iterator[None]:
    """Be the store's only writer; raises `BusyError` if somebody else is, `CpbError` if the folder is read-only."""
    import fcntl

    try:
        home.mkdir(parents=True, exist_ok=True)
        handle = os.open(home / "writer.lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise CpbError(
            f"cannot write in {home} ({error.strerror}); set CPB_HOME to a folder you own"
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise BusyError(f"another cpb is writing in {home}; wait for it, or use another CPB_HOME") from error
    try:
        yield
    finally:
        os.close(handle)  # releases the lock, as the end of the process would
