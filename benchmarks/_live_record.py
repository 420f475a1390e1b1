"""Candles and hourly forecasts of any length, stored by cpb's own writers: closes are a Gaussian random walk."""

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from statistics import NormalDist

import numpy as np
import polars as pl

from cpbmodels.data.prediction import forecast_rows
from cpbmodels.data.student_t import QUANTILES
from schemas.candles import KLINES
from schemas.forecast_rows import FORECAST_SCHEMA, REFERENCE_COLUMNS
from schemas.identity import SeriesId
from tasks.market.klines import split_months, write_part

SIGMA, STEPS, HOUR = 0.005, 10, timedelta(hours=1)
_NORMAL = np.array([NormalDist().inv_cdf(level) for level in QUANTILES])


def walk(rows: int, seed: int) -> np.ndarray:
    """Closes [rows] whose log moves by `SIGMA` each."""
    return 100 * np.exp(np.cumsum(SIGMA * np.random.default_rng(seed).standard_normal(rows)))


def store_candles(home: Path, series: SeriesId, first: datetime, close: np.ndarray) -> None:
    """Store hourly candles with these closes; `first` opens the first one."""
    opened = pl.datetime_range(first, first + HOUR * (len(close) - 1), "1h", time_zone="UTC", eager=True)
    frame = pl.DataFrame({"open_time": opened, **dict.fromkeys(list(KLINES)[1:], close)})
    for month, part in split_months(frame.select(pl.col(name).cast(kind) for name, kind in KLINES.items())):
        write_part(home, series, month, part)


def hourly_forecasts(
    series: SeriesId,
    first: datetime,
    close: np.ndarray,
    origins: np.ndarray,
    *,
    version: Callable[[datetime], int] = lambda _: 1,
    weights: str = "0" * 64,
) -> pl.DataFrame:
    """Return live forecasts from the closes of the rows `origins` [N], as N x `STEPS` rows of the contract.

    Bands are up to a fifth too wide or too narrow, the reference's a tenth too wide. `version`: by the time of issue.
    `weights`: sha256 of the model's weights.
    """
    issued = [first + HOUR * (int(row) + 1) for row in origins]
    last = close[origins]
    spread = SIGMA * np.sqrt(np.arange(1, STEPS + 1))[:, None] * _NORMAL  # [steps, 19]
    off = np.random.default_rng(int(origins[0])).uniform(0.8, 1.2, (len(origins), STEPS, 1))
    candle = np.broadcast_to(last[:, None, None], (len(origins), STEPS, 4))
    rows = forecast_rows(issued, series.seconds, last[:, None, None] * np.exp(off * spread), candle)
    reference = (last[:, None, None] * np.exp(1.1 * spread)).reshape(len(rows), -1)
    return rows.with_columns(
        symbol=pl.lit(series.symbol),
        timeframe=pl.lit(series.timeframe),
        role=pl.lit("champion"),
        model_version=pl.Series([f"{series.registered}/{version(at)}" for at in rows["issued_at"]]),
        last_close=pl.Series(np.repeat(last, STEPS)),
        weights_sha256=pl.lit(weights),
        standing=pl.lit(0),
        made_at=pl.col("issued_at") + pl.duration(minutes=1),
        **{name: pl.Series(reference[:, i]) for i, name in enumerate(REFERENCE_COLUMNS)},
    ).select(pl.col(name).cast(kind) for name, kind in FORECAST_SCHEMA.items())
