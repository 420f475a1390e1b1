"""The forecast store: forecast rows as they were issued, and beside them when they were written (`issued`).

A row once written never changes: what came true later stands in the ledger's own files. The forecasts of each
market lie in a tree of their own (`SeriesId.folder`), so those of spot, futures and the simulator never meet.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl

from cpbmodels.rows import QUANTILE_COLUMNS
from cpbmodels.rows import forecast_rows as rows_of
from schemas.forecasts import FORECAST_SCHEMA, ISSUED_KEY, ISSUED_SCHEMA
from schemas.identity import SeriesId, stored_series
from tasks.forecasting.index import month_files
from tasks.forecasting.months import (
    FORECASTS,
    ISSUED,
    add_rows,
    month_of,
    read_month,
    read_months,
)


def forecast_rows(
    series: SeriesId,
    model_version: str,
    issued_at: datetime,
    close: np.ndarray,
    candle: np.ndarray,
    last_close: float,
) -> pl.DataFrame:
    """Return one forecast as rows of the contract, steps 1 … H.

    Args:
        model_version: registered model and version, `cpb-BTCUSDT-1h/3`.
        issued_at: UTC end of the last candle used.
        close: float64 [19, H], the close's quantiles 0.05 … 0.95, in prices.
        candle: float64 [H, 4], the median candle's open, high, low, close, in prices.
        last_close: close of the last candle used.

    Raises:
        ValueError: the arrays' shapes do not fit each other.
    """
    horizon = len(candle)
    if np.shape(close) != (len(QUANTILE_COLUMNS), horizon) or np.shape(candle) != (horizon, 4):
        raise ValueError(f"close must be [19, H] and candle [H, 4], got {np.shape(close)} {np.shape(candle)}")
    rows = rows_of([issued_at], series.seconds, np.asarray(close).T[None], np.asarray(candle)[None])
    named = rows.with_columns(
        symbol=pl.lit(series.symbol),
        timeframe=pl.lit(series.timeframe),
        model_version=pl.lit(model_version),
        last_close=pl.lit(float(last_close)),
    )
    return named.select(pl.col(name).cast(kind) for name, kind in FORECAST_SCHEMA.items())


def append(
    home: Path,
    series: SeriesId,
    rows: pl.DataFrame,
    made_at: datetime | None = None,
    *,
    lost: Callable[[str], None] | None = None,
) -> int:
    """Add rows that are not there yet and return how many; the first forecast under a key stands.

    Args:
        made_at: UTC; default the clock's time. Kept apart, so that replays can be told from live forecasts.
        lost: called with a sentence for each damaged file that was set aside.

    Raises:
        MemberError: the rows break the contract, or are of another series; nothing is written.
    """
    added = add_rows(home, series, FORECASTS, rows, lost=lost)
    # After the forecasts: if the run is killed in between, no forecast claims to be older than it is.
    made = (
        rows.select(ISSUED_KEY)
        .unique(maintain_order=True)
        .with_columns(made_at=pl.lit(made_at or datetime.now(UTC)))
    )
    add_rows(home, series, ISSUED, made.cast(ISSUED_SCHEMA), lost=lost)  # type: ignore[arg-type]
    return added


def read(
    home: Path, series: SeriesId, since: datetime | None = None, until: datetime | None = None
) -> pl.DataFrame:
    """Return stored rows of one series by `issued_at`, model and step; empty where there are none.

    Args:
        since, until: bounds of `issued_at`, UTC, both inclusive.
    """
    return read_months(home, series, FORECASTS, since, until).sort("issued_at", "model_version", "step")


def latest(home: Path, series: SeriesId, until: datetime | None = None) -> pl.DataFrame:
    """Return the newest forecast of one series (issued by `until`), its steps in order; empty where there is none.

    Of several models at the same instant, the one written last.
    """
    for path in reversed(month_files(series.folder(home, FORECASTS.name))):
        if until and path.stem > month_of(until):
            continue
        rows = read_month(home, series, FORECASTS, path.stem)
        if rows is not None and until:
            rows = rows.filter(pl.col("issued_at") <= until)
        if rows is not None and not rows.is_empty():
            newest = rows.filter(pl.col("issued_at") == pl.col("issued_at").max())
            return newest.filter(pl.col("model_version") == pl.col("model_version").last()).sort("step")
    return pl.DataFrame(schema=FORECAST_SCHEMA)


def stored(home: Path, market: str | None = None) -> list[SeriesId]:
    """Return every series (of one market) that has forecasts, in order."""
    known = stored_series(home, FORECASTS.name)
    return [s for s in known if market in (None, s.market) and month_files(s.folder(home, FORECASTS.name))]
