"""Feature files: klines in, one parquet per series and content out; unchanged input is not computed again."""

import hashlib
import io
import os
from dataclasses import replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import cpbmodels.series
import schemas.features
from cpbmodels.series import Series
from schemas.errors import MemberError
from schemas.features import FEATURES, PRICES, check_features
from schemas.records import SeriesRecord
from tasks.storage.files import write_bytes
from tasks.market.store import read_klines
from tasks.signals import columns
from tasks.signals.splits import SplitBounds, check_enough, check_windows

KEPT = 4
"""Feature files kept per series: a run of another `--as-of` may still be reading an older one."""


def write_features(
    home: Path,
    symbol: str,
    timeframe: str,
    *,
    since: datetime | None = None,
    as_of: datetime | None = None,
    market: str = "spot",
) -> SeriesRecord:
    """Compute, check and store the features of one series below `home/features`; return where they lie.

    The file is named by the digest of its input candles and of the code that computes it: the same input
    is found, not recomputed. Written atomically (temporary file, fsync, rename).

    Raises:
        MemberError: the store holds no candle of this series in the range.
    """
    klines = _klines(home, symbol, timeframe, since=since, as_of=as_of, market=market)
    digest = klines_digest(klines)
    path = _path(home, symbol, timeframe, market, digest)
    if path.exists():
        os.utime(path)  # the most recently used files survive the pruning
    else:
        buffer = io.BytesIO()
        frame = check_features(columns.feature_frame(klines, timeframe))
        frame.write_parquet(buffer, compression="lz4", statistics=False)
        write_bytes(path, buffer.getvalue())
        _prune(path.parent)
    first, last = klines["open_time"].cast(pl.Int64)[0], klines["open_time"].cast(pl.Int64)[-1]
    return SeriesRecord(
        symbol=symbol, timeframe=timeframe, path=path, digest=digest,
        rows=klines.height, first_us=first, last_us=last,
    )  # fmt: skip


def load_series(path: Path, bounds: SplitBounds, symbol: str = "") -> Series:
    """Return the stored features as a `Series` whose spans are the bounds' rows.

    Raises:
        MemberError: too few candles in a span, or none that can be learnt from or judged.
    """
    return with_bounds(series_of(pl.read_parquet(path), bounds, _symbol(path, symbol)), bounds)


def with_bounds(series: Series, bounds: SplitBounds) -> Series:
    """Return the same candles, not copied, with the bounds' rows as spans; errors as in `load_series`."""
    assert series.times is not None
    spans = {name: _rows(series.times, *span) for name, span in bounds.items()}
    check_enough(series.symbol, {name: b - a for name, (a, b) in spans.items()}, len(series.prices), bounds)
    bounded = replace(series, spans=spans)
    check_windows(bounded, bounds)
    return bounded


def series_of(frame: pl.DataFrame, bounds: SplitBounds, symbol: str = "") -> Series:
    """Return a feature frame as a `Series` whose spans are the bounds' rows, however few those are."""
    series = _series(frame, symbol, bounds.timeframe)
    assert series.times is not None
    return replace(series, spans={name: _rows(series.times, *span) for name, span in bounds.items()})


def newest_series(
    home: Path,
    symbol: str,
    timeframe: str,
    *,
    since: datetime | None = None,
    as_of: datetime | None = None,
    market: str = "spot",
    provisional: bool = False,
    rows: int = 1024,
) -> Series:
    """Return the newest rows of a series for a forecast: no spans, nothing to train on.

    `provisional` includes the newest candles, which no archive has confirmed yet. Their features are not
    stored: every hour a new file would push out the ones that a training is still reading.

    Raises:
        MemberError: the store holds no candle of this series in the range.
    """
    klines = _klines(
        home, symbol, timeframe, since=since, as_of=as_of, market=market, provisional=provisional
    )
    path = _path(home, symbol, timeframe, market, klines_digest(klines))
    if path.exists():
        frame = pl.scan_parquet(path).tail(rows).collect()
    else:
        frame = check_features(columns.feature_frame(klines, timeframe)).tail(rows)
    return _series(frame, symbol, timeframe)


def klines_digest(klines: pl.DataFrame) -> str:
    """Return a blake2b digest (hex) of the candles' times, prices and volumes: the data's fingerprint."""
    state = hashlib.blake2b(digest_size=20)
    state.update(klines["open_time"].cast(pl.Int64).to_numpy().tobytes())
    for name in (*PRICES, "volume"):
        state.update(klines[name].to_numpy().tobytes())
    return state.hexdigest()


@cache
def code_digest() -> str:
    """Return a digest of the sources that define the columns, so that editing them invalidates the files."""
    sources = (columns.__file__, cpbmodels.series.__file__, schemas.features.__file__)
    return hashlib.blake2b(b"".join(Path(s or "").read_bytes() for s in sources), digest_size=20).hexdigest()


def _rows(times: np.ndarray, start: datetime, end: datetime) -> tuple[int, int]:
    edges = [round(t.timestamp() * 1e6) for t in (start, end)]
    a, b = np.searchsorted(times, edges)
    return int(a), int(b)


def _series(frame: pl.DataFrame, symbol: str, timeframe: str) -> Series:
    return Series(
        prices=frame.select(PRICES).to_numpy(),
        features=frame.select(FEATURES).to_numpy(),
        names=FEATURES,
        volatility=frame["volatility"].to_numpy(),
        segments=frame["segment"].to_numpy().astype(np.int64),
        spans={},
        symbol=symbol,
        timeframe=timeframe,
        times=frame["open_time"].cast(pl.Int64).to_numpy(),
    )


def _symbol(path: Path, symbol: str) -> str:
    return symbol or path.parent.name.removeprefix("symbol=")


def _klines(home: Path, symbol: str, timeframe: str, **scope: Any) -> pl.DataFrame:
    klines = read_klines(home, symbol, timeframe, **scope)
    if klines.is_empty():
        raise MemberError(
            f"{symbol} {timeframe}: no candles in the asked time range; check --since and --as-of"
        )
    return klines


def _path(home: Path, symbol: str, timeframe: str, market: str, digest: str) -> Path:
    branch = home / "features" if market == "spot" else home / "features" / f"market={market}"
    folder = branch / f"interval={timeframe}" / f"symbol={symbol}"
    return folder / f"{digest[:16]}-{code_digest()[:8]}.parquet"


def _prune(folder: Path) -> None:
    files = sorted(folder.glob("*.parquet"), key=lambda p: p.stat().st_mtime, reverse=True)
    for old in files[KEPT:]:
        old.unlink(missing_ok=True)
