"""Feature files: one parquet per series and content, computed from klines; unchanged input is not recomputed."""

import hashlib
import io
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from cpbmodels.data.columns import PRICES, feature_frame
from cpbmodels.data.cross_section import CrossSection
from cpbmodels.data.series import Series, cross_section_of
from schemas.errors import DamagedError, MemberError, log
from schemas.features import check_features
from schemas.handover import SeriesRecord, SplitBounds
from schemas.identity import SeriesId, stored_series
from schemas.retention import FEATURE_FILES
from tasks.market.klines import find_runs, read_klines
from tasks.market.layout import grid_of, to_us
from tasks.signals.splits import check_enough, check_windows
from tasks.storage.files import write_bytes
from tasks.storage.records import AGAIN, digest_fault, file_digest, read_record, write_record
from tasks.storage.source_code import code_digest

NEWEST_ROWS = 4096
"""Rows that a forecast may read: five weeks of 15m candles (`cpbmodels.data.wide.LOOKBACK_DAYS`)."""

CROSS_SECTION_ROWS = 64
"""Rows from which the newest values of the market follow: 24 candles are its longest own window."""

FEATURE_FILE = re.compile(r"[0-9a-f]{16}-[0-9a-f]{8}\.parquet")
"""Name of a feature file: digests of its candles and of the code."""


def write_features(
    home: Path, series: SeriesId, *, since: datetime | None = None, as_of: datetime | None = None
) -> SeriesRecord:
    """Compute, check and store the features of one series; return their record with the path.

    The file name contains digests of the input candles and of the code: features of unchanged input are found, not
    recomputed. The record is beside the file; a file that does not match its record is deleted and computed again.
    Both are written atomically (temporary file, fsync, rename).

    Raises:
        MemberError: the store has no candle of this series in the range.
    """
    # read first, found or not: only their digest says whether a stored file is of the same candles
    klines = _klines(home, series, since=since, as_of=as_of)
    digest = klines_digest(klines)
    path = _path(home, series, digest)
    if stored := _intact_record(home, path):
        os.utime(path)  # pruning keeps the most recently used files
        return stored
    buffer = io.BytesIO()
    frame = check_features(feature_frame(klines, series.timeframe))
    # lz4: computed again from the candles at any time, so quick to read matters more than small
    frame.write_parquet(buffer, compression="lz4", statistics=False)
    write_bytes(path, buffer.getvalue())
    grid = grid_of(series.timeframe)
    runs = tuple((start, grid.latest(end)) for start, end in find_runs(klines, grid)[0])
    record = SeriesRecord(
        series=series,
        path=path.relative_to(home).as_posix(),
        digest=digest,
        file_digest=hashlib.sha256(buffer.getbuffer()).hexdigest(),
        rows=klines.height,
        first_us=runs[0][0],
        last_us=runs[-1][1],
        runs=runs if len(runs) > 1 else (),
    )
    # after the file: a run killed in between leaves a file without record, which is made again
    write_record(path.with_suffix(".json"), record)
    _prune(path.parent)
    return record


def _intact_record(home: Path, path: Path) -> SeriesRecord | None:
    """Return the record of an intact feature file, else None."""
    beside = path.with_suffix(".json")
    try:
        record = read_record(beside, SeriesRecord)
        if file_digest(path) == record.file_digest:
            return record
    except FileNotFoundError:  # never computed, or stopped between the two files
        return None
    except DamagedError:
        pass
    log.warning(
        "%s or its record was damaged: deleted and computed again",
        path.relative_to(home),
    )
    # both, whichever is damaged: one without the other is of no use
    path.unlink(missing_ok=True)
    beside.unlink(missing_ok=True)
    return None


def load_series(home: Path, record: SeriesRecord, bounds: SplitBounds) -> Series:
    """Return the stored features as a `Series` whose spans are the bounds' rows.

    Raises:
        DamagedError: the file is missing, or not the file that was written.
        MemberError: too few candles in a span, or no usable origin in it.
    """
    return with_bounds(read_features(home, record), record.series, bounds)


def read_features(home: Path, record: SeriesRecord) -> Series:
    """Return a series' stored features, without spans; raises `DamagedError` as `load_series`."""
    path = home / record.path
    if fault := digest_fault(path, record.file_digest):
        raise DamagedError.of(record.path, fault, AGAIN)
    return Series.from_columns(pl.read_parquet(path), record.series.label, record.series.timeframe)


def with_bounds(series: Series, name: SeriesId | str, bounds: SplitBounds) -> Series:
    """Return the same candles, not copied, with the bounds' rows as spans; errors as in `load_series`."""
    bounded = _with_spans(series, bounds)
    check_enough(name, {split: b - a for split, (a, b) in bounded.spans.items()}, len(series), bounds)
    check_windows(bounded, name, bounds)
    return bounded


