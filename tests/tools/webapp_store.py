"""A small store with real shapes: candles, forecasts that came true, one still open, and an MLflow run."""

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl

from schemas.candles import KLINES
from schemas.decision import Decision, ModelRef
from schemas.identity import ModelId, SeriesId
from tasks.forecasting.chain import append
from tasks.forecasting.issue import contract_rows
from tasks.forecasting.record import score_due
from tasks.tracking.champions import Champion
from tasks.tracking.runs import MemberRecord, finish, log_members, log_metrics, start_fleet, start_parent
from tests.tools.live_record import made_forecasts, write_walk
from tests.tools.packaged import weights_sha256
from tests.tools.registering import register_champion

BTC, ETH = SeriesId("spot", "BTCUSDT", "1h"), SeriesId("spot", "ETHUSDT", "1h")
LTC, PEPE = SeriesId("spot", "LTCUSDT", "1h"), SeriesId("spot", "PEPEUSDT", "15m")
UM_BTC, SIM_BTC = SeriesId("um", "BTCUSDT", "1h"), SeriesId("sim", "BTCUSDT", "1h")
START = datetime(2025, 5, 28, tzinfo=UTC)
NORMAL = np.array(
    [
        -1.645,
        -1.282,
        -1.036,
        -0.842,
        -0.674,
        -0.524,
        -0.385,
        -0.253,
        -0.126,
        0,
        0.126,
        0.253,
        0.385,
        0.524,
        0.674,
        0.842,
        1.036,
        1.282,
        1.645,
    ]
)


TEST_SPAN = ["2025-05-01T00:00:00Z", "2025-05-28T00:00:00Z"]
VERDICT = (
    "better than the random walk with EWMA volatility (CRPS ratio 0.981 [0.971, 0.991], p<0.001, n=2000)"
)


def write_candles(home, series, rows=300, price=108_000.0, seed=0, sigma=0.004, start=START):
    """Random candles from `start`, stored as the market store does; returns their closes."""
    rng = np.random.default_rng(seed)
    close = price * np.exp(np.cumsum(sigma * rng.standard_normal(rows)))
    opened = np.r_[price, close[:-1]]
    wick = np.exp(sigma * np.abs(rng.standard_normal((2, rows))))
    times = [start + timedelta(seconds=series.seconds) * i for i in range(rows)]
    high, low = np.maximum(opened, close) * wick[0], np.minimum(opened, close) / wick[1]
    values = {"open_time": times, "open": opened, "high": high, "low": low, "close": close}
    rest = {name: np.ones(rows) for name in KLINES if name not in values}
    frame = pl.DataFrame(values | rest).select([pl.col(n).cast(t) for n, t in KLINES.items()])
    folder = series.folder(home, "klines")
    folder.mkdir(parents=True, exist_ok=True)
    months = frame.with_columns(month=pl.col("open_time").dt.strftime("%Y-%m"))
    for (month,), part in months.partition_by("month", as_dict=True).items():
        part.drop("month").write_parquet(folder / f"{month}.parquet")
    return close


def forecast_at(
    series, last_row, close, sigma=0.004, horizon=10, version=1, start=START, weights=None, standing=0
):
    """A random walk's forecast after the candle `last_row`."""
    spread = sigma * np.sqrt(np.arange(1, horizon + 1))
    last = close[last_row]
    quantiles = last * np.exp(NORMAL[:, None] * spread)
    ones = np.ones(horizon)
    candle = last * np.stack([ones, np.exp(sigma * ones), np.exp(-sigma * ones), ones], axis=1)
    issued = start + timedelta(seconds=series.seconds * (last_row + 1))
    name = f"{series.registered}/{version}"
    made = {"weights_sha256": weights or weights_sha256(name), "standing": standing}
    return contract_rows(series, name, issued, quantiles, candle, last, **made)


