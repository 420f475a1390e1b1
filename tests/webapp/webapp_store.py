"""A small store with real shapes: candles, forecasts that came true, one still open, and an MLflow run."""

from datetime import UTC, datetime, timedelta
from functools import partial

import numpy as np
import polars as pl

from schemas.klines import KLINES
from schemas.universe import INTERVAL_SECONDS
from tasks.judging.forecast_store import append, forecast_rows
from tasks.judging.ledger import score_due
from tasks.market.store import read_klines
from tasks.tracking import (
    Champion,
    MemberRecord,
    finish,
    log_members,
    log_metrics,
    register_champion,
    start_fleet,
    start_parent,
)

START = datetime(2025, 5, 28, tzinfo=UTC)
NORMAL = np.array(
    [-1.645, -1.282, -1.036, -0.842, -0.674, -0.524, -0.385, -0.253, -0.126, 0,
     0.126, 0.253, 0.385, 0.524, 0.674, 0.842, 1.036, 1.282, 1.645]
)  # fmt: skip


VERDICT = (
    "better than the random walk with EWMA volatility (CRPS ratio 0.981 [0.971, 0.991], p<0.001, n=2000)"
)


def write_candles(home, symbol, timeframe, rows=300, price=108_000.0, seed=0, sigma=0.004):
    """Random candles from START, stored as the market store does; returns their closes."""
    rng = np.random.default_rng(seed)
    close = price * np.exp(np.cumsum(sigma * rng.standard_normal(rows)))
    opened = np.r_[price, close[:-1]]
    wick = np.exp(sigma * np.abs(rng.standard_normal((2, rows))))
    times = [START + timedelta(seconds=INTERVAL_SECONDS[timeframe]) * i for i in range(rows)]
    high, low = np.maximum(opened, close) * wick[0], np.minimum(opened, close) / wick[1]
    values = {"open_time": times, "open": opened, "high": high, "low": low, "close": close}
    rest = {name: np.ones(rows) for name in KLINES if name not in values}
    frame = pl.DataFrame(values | rest).select([pl.col(n).cast(t) for n, t in KLINES.items()])
    folder = home / "klines" / f"interval={timeframe}" / f"symbol={symbol}"
    folder.mkdir(parents=True, exist_ok=True)
    months = frame.with_columns(month=pl.col("open_time").dt.strftime("%Y-%m"))
    for (month,), part in months.partition_by("month", as_dict=True).items():
        part.drop("month").write_parquet(folder / f"{month}.parquet")
    return close


def forecast_at(symbol, timeframe, last_row, close, sigma=0.004, horizon=10, version=1):
    """A random walk's forecast after the candle `last_row`."""
    step = INTERVAL_SECONDS[timeframe]
    spread = sigma * np.sqrt(np.arange(1, horizon + 1))
    last = close[last_row]
    quantiles = last * np.exp(NORMAL[:, None] * spread)
    ones = np.ones(horizon)
    candle = last * np.stack([ones, np.exp(sigma * ones), np.exp(-sigma * ones), ones], axis=1)
    issued = START + timedelta(seconds=step * (last_row + 1))
    model = f"cpb-{symbol}-{timeframe}/{version}"
    return forecast_rows(symbol, timeframe, model, issued, step, quantiles, candle, last)


def fill(home, symbol="BTCUSDT", timeframe="1h", price=108_000.0, rows=300, open_end=True, seed=0):
    """Candles and hourly forecasts of the last 60; with `open_end` the newest ends the candles."""
    close = write_candles(home, symbol, timeframe, rows, price, seed)
    newest = rows - 1 if open_end else rows - 8
    for last_row in range(newest - 60, newest + 1, 4):
        append(home, forecast_at(symbol, timeframe, last_row, close))
    end = START + timedelta(seconds=INTERVAL_SECONDS[timeframe] * rows)
    score_due(home, partial(read_klines, home), end, [symbol], [timeframe])
    return close


def track(folder, pairs):
    """One finished flow with two architectures over the pairs (symbol, timeframe); har is every champion."""
    model = folder / "model"
    model.mkdir()
    for name in ("model.safetensors", "config.json"):
        (model / name).write_bytes(b"{}")
    flow = start_parent("flow", {})
    for architecture, ratio in (("har", 0.981), ("gru", 1.013)):
        fleet = start_fleet(flow.run_id, architecture, architecture)
        ids = log_members(fleet.run_id, [_record(architecture, *p, ratio, model) for p in pairs])
        for timeframe in {t for _, t in pairs}:
            log_metrics(fleet.run_id, {f"pooled_crps_ratio_{timeframe}": ratio,
                                       f"pooled_crps_ratio_{timeframe}_low": ratio - 0.01,
                                       f"pooled_crps_ratio_{timeframe}_high": ratio + 0.01,
                                       f"pooled_p_{timeframe}": 0.001})  # fmt: skip
        finish(fleet.run_id)
        if architecture == "har":
            for (symbol, timeframe), run_id in zip(pairs, ids, strict=True):
                tags = {"architecture": architecture, "verdict": VERDICT}
                register_champion(symbol, timeframe, run_id, reason="lowest ratio", tags=tags)
    finish(flow.run_id)


def _record(architecture, symbol, timeframe, ratio, folder):
    metrics = {"test_crps_ratio": ratio, "test_mae_ratio": 1.0, "test_directional_accuracy": 0.503,
               "test_coverage_80": 0.797,
               "test_crps_ratio_low": ratio - 0.01, "test_crps_ratio_high": ratio + 0.01}  # fmt: skip
    return MemberRecord(
        key=f"{architecture}/{symbol}/{timeframe}", architecture=architecture, symbol=symbol, timeframe=timeframe,
        device="cpu", preset="smoke", data_digest="d", as_of="newest", metrics=metrics, folder=folder,
    )  # fmt: skip


def champion(folder, symbol="BTCUSDT", ratio=0.98):
    """A champion with a verdict, as the registry gives it."""
    tags = {"architecture": "har", "verdict": VERDICT}
    return Champion(symbol, "1h", "1", "run", folder, {"test_crps_ratio": ratio}, tags)
