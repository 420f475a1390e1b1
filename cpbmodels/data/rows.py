"""Forecasts as tables: one row for each origin and step, in prices. The columns are those of cpb's forecast store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from cpbmodels.data.student_t import QUANTILES

if TYPE_CHECKING:
    import pandas as pd

QUANTILE_COLUMNS = tuple(f"q{round(level * 100):02d}" for level in QUANTILES)
"""`q05 q10 … q95`: the close, at 19 levels."""

MEDIAN_COLUMNS = ("q50_open", "q50_high", "q50_low")
"""With `q50` as its close, the median candle."""


def forecast_rows(
    issued_at: Sequence[datetime] | pl.Series, step_seconds: int, close: np.ndarray, candle: np.ndarray
) -> pl.DataFrame:
    """Return N forecasts over H steps as N x H rows.

    Args:
        issued_at: [N], UTC close of the last candle used.
        step_seconds: length of a candle.
        close: float64 [N, H, 19], the close's quantiles, in prices.
        candle: float64 [N, H, 4], the median candle's open, high, low, close, in prices.

    Returns:
        `issued_at`, `step` (Int64, from 1), `target_time` (close of the candle that is forecast, UTC), `q05 … q95`,
        `q50_open q50_high q50_low`.
    """
    count, horizon = candle.shape[:2]
    issued = pl.Series("issued_at", issued_at, dtype=pl.Datetime("us", "UTC"))
    steps = np.tile(np.arange(1, horizon + 1), count)
    frame = pl.DataFrame({"issued_at": issued.gather(np.repeat(np.arange(count), horizon)), "step": steps})
    return frame.select(
        "issued_at",
        pl.col("step").cast(pl.Int64),
        (pl.col("issued_at") + pl.duration(seconds=pl.col("step") * step_seconds)).alias("target_time"),
        *(pl.Series(name, close[:, :, i].ravel()) for i, name in enumerate(QUANTILE_COLUMNS)),
        *(pl.Series(name, candle[:, :, i].ravel()) for i, name in enumerate(MEDIAN_COLUMNS)),
    )


def to_pandas(frame: pl.DataFrame) -> pd.DataFrame:
    """Return the rows for pandas, times aware (UTC); through numpy, because polars' own way needs pyarrow."""
    import pandas as pd

    return pd.DataFrame(
        {
            name: pd.to_datetime(frame[name].dt.replace_time_zone(None).to_numpy(), utc=True)
            if isinstance(frame.schema[name], pl.Datetime)
            else frame[name].to_numpy()
            for name in frame.columns
        }
    )
