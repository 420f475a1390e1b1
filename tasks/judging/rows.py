"""Forecast rows of a backtest as parquet: the contract's columns, plus the fold and what came true."""

import io
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from cpbmodels.series import Series
from schemas.forecasts import CANDLE_COLUMNS, QUANTILE_COLUMNS
from schemas.universe import INTERVAL_SECONDS
from tasks.storage.files import write_bytes
from tasks.judging.scores import Array


def backtest_rows(
    series: Series,
    origins: NDArray[np.int64],
    quantiles: Array,
    candle: Array | None,
    *,
    model: str,
    fold: int,
) -> pl.DataFrame:
    """Return one row per origin and step; prices as Float64 (PEPE trades at 1e-8).

    Args:
        series: what was forecast; needs `times`.
        origins: int64 [N], rows of the last known candles.
        quantiles: [N, H, 19] cumulative log-returns of the close.
        candle: [N, H, 4] log-ratios of the median candle, None where the model forecasts the close alone.
        model: written as `model_version`.
        fold: number of the fold, from 1.
    """
    if series.times is None:
        raise ValueError(f"{series.symbol} {series.timeframe}: forecast rows need the candles' times")
    n, horizon, _ = quantiles.shape
    step_us = INTERVAL_SECONDS[series.timeframe] * 1_000_000
    steps = np.tile(np.arange(1, horizon + 1), n)
    issued = np.repeat(series.times[origins] + step_us, horizon)
    last = np.repeat(series.prices[origins, 3], horizon)
    close = last[:, None] * np.exp(quantiles.reshape(n * horizon, -1))
    columns: dict[str, Array] = {name: close[:, i] for i, name in enumerate(QUANTILE_COLUMNS)}
    if candle is not None:
        shape = last[:, None] * np.exp(np.asarray(candle, dtype=np.float64).reshape(n * horizon, 4))
        columns |= {name: shape[:, i] for i, name in enumerate(CANDLE_COLUMNS)}
    frame = pl.DataFrame(
        {
            "issued_at": issued,
            "step": steps,
            "target_time": issued + steps * step_us,
            **columns,
            "last_close": last,
        }
    )
    utc = pl.Datetime("us", "UTC")
    realised = series.prices[np.repeat(origins, horizon) + steps, 3]
    return frame.select(
        pl.lit(series.symbol).alias("symbol"),
        pl.lit(series.timeframe).alias("timeframe"),
        pl.lit(model).alias("model_version"),
        pl.col("issued_at").cast(utc),
        pl.col("step").cast(pl.Int16),
        pl.col("target_time").cast(utc),
        pl.exclude("issued_at", "step", "target_time"),
        pl.Series("realised_close", realised),
        pl.lit(fold, dtype=pl.Int16).alias("fold"),
    )


def write_rows(folder: Path, frame: pl.DataFrame) -> Path:
    """Write one member's rows of one fold below `folder`; return the file."""
    model, symbol, timeframe, fold = (frame[n][0] for n in ("model_version", "symbol", "timeframe", "fold"))
    path = folder / f"model={model}" / f"interval={timeframe}" / f"symbol={symbol}" / f"fold-{fold}.parquet"
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd", compression_level=1)
    write_bytes(path, buffer.getvalue())
    return path
