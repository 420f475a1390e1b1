"""Markets whose truth is known, for the tests of judging and backtesting."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import numpy as np
import polars as pl

from cpbmodels.data.columns import candle_columns
from cpbmodels.data.series import Series
from schemas.handover import SplitBounds
from schemas.identity import SeriesId
from tasks.judging import baselines
from tasks.judging.member import judge_member

H = 10
HOUR_US = 3_600_000_000
START = datetime(2024, 1, 1, tzinfo=UTC)
A = SeriesId("spot", "AUSDT", "1h")
B = SeriesId("spot", "BUSDT", "1h")
TINY = SeriesId("spot", "TINYUSDT", "1h")


def market(rows=3000, seed=0, symbol="AUSDT"):
    """A coin whose σ doubles and halves slowly; spans 60 / 15 / 20 % with an embargo."""
    random = np.random.default_rng(seed)
    sigma = 0.01 * np.exp(1.2 * np.sin(np.arange(rows) / 60))
    close = 100 * np.exp(np.cumsum(random.normal(0.0, sigma)))
    opened = np.r_[100, close[:-1]]
    prices = np.column_stack([opened, np.maximum(opened, close), np.minimum(opened, close), close])
    segments = np.zeros(rows, dtype=np.int64)
    names, features, volatility = candle_columns(prices, segments)
    spans = {"train": (0, 1800), "validation": (1980, 2250), "test": (2430, rows)}
    return Series(
        prices=prices,
        features=features,
        names=names,
        volatility=volatility,
        segments=segments,
        spans=spans,
        symbol=symbol,
        timeframe="1h",
        times=np.arange(rows) * HOUR_US,
    )


def judged(series, spread=1.0, architecture="x"):
    """Judge the reference itself, stretched by `spread`."""
    train, test = (series.origins(s, 1, H) for s in ("train", "test"))
    known = baselines.reference(series, train, test, H)
    forecast = SimpleNamespace(origins=test, quantiles=known * spread)
    return judge_member(series, forecast, known, architecture=architecture)


def busy_hours(rows=6000, seed=0):
    """Klines whose volatility triples between 12 and 18 UTC: the hour of day has information."""
    random = np.random.default_rng(seed)
    hour = np.arange(rows) % 24
    sigma = np.where((hour >= 12) & (hour < 18), 0.012, 0.004)
    path = random.normal(0, 1, (rows, 12)) * (sigma / np.sqrt(12))[:, None]
    inside = np.cumsum(path, axis=1)
    close = np.cumsum(inside[:, -1])
    opened = close - inside[:, -1]
    prices = (
        np.exp(
            np.column_stack(
                [
                    opened,
                    opened + np.maximum(inside.max(axis=1), 0),
                    opened + np.minimum(inside.min(axis=1), 0),
                    close,
                ]
            )
        )
        * 100
    )
    times = [START + timedelta(hours=i) for i in range(rows)]
    return pl.DataFrame(
        {
            "open_time": pl.Series(times, dtype=pl.Datetime("us", "UTC")),
            **{n: prices[:, i] for i, n in enumerate(("open", "high", "low", "close"))},
            "volume": random.lognormal(2, 1, rows),
        }
    )


def bounds_of(rows=6000):
    """Spans that end with a test span of 1,000 hours."""
    at = [START + timedelta(hours=h) for h in (0, rows - 1700, rows - 1500, rows - 1200, rows - 1000, rows)]
    return SplitBounds(timeframe="1h", train=(at[0], at[1]), validation=(at[2], at[3]), test=(at[4], at[5]))
