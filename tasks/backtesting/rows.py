"""Forecast rows of a backtest as parquet: the contract's columns, plus the fold and the realised close."""

import io
from pathlib import Path

import numpy as np
import polars as pl

from cpbmodels.rows import MEDIAN_COLUMNS, QUANTILE_COLUMNS
from schemas.forecasts import check_backtest_rows
from tasks.backtesting.folds import FoldSeries
from tasks.backtesting.models import Forecasts
from tasks.judging.scores import Array
from tasks.storage.files import write_bytes


def backtest_rows(one: FoldSeries, forecasts: Forecasts, model: str) -> pl.DataFrame:
    """Return one row per origin and step of a fold, checked; prices as Float64 (PEPE trades at 1e-8).

    Args:
        one: the series and fold that were forecast; the series needs `times`.
        forecasts: of its test span.
        model: written as `model_version`.
    """
    series, origins, candle = one.series, forecasts.origins, forecasts.candle
    assert series.times is not None  # every stored series has them
    n, horizon, _ = forecasts.quantiles.shape
    step_us = one.id.seconds * 1_000_000
    steps = np.tile(np.arange(1, horizon + 1), n)
    issued = np.repeat(series.times[origins] + step_us, horizon)
    last = np.repeat(series.prices[origins, 3], horizon)
    close = last[:, None] * np.exp(forecasts.quantiles.reshape(n * horizon, -1))
    columns: dict[str, Array] = {name: close[:, i] for i, name in enumerate(QUANTILE_COLUMNS)}
    if candle is not None:
        shape = last[:, None] * np.exp(np.asarray(candle, dtype=np.float64).reshape(n * horizon, 4))
        columns |= {name: shape[:, i] for i, name in enumerate(MEDIAN_COLUMNS)}
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
    rows = frame.select(
        pl.lit(one.id.symbol).alias("symbol"),
        pl.lit(one.id.timeframe).alias("timeframe"),
        pl.lit(model).alias("model_version"),
        pl.col("issued_at").cast(utc),
        pl.col("step").cast(pl.Int16),
        pl.col("target_time").cast(utc),
        pl.exclude("issued_at", "step", "target_time"),
        pl.Series("realised_close", realised),
        pl.lit(one.fold, dtype=pl.Int16).alias("fold"),
    )
    return check_backtest_rows(rows)


def write_rows(folder: Path, one: FoldSeries, forecasts: Forecasts, model: str) -> Path:
    """Write one model's rows of one series and fold below `folder`; return the file.

    The path names the model, the market (unless it is spot), the interval, the symbol and the fold.
    """
    path = one.id.folder(folder, f"model={model}") / f"fold-{one.fold}.parquet"
    buffer = io.BytesIO()
    backtest_rows(one, forecasts, model).write_parquet(buffer, compression="zstd", compression_level=1)
    write_bytes(path, buffer.getvalue())
    return path
