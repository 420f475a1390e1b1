"""The parquet files: `klines/interval=15m/symbol=BTCUSDT/2024-01.parquet`, a file per month.

A month is the unit of source, storage and quarantine. Files are created by rename, so readers never see a partial file;
off-grid candles (`offgrid/`) and unconfirmed candles from REST (`provisional/`) are in separate trees. The metadata of
each file contains the digest of its candles.
"""

import hashlib
import io
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import numpy as np
import polars as pl

from cpbmodels.data.columns import PRICES, level_leaps, stands_still
from cpbmodels.files import read_regular
from schemas.candles import KLINES
from schemas.errors import MemberError, log
from schemas.identity import OWN, SIM, SeriesId
from tasks.market.layout import Grid, grid_of, month_of, months, period_bounds, to_us
from tasks.market.manifest import Part
from tasks.market.store_files import CANDLES
from tasks.storage.files import write_bytes
from tasks.storage.records import file_digest

DIGEST = "cpb.digest"  # metadata key: digest of the candles' values

READ_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
"""Errors of polars for a damaged file; damaged lengths make it panic."""


def read_klines(
    home: Path,
    series: SeriesId,
    since: datetime | None = None,
    as_of: datetime | None = None,
    columns: list[str] | None = None,
    *,
    confirmed: bool = True,
) -> pl.DataFrame:
    """Return stored candles: sorted, unique, on the grid, `since <= open_time`, closed by `as_of` (UTC).

    `home` is CPB_HOME: the series determines the tree below it. `confirmed=False` adds the candles that `ingest --tail`
    fetched, only those after the last candle of the files: before it only the files count, even if they lack a candle
    that the tail has.

    Raises:
        MemberError: the store has no candles of this series, or a part of it is damaged.
    """
    grid = grid_of(series.timeframe)
    first = to_us(since) if since else 0
    last = grid.latest(to_us(as_of) if as_of else 1 << 62)
    parts = part_paths(home, series)
    if not parts:
        raise MemberError(
            f"{series}: no candles in {home}; fetch them first with `{ingest_command(series)}`",
            code="no-candles",
        )
    tail = None if confirmed else _tail(home, series)
    # where the tail begins depends on the newest stored candle, so no later month may be left out
    until = last if tail is None else 1 << 62
    bounds = {path: period_bounds(path.stem) for path in parts}
    # other months are not even opened: a forecast needs the newest few of a coin's many
    needed = [path for path, (start, end) in bounds.items() if start <= until and end > first]
    stored = _read_parts(series, needed)
    frame = _between(stored, first, last)
    if tail is not None:
        newest = int(times_of(stored)[-1]) if len(stored) else -1  # else `first` is after all candles
        frame = pl.concat([frame, _between(tail, max(first, newest + 1), last)])
    return frame.select(*dict.fromkeys(["open_time", *columns])) if columns else frame


def ingest_command(series: SeriesId) -> str:
    """Return the command that fetches a series."""
    return f"cpb ingest {series.options}"


def with_source(command: str, market: str) -> str:
    """Return a command that fetches candles, with a remark: a mirror's URL may contain a password and is not stored."""
    if market in (OWN, SIM):  # the command already names the source
        return f"`{command}`"
    return f"`{command}`, adding the --source of the candles unless that was Binance Vision"


def _read_parts(series: SeriesId, parts: list[Path]) -> pl.DataFrame:
    """Return the candles of these months, compared with their digests: 4 ms for two years of 15m candles."""
    reason = "its candles are not those that were written"
    try:
        metadata = {path: pl.read_parquet_metadata(path) for path in parts}
        # one call for all months: polars decodes them side by side
        frame = _read(parts)
        months = dict(split_months(frame))
        digests = {path: digest_of(months.get(path.stem, frame.clear())) for path in parts}
        # parts written by another program have no digest
        intact = all(of.get(DIGEST, digests[path]) == digests[path] for path, of in metadata.items())
    except READ_ERRORS as error:
        intact, reason = False, str(error).splitlines()[0][:80]
    if not intact:  # a wrong time shifts the cuts of the adjacent months: which part is damaged?
        faults = ((path, reason) for path in parts if (reason := damage_of(path)))
        raise _damaged(series, *next(faults, (parts[0], reason)))
    return frame


