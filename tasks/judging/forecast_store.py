"""The forecast store: parquet under `HOME/forecasts/interval=IV/symbol=SYM/YYYY-MM.parquet`, append-only.

A row once written never changes: what came true later stands in the ledger's own files, and when a forecast
was written in those of `HOME/issued` (the same layout). A month is one file
(40 series every hour would otherwise make 350 000 files a year); rows are added by rename, under a lock.
"""

import fcntl
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from schemas.forecasts import (
    CANDLE_COLUMNS,
    FORECAST_SCHEMA,
    KEY,
    MADE_KEY,
    MADE_SCHEMA,
    QUANTILE_COLUMNS,
    check_forecasts,
)
from tasks.storage.files import write_bytes


def forecast_rows(
    symbol: str,
    timeframe: str,
    model_version: str,
    issued_at: datetime,
    step_seconds: int,
    close: np.ndarray,
    candle: np.ndarray,
    last_close: float,
) -> pl.DataFrame:
    """Return one forecast as rows of the contract, steps 1 … H.

    Args:
        issued_at: UTC end of the last candle used.
        step_seconds: length of a candle.
        close: float64 [19, H], the close's quantiles 0.05 … 0.95, in prices.
        candle: float64 [H, 4], the median candle's open, high, low, close, in prices.
        last_close: close of the last candle used.

    Raises:
        ValueError: the arrays' shapes do not fit each other.
    """
    horizon = len(candle)
    if np.shape(close) != (len(QUANTILE_COLUMNS), horizon) or np.shape(candle) != (horizon, 4):
        raise ValueError(f"close must be [19, H] and candle [H, 4], got {np.shape(close)} {np.shape(candle)}")
    steps = range(1, horizon + 1)
    columns: dict[str, Any] = {
        "symbol": [symbol] * horizon,
        "timeframe": [timeframe] * horizon,
        "model_version": [model_version] * horizon,
        "issued_at": [issued_at] * horizon,
        "step": list(steps),
        "target_time": [issued_at + timedelta(seconds=step_seconds * step) for step in steps],
        **{name: close[i] for i, name in enumerate(QUANTILE_COLUMNS)},
        **{name: candle[:, i] for i, name in enumerate(CANDLE_COLUMNS)},
        "last_close": [float(last_close)] * horizon,
    }
    return pl.DataFrame(columns, schema=FORECAST_SCHEMA)


def append(home: Path, frame: pl.DataFrame, made_at: datetime | None = None) -> int:
    """Add rows that are not there yet and return how many; the first forecast under a key stands.

    Args:
        made_at: UTC; default the clock's time. Kept apart, so that replays can be told from live forecasts.

    Raises:
        ValueError, pandera.errors.SchemaError: the frame breaks the contract; nothing is written.
    """
    check_forecasts(frame)
    months = frame.with_columns(month=pl.col("issued_at").dt.strftime("%Y-%m"))
    parts = months.partition_by("timeframe", "symbol", "month", as_dict=True)
    added = 0
    for (timeframe, symbol, month), part in parts.items():
        series = str(symbol), str(timeframe)
        added += add_rows(series_folder(home, *series), str(month), part.drop("month"))
        # After the forecasts: after a kill in between nothing claims to be older than it is.
        made = part.select(MADE_KEY).with_columns(made_at=pl.lit(made_at or datetime.now(UTC)))
        made = made.cast(MADE_SCHEMA)  # type: ignore[arg-type]
        add_rows(series_folder(home, *series, "issued"), str(month), made, MADE_KEY)
    return added


def read(
    home: Path,
    symbol: str,
    timeframe: str,
    since: datetime | None = None,
    until: datetime | None = None,
) -> pl.DataFrame:
    """Return stored rows of one series by `issued_at`, model and step; empty where there are none.

    Args:
        since, until: bounds of `issued_at`, UTC, both inclusive.
    """
    rows = read_months(series_folder(home, symbol, timeframe), FORECAST_SCHEMA, since, until)
    return rows.sort("issued_at", "model_version", "step")


def latest(home: Path, symbol: str, timeframe: str) -> pl.DataFrame:
    """Return the newest forecast of one series, its steps in order; empty where there is none.

    Of several models at the same instant, the one written last.
    """
    files = month_files(series_folder(home, symbol, timeframe))
    if not files:
        return pl.DataFrame(schema=FORECAST_SCHEMA)
    rows = pl.read_parquet(files[-1], hive_partitioning=False)
    newest = rows.filter(pl.col("issued_at") == pl.col("issued_at").max())
    return newest.filter(pl.col("model_version") == pl.col("model_version").last()).sort("step")


def stored_series(home: Path) -> list[tuple[str, str]]:
    """Return (symbol, timeframe) of every series that has forecasts."""
    folders = sorted((home / "forecasts").glob("interval=*/symbol=*"))
    pairs = [(f.name.removeprefix("symbol="), f.parent.name.removeprefix("interval=")) for f in folders]
    return [pair for pair, folder in zip(pairs, folders, strict=True) if month_files(folder)]


def series_folder(home: Path, symbol: str, timeframe: str, kind: str = "forecasts") -> Path:
    """Return the folder of one series under `HOME/forecasts`, `HOME/issued` or `HOME/ledger`."""
    return home / kind / f"interval={timeframe}" / f"symbol={symbol}"


def month_files(folder: Path) -> list[Path]:
    """Return the month files of a series, oldest first."""
    return sorted(folder.glob("????-??.parquet"))


def read_months(
    folder: Path, schema: dict[str, Any], since: datetime | None = None, until: datetime | None = None
) -> pl.DataFrame:
    """Return the rows of a series' months with `issued_at` in the bounds."""
    files = [
        f
        for f in month_files(folder)
        if (not since or f.stem >= since.strftime("%Y-%m"))
        and (not until or f.stem <= until.strftime("%Y-%m"))
    ]
    if not files:
        return pl.DataFrame(schema=schema)
    rows = pl.read_parquet(files, hive_partitioning=False)
    if since:
        rows = rows.filter(pl.col("issued_at") >= since)
    return rows.filter(pl.col("issued_at") <= until) if until else rows


def add_rows(folder: Path, month: str, rows: pl.DataFrame, key: Sequence[str] = KEY) -> int:
    """Append rows with new keys to a month's file in one rename; return how many were new."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{month}.parquet"
    with _locked(folder):
        old = pl.read_parquet(path, hive_partitioning=False) if path.exists() else rows.clear()
        new = rows.unique(key, keep="first", maintain_order=True).join(old, on=list(key), how="anti")
        if not new.is_empty():
            buffer = io.BytesIO()
            pl.concat([old, new]).write_parquet(buffer, compression="zstd")
            write_bytes(path, buffer.getvalue())
    return len(new)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
