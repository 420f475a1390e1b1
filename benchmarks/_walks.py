"""Random-walk candles: the same work for every contender, no download, no secret in the data."""

import numpy as np

from cpbmodels.series import Series


def walks(members: int, rows: int) -> list[Series]:
    """`members` series of `rows` candles each, seeded by their number; the last 15 % validate."""
    return [walk(rows, seed=k) for k in range(members)]


def walk(rows: int, seed: int) -> Series:
    """One series whose log close is a Gaussian random walk with a volatility of 1 % a candle."""
    draw = np.random.default_rng(seed)
    close = 100 * np.exp(np.cumsum(draw.normal(0, 0.01, rows)))
    opened = np.concatenate([[100.0], close[:-1]])
    high = np.maximum(opened, close) * (1 + np.abs(draw.normal(0, 0.003, rows)))
    low = np.minimum(opened, close) * (1 - np.abs(draw.normal(0, 0.003, rows)))
    return Series.from_ohlc(
        np.stack([opened, high, low, close], axis=1), symbol=f"WALK{seed}", timeframe="1h"
    )
