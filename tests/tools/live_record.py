"""Made-up forecast rows and candles of any length, with a truth that is known: closes are a Gaussian random walk."""

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from statistics import NormalDist

import numpy as np
import polars as pl

from cpbmodels.data.prediction import MEDIAN_COLUMNS, QUANTILE_COLUMNS
from schemas.candles import KLINES
from schemas.forecast_rows import FORECAST_SCHEMA, REFERENCE_COLUMNS
from schemas.identity import SeriesId
from tasks.forecasting.months import FORECASTS, LEDGER, read_months
from tasks.forecasting.score import scored_rows, with_scale
from tests.tools.packaged import weights_sha256

SIGMA, HORIZON = 0.005, 10
_NORMAL = np.array([NormalDist().inv_cdf(level / 20) for level in range(1, 20)])


def read(
    home: Path, series: SeriesId, since: datetime | None = None, until: datetime | None = None
) -> pl.DataFrame:
    """Return the stored forecast rows of one series by `issued_at`, model and step; the bounds are inclusive."""
    return read_months(home, series, FORECASTS, since, until).sort("issued_at", "model_version", "step")


def ledger(home: Path, series: SeriesId) -> pl.DataFrame:
    """Return the scored forecast rows of one series (`score.scored_rows` of rows `with_scale`), oldest first."""
    return scored_rows(with_scale(read(home, series)), read_months(home, series, LEDGER))


def write_walk(home: Path, series: SeriesId, first: datetime, rows: int, seed: int = 0) -> np.ndarray:
    """Store candles whose log close moves by `SIGMA` each; return the closes [rows]."""
    close = 100 * np.exp(np.cumsum(SIGMA * np.random.default_rng(seed).standard_normal(rows)))
    opened = pl.datetime_range(
        first,
        first + timedelta(seconds=series.seconds * (rows - 1)),
        f"{series.seconds}s",
        time_unit="us",
        time_zone="UTC",
        eager=True,
    )
    frame = pl.DataFrame({"open_time": opened, "close": close})
    rest = [pl.col("close").alias(name) for name in KLINES if name not in frame.columns]
    frame = frame.with_columns(rest).select([pl.col(n).cast(t) for n, t in KLINES.items()])
    folder = series.folder(home, "klines")
    folder.mkdir(parents=True, exist_ok=True)
    months = frame.with_columns(month=pl.col("open_time").dt.strftime("%Y-%m"))
    for (month,), part in months.partition_by("month", as_dict=True).items():
        part.drop("month").write_parquet(folder / f"{month}.parquet")
    return close


def made_forecasts(
    series: SeriesId,
    first: datetime,
    close: np.ndarray,
    origins: np.ndarray,
    *,
    width: float = 1.0,
    reference: float = 1.0,
    role: str = "champion",
    version: Callable[[datetime], int] = lambda _: 1,
    live: bool = True,
) -> pl.DataFrame:
    """Return forecasts from the closes of the rows `origins` [N], steps 1 … `HORIZON`.

    Args:
        first: open time of the first candle.
        width, reference: how many times too wide the model's bands and the reference's are; 1 is the truth.
        version: number of the model's version by the day of issue.
        live: made a minute after the candle closed, else a year later.
    """
    step = timedelta(seconds=series.seconds)
    steps = np.tile(np.arange(1, HORIZON + 1), len(origins))
    last = np.repeat(close[origins], HORIZON)
    spread = SIGMA * np.sqrt(steps)[:, None] * _NORMAL
    issued = [first + step * (int(row) + 1) for row in origins]
    names = [f"{series.registered}/{version(moment)}" for moment in issued]
    frame = pl.DataFrame(
        {
            "symbol": series.symbol,
            "timeframe": series.timeframe,
            "model_version": np.repeat(np.array(names, dtype=object), HORIZON),
            "issued_at": pl.Series(issued, dtype=FORECAST_SCHEMA["issued_at"]).gather(
                np.repeat(np.arange(len(issued)), HORIZON)
            ),
            "step": steps,
            **_columns(QUANTILE_COLUMNS, last[:, None] * np.exp(width * spread)),
            **dict.fromkeys(MEDIAN_COLUMNS, last),
            "last_close": last,
            "role": role,
            **_columns(REFERENCE_COLUMNS, last[:, None] * np.exp(reference * spread)),
            "weights_sha256": np.repeat(np.array([*map(weights_sha256, names)], dtype=object), HORIZON),
            "standing": 0,
        }
    )
    delay = timedelta(minutes=1) if live else timedelta(days=365)
    frame = frame.with_columns(
        target_time=pl.col("issued_at") + pl.col("step") * pl.lit(step), made_at=pl.col("issued_at") + delay
    )
    return frame.select(pl.col(name).cast(kind) for name, kind in FORECAST_SCHEMA.items())


def _columns(names: tuple[str, ...], values: np.ndarray) -> dict[str, np.ndarray]:
    return {name: values[:, i] for i, name in enumerate(names)}