def _damaged(series: SeriesId, path: Path, reason: str) -> MemberError:
    return MemberError(
        f"{series}: {path} is damaged ({reason}); fetch it again with "
        + with_source(ingest_command(series), series.market),
        code="damaged",
        field=str(path),
    )


def damage_of(path: Path, part: Part | None = None) -> str:
    """Return the damage of a stored file, or "": its candles are compared with its own digest, and with the manifest's.

    A file written by another program has no digest. The manifest may lack a part that a killed run has written.
    """
    try:
        content = read_regular(path)
        metadata = pl.read_parquet_metadata(io.BytesIO(content))
        rows = pl.read_parquet(io.BytesIO(content), columns=list(KLINES))
        digest = digest_of(rows)
    except FileNotFoundError:
        return "it is missing"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    except (*READ_ERRORS, ValueError, TypeError) as error:
        return f"it is not a parquet file of candles: {(str(error).splitlines() or [''])[0][:80]}"
    if metadata.get(DIGEST, digest) != digest:
        return "its candles are not those that were written"
    # a killed run has written it, and not yet recorded what it holds
    return "its candles differ from those on record" if part and metadata.get(DIGEST) != part.digest else ""


def _tail(home: Path, series: SeriesId) -> pl.DataFrame | None:
    """Return the provisional candles; a damaged file is ignored, as the next `ingest --tail` replaces it."""
    path = series.folder(home, "provisional") / "tail.parquet"
    if not path.is_file():
        return None
    if reason := damage_of(path):
        log.warning("%s is not used (%s); `cpb ingest --tail` rebuilds it", path, reason)
        return None
    return _read([path])


def part_paths(home: Path, series: SeriesId) -> list[Path]:
    """Return the files of a series, oldest first."""
    folder = series.folder(home, "klines")
    if not folder.is_dir():
        return []
    names = sorted(entry.name for entry in os.scandir(folder))
    return [folder / n for n in names if CANDLES["klines"].fullmatch(n)]


def _read(paths: list[Path]) -> pl.DataFrame:
    if not paths:
        return pl.DataFrame(schema=KLINES)
    # no glob: a home's path may hold brackets; no hive: `interval=…/symbol=…` would become columns
    return pl.read_parquet(paths, columns=list(KLINES), glob=False, hive_partitioning=False)


def _between(frame: pl.DataFrame, first: int, last: int) -> pl.DataFrame:
    """Cut sorted candles by binary search: a filter would copy every column."""
    times = times_of(frame)
    start, end = np.searchsorted(times, [first, last + 1])
    # A negative length would count from the end: candles after `last`.
    return frame if (start, end) == (0, len(times)) else frame.slice(start, max(0, end - start))


def part_path(home: Path, series: SeriesId, month: str) -> Path:
    """Return the path of a month of a series."""
    return series.folder(home, "klines") / f"{month}.parquet"


def read_part(home: Path, series: SeriesId, month: str) -> pl.DataFrame:
    """Return a month's candles, empty if there is no such part; raises `MemberError` if it is damaged."""
    path = part_path(home, series, month)
    return _read_parts(series, [path] if path.is_file() else [])


def write_part(home: Path, series: SeriesId, month: str, rows: pl.DataFrame) -> Part:
    """Write a month's candles and return its manifest entry."""
    digest = digest_of(rows)
    size = write_parquet(part_path(home, series, month), rows, digest)
    runs, edges = find_runs(rows, grid_of(series.timeframe))
    return Part(month, rows.height, size, digest, runs, *_idle(rows), edges)


def write_parquet(path: Path, rows: pl.DataFrame, digest: str = "") -> int:
    """Write a parquet file atomically; return its size in bytes."""
    buffer = io.BytesIO()  # polars does not always report a full disk
    metadata = {DIGEST: digest or digest_of(rows)}
    rows.write_parquet(buffer, compression="zstd", compression_level=3, metadata=metadata)
    write_bytes(path, buffer.getbuffer())
    return buffer.tell()


