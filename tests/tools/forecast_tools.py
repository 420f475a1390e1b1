"""Forecast rows, candles and series for the tests of forecasting."""

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl

from schemas.candles import KLINES
from schemas.errors import CpbError
from schemas.identity import SeriesId
from tasks.forecasting import chain
from tasks.forecasting.issue import contract_rows

HOUR = timedelta(hours=1)
START = datetime(2025, 5, 31, 20, tzinfo=UTC)
PEPE, BTC = SeriesId("spot", "PEPEUSDT", "1h"), SeriesId("spot", "BTCUSDT", "1h")
UM_PEPE, SIM_PEPE = SeriesId("um", "PEPEUSDT", "1h"), SeriesId("sim", "PEPEUSDT", "1h")


WEIGHTS = "5" * 64
"""sha256 of the weights that made the forecasts."""

LATER = datetime(2026, 1, 1, tzinfo=UTC)
"""When replays are made."""


def append(home, series, rows):
    """Store one series' rows; returns how many were new."""
    (done,) = chain.append(home, series.market, "forecasts", {series: rows}).values()
    if isinstance(done, CpbError):
        raise done
    return done


def rows_at(
    hours=0, last=8.25e-6, series=PEPE, version=1, horizon=10, made_at=LATER, weights=WEIGHTS, standing=0
):
    """One forecast, issued `hours` after START; a replay unless `made_at` says otherwise."""
    spread = 0.01 * np.sqrt(np.arange(1, horizon + 1))
    close = last * np.exp(np.linspace(-1.6, 1.6, 19)[:, None] * spread)
    candle = np.stack([close[9], close[9] * 1.01, close[9] * 0.99, close[9]], axis=1)
    model = f"{series.registered}/{version}"
    rows = contract_rows(
        series, model, START + hours * HOUR, close, candle, last, weights_sha256=weights, standing=standing
    )
    return rows.with_columns(made_at=pl.lit(made_at, rows.schema["made_at"]))


def write_candles(home, closes, series=PEPE, first=START, tree="klines", name=None):
    """Store candles with these closes as the market store does, in place of those of the same months."""
    step = timedelta(seconds=series.seconds)
    frame = pl.DataFrame({"open_time": [first + step * i for i in range(len(closes))], "close": closes})
    rest = [pl.col("close").alias(n) for n in KLINES if n not in frame.columns]
    frame = frame.with_columns(rest).select([pl.col(n).cast(t) for n, t in KLINES.items()])
    folder = series.folder(home, tree)
    folder.mkdir(parents=True, exist_ok=True)
    months = frame.with_columns(month=pl.col("open_time").dt.strftime("%Y-%m"))
    for (month,), part in months.partition_by("month", as_dict=True).items():
        part.drop("month").write_parquet(folder / f"{name or month}.parquet")


def files_of(home, tree="forecasts"):
    """The month files of a tree."""
    return sorted((home / tree).rglob("????-??.parquet"))


def flip(path, place=0.5):
    """Flip one bit of a file, which keeps its size; `place` is a share of it."""
    content = bytearray(path.read_bytes())
    content[int(len(content) * place)] ^= 1
    path.write_bytes(content)
