"""The ledger: what came true of stored forecasts, in files of its own under `HOME/ledger`.

Forecasts are joined with it on reading and never rewritten. A row is scored once, when its candle has closed
and is in the store; where the candle is missing (an outage of the exchange) it stays open.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from cpbmodels.rows import QUANTILE_COLUMNS
from schemas.forecasts import KEY, LEDGER_SCHEMA
from schemas.handover import Failure, Score
from schemas.identity import SeriesId
from tasks.forecasting import store
from tasks.forecasting.chain import ANY_ERROR
from tasks.forecasting.index import month_files
from tasks.forecasting.issue import LOST, failure, store_batch
from tasks.forecasting.months import (
    FORECASTS,
    LEDGER,
    count_rows,
    load,
    month_of,
    read_month,
    read_months,
)
from tasks.judging.scores import crps
from tasks.market.store import read_klines

BANDS = {50: ("q25", "q75"), 80: ("q10", "q90"), 90: ("q05", "q95")}
"""Central intervals in percent and the columns that bound them."""


def score_due(
    home: Path, series: Sequence[SeriesId], now: datetime | None = None, provisional: bool = False
) -> Score:
    """Write the realised closes of the series' forecasts that have come due.

    Whatever fails in one series is its `Failure`, the others are scored.

    Args:
        now: UTC; default the clock's time. No candle that closes after it is used.
        provisional: also use the newest candles, which no archive has confirmed yet.
    """
    now = now or datetime.now(UTC)
    due: dict[SeriesId, pl.DataFrame] = {}
    failures: list[Failure] = []
    for one in series:
        try:
            rows = _scores_due(home, one, now, provisional)
            if not rows.is_empty():
                due[one] = rows
        except ANY_ERROR as error:
            failures.append(failure(one, "score", error))
    stored, more = store_batch(home, "scores", due)
    # A damaged file of scores that was set aside is no failure: its rows are scored again at once.
    failures += [one for one in more if one.code != LOST]
    return Score(rows=sum(stored.values()), failures=tuple(failures))


def ledger(
    home: Path, series: SeriesId, since: datetime | None = None, until: datetime | None = None
) -> pl.DataFrame:
    """Return the scored forecast rows of one series with their scores, oldest first.

    Columns: those of the forecast, `realised_close`, `scored_at`, `live` (stored before the candle
    that it is about had closed; false for replays with `--as-of` in the past), `crps` (of the log-return since
    `last_close`, so that coins compare), `covered_50 covered_80 covered_90`, and `direction_hit`: did the
    median lie on the realised side of `last_close`; null where either did not move.
    """
    rows = store.read(home, series, since, until)
    scores = read_months(home, series, LEDGER, since, until)
    joined = rows.join(scores, on=list(KEY), how="inner", maintain_order="left")
    closes = pl.col("realised_close")
    moved = (closes - pl.col("last_close")).sign() * (pl.col("q50") - pl.col("last_close")).sign()
    return joined.with_columns(
        (pl.col("made_at") < pl.col("target_time")).fill_null(False).alias("live"),
        pl.Series("crps", _crps(joined), dtype=pl.Float64),
        *[closes.is_between(pl.col(a), pl.col(b)).alias(f"covered_{n}") for n, (a, b) in BANDS.items()],
        pl.when(moved != 0).then(moved > 0).alias("direction_hit"),
    )


def unscored(home: Path, series: SeriesId, since: datetime) -> set[str]:
    """Return the model versions with a forecast that has no score yet, of a candle that closes after `since`.

    Candles that closed before then will not come any more: an outage of the exchange, say.

    Raises:
        DamagedError: a month of forecasts cannot be read.
    """
    found: set[str] = set()
    for path in month_files(series.folder(home, FORECASTS.name)):
        if _is_scored(home, series, path):
            continue
        rows = load(home, series, FORECASTS, path).filter(pl.col("target_time") > since)
        done = read_month(home, series, LEDGER, path.stem)
        missing = rows if done is None else rows.join(done, on=list(KEY), how="anti")
        found |= set(missing["model_version"].unique())
    return found


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


def _scores_due(home: Path, series: SeriesId, now: datetime, provisional: bool) -> pl.DataFrame:
    """Return the scores of a series' forecasts that have come due, none where there are none."""
    due = _due(home, series, now)
    if due.is_empty():
        return pl.DataFrame(schema=LEDGER_SCHEMA)
    step = timedelta(seconds=series.seconds)
    first: datetime = due["target_time"].min() - step  # type: ignore[operator, assignment]
    klines = read_klines(home, series, since=first, as_of=now, columns=["close"], provisional=provisional)
    closes = klines.select(
        target_time=pl.col("open_time").cast(pl.Datetime("us", "UTC")) + step, realised_close="close"
    )
    known = due.join(closes, on="target_time", how="inner").filter(pl.col("target_time") <= now)
    return known.with_columns(scored_at=pl.lit(now, pl.Datetime("us", "UTC"))).select(*LEDGER_SCHEMA)


def _due(home: Path, series: SeriesId, now: datetime) -> pl.DataFrame:
    """Return key and target time of rows whose candle has closed by `now` and that have no score."""
    found = [
        pl.DataFrame(schema={**{n: LEDGER_SCHEMA[n] for n in KEY}, "target_time": pl.Datetime("us", "UTC")})
    ]
    for path in month_files(series.folder(home, FORECASTS.name)):
        if path.stem > month_of(now) or _is_scored(home, series, path):
            continue
        rows = read_month(home, series, FORECASTS, path.stem)
        if rows is None:
            continue
        done = read_month(home, series, LEDGER, path.stem)
        due = rows.filter(pl.col("target_time") <= now).select(*KEY, "target_time")
        found.append(due if done is None else due.join(done, on=list(KEY), how="anti"))
    return pl.concat(found)


def _is_scored(home: Path, series: SeriesId, path: Path) -> bool:
    """Whether a month is scored to the last row; it is not read again then, else the work would grow for ever."""
    return count_rows(path) == count_rows(series.folder(home, LEDGER.name) / path.name) >= 0


def _crps(rows: pl.DataFrame) -> np.ndarray:
    """Return the CRPS [N] of the log-return since `last_close`."""
    last = rows["last_close"].to_numpy()[:, None]
    quantiles = np.log(rows.select(QUANTILE_COLUMNS).to_numpy() / last)
    return crps(quantiles, np.log(rows["realised_close"].to_numpy() / last[:, 0]))