def times_of(rows: pl.DataFrame) -> np.ndarray:
    """Return open times as int64 microseconds, without a copy (polars' own cast starts a query each time)."""
    return rows["open_time"].to_numpy().view(np.int64)


def find_runs(rows: pl.DataFrame, grid: Grid) -> tuple[list[tuple[int, int]], list[tuple[float, float]]]:
    """Return the runs `[from, until)` of sorted candles, and the first open and last close of each.

    A run ends where candles are missing, or where the price level leaps.
    """
    times = times_of(rows)
    if not len(times):
        return [], []
    opens, closes = rows["open"].to_numpy(), rows["close"].to_numpy()
    # a leap ends a run too, so that the edges in the manifest show it without reading the month
    breaks = np.flatnonzero((grid.end(times[:-1]) != times[1:]) | level_leaps(opens, closes)[1:])
    first, last = np.r_[0, breaks + 1], np.r_[breaks, len(times) - 1]
    runs = [(int(a), grid.end(int(b))) for a, b in zip(times[first], times[last], strict=True)]
    return runs, [(float(a), float(b)) for a, b in zip(opens[first], closes[last], strict=True)]


def digest_of(rows: pl.DataFrame) -> str:
    """Return a digest of the candles' values, whatever their file."""
    state = hashlib.sha256()
    for name in KLINES:
        # by the bits of each value: a text of it might round, and 0.0 equals -0.0
        state.update(np.ascontiguousarray(rows[name].to_numpy()).view(np.int64).data)
    return state.hexdigest()


def candles_digest(home: Path, series: SeriesId, first: datetime, last: datetime) -> str:
    """Return a digest that changes when a stored candle of the months of `[first, last]` (UTC) does.

    It is made from the digests in the files, whose candles are not read. Provisional candles count until a later month
    is stored.
    """
    wanted = months(to_us(first), to_us(last) + 1)
    stored = part_paths(home, series)
    paths = [path for path in stored if path.stem in wanted]
    if not stored or stored[-1].stem <= wanted[-1]:
        paths += [series.folder(home, "provisional") / "tail.parquet"]
    return hashlib.sha256("\n".join(f"{path.stem} {_file_mark(path)}" for path in paths).encode()).hexdigest()


def _file_mark(path: Path) -> str:
    """Return the digest in a file's metadata, that of its bytes if it has none, or "" without a readable file."""
    try:
        return pl.read_parquet_metadata(path).get(DIGEST) or file_digest(path)
    except (*READ_ERRORS, OSError):
        return ""


def digest_and_idle(
    home: Path, series: SeriesId, parts: list[Part], first: int, last: int
) -> tuple[str, int, int]:
    """Return a digest of the candles with `first <= open_time <= last`, and how many have no volume and stand still.

    Whole months contribute what the manifest has of them; a month that is cut is read.
    """
    state, zeros, still = hashlib.sha256(), 0, 0
    for part in (part for part in parts if part.runs):
        begin, newest = part.runs[0][0], grid_of(series.timeframe).latest(part.runs[-1][1])
        if begin > last or newest < first:
            continue
        path = part_path(home, series, part.month)
        if not path.exists():
            raise _damaged(series, path, "it is missing")
        digest, idle = part.digest, (part.zeros, part.still)
        # the manifest's figures are of the whole month
        if begin < first or newest > last:
            cut = _between(read_part(home, series, part.month), first, last)
            digest, idle = digest_of(cut), _idle(cut)
        state.update(f"{part.month}:{digest};".encode())
        zeros, still = zeros + idle[0], still + idle[1]
    return state.hexdigest(), zeros, still


def _idle(rows: pl.DataFrame) -> tuple[int, int]:
    """Return the number of candles in which nothing was traded, and of those that stand still."""
    volume = rows["volume"].to_numpy()
    still = stands_still(rows.select(PRICES).to_numpy(), volume)
    return int((volume == 0).sum()), int(still.sum())


def split_months(rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield sorted candles month by month."""
    times = times_of(rows)
    start = 0
    while start < len(times):
        month = month_of(int(times[start]))
        end = int(np.searchsorted(times, period_bounds(month)[1]))
        # a slice shares its memory with `rows`
        yield month, rows.slice(start, end - start)
        start = end
