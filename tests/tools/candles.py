"""Candles for the model tests: a random walk with fat tails and a daily rhythm of volatility."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import torch

from cpbmodels import Series
from cpbmodels.arch import every
from cpbmodels.arch.har import HAR_COLUMNS

LEARNT = [name for name, kind in every().items() if not kind.spec.closed_form and name != "average"]
"""Architectures that are trained by gradient steps; an average's members are among them."""

ON_ROLLING_COLUMNS = ("har", "robust-har", "line", "walk", "average")
"""Architectures that read the last candle alone, and more of it than its prices."""


DECODERS = ("transformer", "gru", "lstm", "lstm-manual")
"""Architectures that read, step by step, the candle before."""


TINY = {
    "preset": "smoke",
    "device": "cpu",
    "dtype": "float64",
    "dropout": 0.2,
    "n_layers": 2,
    "hidden_dim": 8,
    "ff_dim": 8,
}
"""Members of a few weights, trained so that they can be compared to the last digits."""


def short(architecture):
    """Options that shorten windows, and make decoders toss a coin for each candle they read."""
    taught = {"teacher_forcing": 0.5} if architecture in DECODERS else {}
    return taught if architecture == "har" else {"context": 8, "horizon": 4} | taught


def assert_same_training(ours, theirs, rtol=1e-9, atol=1e-11):
    """Equal epochs and rates; losses and weights differ by the order of sums in float64 alone."""
    assert len(ours.history) == len(theirs.history)
    for epoch, other in zip(ours.history, theirs.history, strict=True):
        np.testing.assert_allclose(list(epoch.values()), list(other.values()), rtol=1e-12)
    torch.testing.assert_close(ours.rows, theirs.rows, rtol=rtol, atol=atol)


def walk(rows=700, seed=0, symbol="AAAUSDT", timeframe="1h", **options):
    draw = np.random.default_rng(seed)
    spread = 0.01 * np.exp(0.5 * np.sin(np.arange(rows) * 2 * np.pi / 24))
    close = 100 * np.exp(np.cumsum(draw.standard_t(5, rows) * spread))
    opened = np.concatenate([[100.0], close[:-1]])
    up, down = np.exp(np.abs(draw.normal(0, spread / 2, (2, rows))))
    prices = np.column_stack(
        [opened, np.maximum(opened, close) * up, np.minimum(opened, close) / down, close]
    )
    return Series.from_ohlc(prices, symbol=symbol, timeframe=timeframe, **options)


START = datetime(2024, 3, 1, tzinfo=UTC)


def table(rows=400, seed=0, minutes=60):
    """A walk as a polars table: open times, prices and volumes."""
    step = timedelta(minutes=minutes)
    times = pl.datetime_range(START, START + step * (rows - 1), step, time_unit="us", eager=True)
    prices = dict(zip(("open", "high", "low", "close"), walk(rows, seed).prices.T, strict=True))
    volume = np.random.default_rng(seed).lognormal(3, 1, rows)
    return pl.DataFrame({"open_time": times, **prices, "volume": volume})


def with_har_columns(series):
    """The columns `har` reads: noise where the test does not care."""
    draw, rows = np.random.default_rng(1), len(series)
    names = [name for name in HAR_COLUMNS if name not in series.names]
    extra = [draw.normal(size=rows) for _ in names]
    ranges = np.log(series.prices[:, 1] / series.prices[:, 2])
    columns = np.column_stack([series.features, *extra, ranges, np.arange(rows) % 168])
    return replace(series, features=columns, names=(*series.names, *names, "log_range", "hour_of_week_ny"))


def series_for(architecture, rows=700, seed=0, **options):
    plain = walk(rows, seed, **options)
    return with_har_columns(plain) if architecture in ON_ROLLING_COLUMNS else plain
