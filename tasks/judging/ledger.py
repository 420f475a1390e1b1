"""The ledger: what came true of stored forecasts, in files of its own under `HOME/ledger`.

Forecasts are joined with it on reading and never rewritten. A row is scored once, when its candle has closed
and is in the store; where the candle is missing (an outage of the exchange) it stays open.
"""

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from schemas.errors import MemberError
from schemas.forecasts import KEY, LEDGER_SCHEMA, MADE_KEY, MADE_SCHEMA, QUANTILE_COLUMNS
from schemas.universe import INTERVAL_SECONDS
from tasks.judging import forecast_store

_LEVELS = np.arange(1, 20) / 20
BANDS = {50: ("q25", "q75"), 80: ("q10", "q90"), 90: ("q05", "q95")}
"""Central intervals in percent and the columns that bound them."""

log = logging.getLogger(__name__)

ReadKlines = Callable[..., pl.DataFrame]


def score_due(
    home: Path,
    read_klines: ReadKlines,
    now: datetime | None = None,
    symbols: list[str] | None = None,
    timeframes: list[str] | None = None,
) -> int:
    """Write the realised closes of all forecasts that have come due, and return how many rows were scored.

    Args:
        read_klines: `(symbol, timeframe, since=…, as_of=…)` -> frame with `open_time` and `close`.
        now: UTC; default the clock's time. No candle that closes after it is used.
    """
    now = now or datetime.now(UTC)
    wanted = [
        (symbol, timeframe)
        for symbol, timeframe in forecast_store.stored_series(home)
        if (not symbols or symbol in symbols) and (not timeframes or timeframe in timeframes)
    ]
    return sum(_score_series(home, symbol, timeframe, read_klines, now) for symbol, timeframe in wanted)


def ledger(
    home: Path, symbol: str, timeframe: str, since: datetime | None = None, until: datetime | None = None
) -> pl.DataFrame:
    """Return the scored forecast rows of one series with their scores, oldest first.

    Columns: those of the forecast, `realised_close`, `scored_at`, `made_at`, `live` (written before the candle
    that it is about had closed; false for replays with `--as-of` in the past), `crps` (of the log-return since
    `last_close`, so that coins compare), `covered_50 covered_80 covered_90`, and `direction_hit`: did the
    median lie on the realised side of `last_close`; null where either did not move.
    """
    rows = forecast_store.read(home, symbol, timeframe, since, until)
    scores = _scores(home, symbol, timeframe, since, until)
    joined = rows.join(scores, on=list(KEY), how="inner", maintain_order="left")
    made = forecast_store.read_months(
        forecast_store.series_folder(home, symbol, timeframe, "issued"), MADE_SCHEMA, since, until
    )
    joined = joined.join(made, on=list(MADE_KEY), how="left", maintain_order="left")
    closes = pl.col("realised_close")
    moved = (closes - pl.col("last_close")).sign() * (pl.col("q50") - pl.col("last_close")).sign()
    return joined.with_columns(
        (pl.col("made_at") < pl.col("target_time")).fill_null(False).alias("live"),
        pl.Series("crps", _crps(joined), dtype=pl.Float64),
        *[closes.is_between(pl.col(a), pl.col(b)).alias(f"covered_{n}") for n, (a, b) in BANDS.items()],
        pl.when(moved != 0).then(moved > 0).alias("direction_hit"),
    )


def summary(rows: pl.DataFrame) -> dict[str, Any]:
    """Return the hit rates of ledger rows: count, mean CRPS, coverage per band, direction; None if empty."""
    rates = {f"coverage_{n}": rows[f"covered_{n}"].mean() for n in BANDS}
    return {
        "scored": len(rows),
        "forecasts": rows.select("issued_at", "model_version").n_unique() if len(rows) else 0,
        "crps": rows["crps"].mean(),
        **rates,
        "directional_accuracy": rows["direction_hit"].mean(),
    }


def _score_series(home: Path, symbol: str, timeframe: str, read_klines: ReadKlines, now: datetime) -> int:
    due = _due(home, symbol, timeframe, now)
    if due.is_empty():
        return 0
    step = timedelta(seconds=INTERVAL_SECONDS[timeframe])
    first = due["target_time"].min() - step  # type: ignore[operator]
    try:
        klines = read_klines(symbol, timeframe, since=first, as_of=now)
    except MemberError as error:  # its candles are gone; the other series are still scored
        log.warning("%s %s stays unscored: %s", symbol, timeframe, error)
        return 0
    closes = klines.select(
        target_time=pl.col("open_time").cast(pl.Datetime("us", "UTC")) + step, realised_close="close"
    )
    known = due.join(closes, on="target_time", how="inner").filter(pl.col("target_time") <= now)
    rows = known.with_columns(scored_at=pl.lit(now, pl.Datetime("us", "UTC"))).select(*LEDGER_SCHEMA)
    folder = forecast_store.series_folder(home, symbol, timeframe, "ledger")
    months = rows.with_columns(month=pl.col("issued_at").dt.strftime("%Y-%m"))
    parts = months.partition_by("month", as_dict=True)
    return sum(
        forecast_store.add_rows(folder, str(month), part.drop("month")) for (month,), part in parts.items()
    )


def _due(home: Path, symbol: str, timeframe: str, now: datetime) -> pl.DataFrame:
    """Return key and target time of rows whose candle has closed and that have no score."""
    rows = forecast_store.read(home, symbol, timeframe, until=now).filter(pl.col("target_time") <= now)
    done = _scores(home, symbol, timeframe)
    return rows.select(*KEY, "target_time").join(done, on=list(KEY), how="anti")


def _scores(
    home: Path, symbol: str, timeframe: str, since: datetime | None = None, until: datetime | None = None
) -> pl.DataFrame:
    folder = forecast_store.series_folder(home, symbol, timeframe, "ledger")
    return forecast_store.read_months(folder, LEDGER_SCHEMA, since, until)


def _crps(rows: pl.DataFrame) -> np.ndarray:
    """Return [N]: twice the mean pinball loss over the 19 levels, of the log-return since `last_close`."""
    last = rows["last_close"].to_numpy()[:, None]
    quantiles = np.log(rows.select(QUANTILE_COLUMNS).to_numpy() / last)
    truth = np.log(rows["realised_close"].to_numpy()[:, None] / last)
    error = truth - quantiles
    return 2 * np.maximum(_LEVELS * error, (_LEVELS - 1) * error).mean(axis=1)
