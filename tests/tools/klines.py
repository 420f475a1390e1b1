"""Candles to compute features from."""

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl

START = datetime(2024, 3, 1, tzinfo=UTC)


def klines(rows=600, seed=0, hours=1):
    """A random market on the 1h grid (or every `hours`), as contract columns that features need."""
    random = np.random.default_rng(seed)
    close = 100 * np.exp(np.cumsum(random.standard_t(4, rows) * 0.005))
    opened = np.concatenate([[100.0], close[:-1]])
    high = np.maximum(opened, close) * np.exp(random.exponential(0.002, rows))
    low = np.minimum(opened, close) * np.exp(-random.exponential(0.002, rows))
    times = [START + timedelta(hours=hours * i) for i in range(rows)]
    return pl.DataFrame(
        {
            "open_time": pl.Series(times, dtype=pl.Datetime("us", "UTC")),
            "open": opened,
            "high": high,
            "low": low,
            "close": close,
            "volume": random.lognormal(3, 1, rows),
        }
    )