def series_of(frame: pl.DataFrame, series: SeriesId, bounds: SplitBounds) -> Series:
    """Return a feature frame as a `Series` whose spans are the bounds' rows, however few rows there are."""
    return _with_spans(Series.from_columns(frame, series.label, series.timeframe), bounds)


def _with_spans(series: Series, bounds: SplitBounds) -> Series:
    assert series.times is not None
    rows = {
        # a bound in a hole falls on the next candle, as both ends of a span are rounded alike
        name: np.searchsorted(series.times, [to_us(start), to_us(end)]).tolist()
        for name, (start, end) in bounds.items()
    }
    return replace(series, spans={name: (first, last) for name, (first, last) in rows.items()})


def newest_series(
    home: Path,
    series: SeriesId,
    *,
    since: datetime | None = None,
    as_of: datetime | None = None,
    rows: int = NEWEST_ROWS,
) -> Series:
    """Return the newest rows of a series for a forecast: no spans, nothing to train on.

    It includes the newest candles, which no archive has confirmed yet. Their features are not stored: a new file every
    hour would evict files that a training is still reading.

    Raises:
        MemberError: the store has no candle of this series in the range.
    """
    klines = _klines(home, series, since=since, as_of=as_of, confirmed=False)
    path = _path(home, series, klines_digest(klines))
    # a training has computed just these candles: its file has the same values, and is read from its end
    if _intact_record(home, path):
        frame = pl.scan_parquet(path).tail(rows).collect()
    else:
        frame = check_features(feature_frame(klines, series.timeframe)).tail(rows)
    return Series.from_columns(frame, series.label, series.timeframe)


def market_key(series: SeriesId) -> tuple[str, str]:
    """Return a series' exchange market and timeframe: the coins that share both have a common `CrossSection`."""
    return series.market, series.timeframe


def cross_sections(coins: Mapping[SeriesId, Series]) -> dict[tuple[str, str], CrossSection]:
    """Return what these coins have in common at each candle, by `market_key`."""
    parts: dict[tuple[str, str], list[Series]] = {}
    for name, series in coins.items():
        parts.setdefault(market_key(name), []).append(series)
    return {key: cross_section_of(part) for key, part in parts.items()}


def newest_cross_sections(
    home: Path, wanted: Iterable[tuple[str, str]], **how: Any
) -> dict[tuple[str, str], CrossSection]:
    """Return what all stored coins of the wanted markets and timeframes (`market_key`) share at their newest candles.

    So a forecast does not depend on the coins requested with it. `how`: as in `newest_series`. A coin without
    candles in the scope is left out, and so is a damaged one, which its own forecast reports.
    """
    # all stored coins, not those of the forecast: what a coin's column is compared with must not depend on the command
    keys = set(wanted)
    coins = {}
    for name in stored_series(home, "klines") if keys else ():
        if market_key(name) in keys:
            # a damaged coin fails in its own forecast, where it is named
            with suppress(MemberError):
                coins[name] = newest_series(home, name, rows=CROSS_SECTION_ROWS, **how)
    return cross_sections(coins)


def klines_digest(klines: pl.DataFrame) -> str:
    """Return a blake2b digest (hex) of the candles' times, prices and volumes: the fingerprint of a model's data.

    `tasks.market.klines.digest_of` differs: it covers every stored column, to detect a damaged month.
    """
    state = hashlib.blake2b(digest_size=20)
    # what columns are computed from; the other amounts may be revised without another model
    for name in ("open_time", *PRICES, "volume"):
        state.update(klines[name].to_physical().to_numpy().tobytes())
    return state.hexdigest()


def _klines(home: Path, series: SeriesId, **scope: Any) -> pl.DataFrame:
    klines = read_klines(home, series, **scope)
    if klines.is_empty():
        raise MemberError(
            f"{series}: no candles in the requested time range; check since and as_of", code="no-candles"
        )
    return klines


def _path(home: Path, series: SeriesId, digest: str) -> Path:
    code = code_digest("cpbmodels/data/columns.py")
    return series.folder(home, "features") / f"{digest[:16]}-{code[:8]}.parquet"


def _prune(folder: Path) -> None:
    """Remove the least recently used feature files; only files named like a feature file are considered."""
    files = [path for path in folder.iterdir() if FEATURE_FILE.fullmatch(path.name)]
    # by last use, which `write_features` stamps on a file that it finds
    for old in sorted(files, key=lambda p: p.stat().st_mtime, reverse=True)[FEATURE_FILES:]:
        old.unlink(missing_ok=True)
        old.with_suffix(".json").unlink(missing_ok=True)
