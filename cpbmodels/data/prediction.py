"""Forecasts of a model as arrays, relative to the close at their origins, and as rows of prices. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from cpbmodels.data.extremes import Extremes
from cpbmodels.data.student_t import QUANTILES

if TYPE_CHECKING:
    import pandas as pd

QUANTILE_COLUMNS = tuple(f"q{round(level * 100):02d}" for level in QUANTILES)
"""`q05 q10 … q95`: the close, at 19 levels."""

MEDIAN_COLUMNS = ("q50_open", "q50_high", "q50_low")
"""With `q50` as its close, the median candle."""


@dataclass(frozen=True)
class Prediction:
    """Forecasts from N origins, relative to the close at the origin.

    origins: int64 [N]. quantiles: float64 [N, H, 19], cumulative log-return of the close at 0.05 .. 0.95.
    candle: float64 [N, H, 4], log-ratios of the median open, high, low, close to the last close; always a valid
    candle; empty for a baseline. A classifier has empty quantiles and candle (H = 0) and probabilities [N, 3]: up,
    flat, down. extremes: the model's table, if it has one.
    """

    origins: np.ndarray
    quantiles: np.ndarray
    candle: np.ndarray = field(default_factory=lambda: np.empty((0, 0, 4)))
    probabilities: np.ndarray | None = None
    extremes: Extremes | None = field(default=None, kw_only=True)

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that there are by name, as stored: in float32, half the size and precise enough."""
        arrays = {name: getattr(self, name) for name in ("quantiles", "candle", "probabilities")}
        stored = {name: values.astype(np.float32) for name, values in arrays.items() if values is not None}
        return {"origins": self.origins, **stored, **(self.extremes.tensors() if self.extremes else {})}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Prediction:
        """The forecasts of which these are the `arrays`, in float64 again."""
        names = [name for name in ("quantiles", "candle", "probabilities") if name in arrays]
        values = {name: arrays[name].astype(np.float64) for name in names}
        return cls(arrays["origins"], **values, extremes=Extremes.of_tensors(arrays))


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
