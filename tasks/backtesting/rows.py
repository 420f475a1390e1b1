"""A backtest's forecasts as parquet files: the contract's columns, the fold and the realised close."""

import io
from pathlib import Path
from urllib.parse import quote

import numpy as np
import polars as pl

from cpbmodels.data.prediction import Prediction, forecast_rows
from schemas.forecast_rows import check_backtest_rows
from tasks.backtesting.folds import FoldSeries
from tasks.storage.files import write_bytes


def backtest_rows(fold: FoldSeries, forecasts: Prediction, model: str) -> pl.DataFrame:
    """Return a row per origin and step of a fold, validated; prices as Float64 (PEPE trades at 1e-8).

    Args:
        fold: the forecast series and fold; the series needs `times`.
        forecasts: a trained model's, of the fold's test span.
        model: written as `model_version`.
    """
    series, origins = fold.series, forecasts.origins
    assert series.times is not None  # every stored series has times
    last = series.prices[origins, 3][:, None, None]
    # Issued when the origin's candle closes, an interval after it opens.
    issued = pl.Series(series.times[origins] + fold.id.seconds * 1_000_000).cast(pl.Datetime("us", "UTC"))
    close = last * np.exp(forecasts.quantiles)
    horizon = close.shape[1]
    rows = forecast_rows(issued, fold.id.seconds, close, last * np.exp(forecasts.candle))
    later = origins[:, None] + np.arange(1, horizon + 1)
    return check_backtest_rows(
        rows.select(
            pl.lit(fold.id.symbol).alias("symbol"),
            pl.lit(fold.id.timeframe).alias("timeframe"),
            pl.lit(model).alias("model_version"),
            "issued_at",
            pl.col("step").cast(pl.Int16),
            pl.exclude("issued_at", "step"),
            pl.Series("last_close", np.repeat(last.ravel(), horizon)),
            pl.Series("realised_close", series.prices[later, 3].ravel()),
            pl.lit(fold.fold, dtype=pl.Int16).alias("fold"),
        )
    )


def write_rows(folder: Path, fold: FoldSeries, forecasts: Prediction, model: str) -> Path:
    """Write a model's rows of a series and fold below `folder`; return the file.

    The path contains the model, the market (unless it is spot), the interval, the symbol and the fold.
    """
    part = quote(model, safe="+")  # as readers of such folders expect it: `model=gru%2Fseed-gru`
    path = fold.id.folder(folder, f"model={part}") / f"fold-{fold.fold}.parquet"
    # The fastest level: rows are large, written by every judge, and read seldom.
    buffer = io.BytesIO()
    backtest_rows(fold, forecasts, model).write_parquet(buffer, compression="zstd", compression_level=1)
    write_bytes(path, buffer.getvalue())
    return path