def fill(home, series=BTC, price=108_000.0, rows=300, open_end=True, seed=0, start=START, **made):
    """Candles and hourly forecasts of the last 60; with `open_end` the newest ends the candles.

    `made`: weights and standing candles, as for `forecast_at`.
    """
    close = write_candles(home, series, rows, price, seed, start=start)
    newest = rows - 1 if open_end else rows - 8
    origins = range(newest - 60, newest + 1, 4)
    forecasts = pl.concat([forecast_at(series, row, close, start=start, **made) for row in origins])
    append(home, series.market, "forecasts", {series: forecasts})
    score_due(home, [series], start + timedelta(seconds=series.seconds * rows))
    return close


def fill_record(home, series=BTC, days=60, first=START):
    """Live forecasts of version 2 against a reference that is twice too wide, after a few replays of version 1."""
    rows = 24 * days + 24
    close = write_walk(home, series, first, rows)
    parts = [
        made_forecasts(series, first, close, np.arange(2, 40, 4), live=False),
        made_forecasts(series, first, close, np.arange(40, rows - 24, 4), version=lambda _: 2, reference=2.0),
    ]
    append(home, series.market, "forecasts", {series: pl.concat(parts)})
    score_due(home, [series], first + timedelta(hours=rows))


def track(folder, everything, ratios=(("har", 0.981), ("gru", 1.013))):
    """One finished flow with these architectures over series of one market; the first is every champion."""
    market = everything[0].market
    model = folder / "model"
    if not model.exists():
        _save_model(model)
    flow = start_parent(f"flow-{market}", {"market": market})
    for architecture, ratio in ratios:
        fleet = start_fleet(flow.run_id, architecture, f"{architecture}-{market}")
        ids = log_members(fleet.run_id, [_record(architecture, s, ratio, model) for s in everything])
        for timeframe in {s.timeframe for s in everything}:
            log_metrics(
                fleet.run_id,
                {
                    f"pooled_crps_ratio_{timeframe}": ratio,
                    f"pooled_crps_ratio_{timeframe}_low": ratio - 0.01,
                    f"pooled_crps_ratio_{timeframe}_high": ratio + 0.01,
                    f"pooled_p_{timeframe}": 0.001,
                },
            )
        finish(fleet.run_id)
        if architecture == ratios[0][0]:
            for series, run_id in zip(everything, ids, strict=True):
                tags = {"architecture": architecture, "verdict": VERDICT}
                register_champion(series, run_id, reason="lowest ratio", tags=tags)
    finish(flow.run_id)


def _save_model(folder):
    folder.mkdir()
    for name in ("model.safetensors", "config.json"):
        (folder / name).write_bytes(b"{}")


def _record(architecture, series, ratio, folder):
    metrics = {
        "test_crps_ratio": ratio,
        "test_mae_ratio": 1.0,
        "test_directional_accuracy": 0.503,
        "test_coverage_80": 0.797,
        "test_crps_ratio_low": ratio - 0.01,
        "test_crps_ratio_high": ratio + 0.01,
        "test_touch_brier_ratio": ratio - 0.02,
        "test_first_brier_ratio": ratio - 0.01,
    }
    model = ModelId(architecture, "smoke", series, 1)
    return MemberRecord(
        key=model.name,
        model=model,
        device="cpu",
        preset="smoke",
        data_digest="d",
        as_of="newest",
        metrics=metrics,
        folder=folder,
        config={"recipe": "smoke", "bounds": {"test": TEST_SPAN}},
    )


def champion(folder, series=BTC, ratio=0.98):
    """A champion with a verdict, as the registry gives it."""
    tags = {"architecture": "har", "verdict": VERDICT}
    return Champion(series, "1", "run", folder, {"test_crps_ratio": ratio}, tags)


def small_home(folder, *everything):
    """A store of a few series with candles and forecasts, no runs."""
    for i, series in enumerate(everything):
        fill(folder / "data", series, price=100.0 * (i + 1), seed=i)
    return folder


def decision(days, outcome="kept", series=BTC):
    return Decision(
        series=series,
        outcome=outcome,
        rule="better",
        version_number="1",
        candidate=ModelRef(recipe="=har/default/1"),
        reason="no better",
        decided_at=datetime(2025, 6, 1, tzinfo=UTC) + timedelta(days=days),
    )
