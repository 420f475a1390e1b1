"""The ledger: the realised closes of stored forecasts, in separate files under `HOME/ledger`.

Forecasts are joined with the ledger on reading and never rewritten. A row is scored once, when its candle has closed
and is stored; if the candle is missing (an exchange outage), or the price level has leapt since the forecast (another
unit), the row stays unscored.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl

from cpbmodels.data.prices import level_leaps
from schemas.forecasts import KEY, LEDGER_SCHEMA
from schemas.handover import Failure, Score
from schemas.identity import SeriesId
from tasks.forecasting import stored_forecasts
from tasks.forecasting.chain import ANY_ERROR
from tasks.forecasting.issue import failure, store_batch
from tasks.forecasting.losses import scored_rows
from tasks.forecasting.months import (
    FORECASTS,
    LEDGER,
    count_rows,
    load,
    month_files,
    month_of,
    read_month,
)
from tasks.forecasting.summary import write_summary
from tasks.market.klines import read_klines


def score_due(home: Path, series: Sequence[SeriesId], now: datetime | None = None) -> Score:
    """Write the realised closes of the series' due forecasts, and update the live records of their markets.

    An error in one series becomes its `Failure`; the others are still scored.

    Args:
        now: UTC; default the current time. Candles that close later are not used.
    """
    now = now or datetime.now(UTC)
    due: dict[SeriesId, pl.DataFrame] = {}
    failures: list[Failure] = []
    for s in series:
        try:
            rows = _scores_due(home, s, now)
            if not rows.is_empty():
                due[s] = rows
        except ANY_ERROR as error:
            failures.append(failure(s, "score", error))
    stored, more = store_batch(home, "scores", due)
    failures += more
    for market in dict.fromkeys(s.market for s in series):
        try:
            if stored_forecasts.series_with_forecasts(home, market):
                write_summary(home, market, now)
        except ANY_ERROR as error:  # scores are stored; the next scoring updates the record
            failures.append(Failure.of(None, "score", f"the record of {market} is not updated: {error}"))
    return Score(rows=sum(stored.values()), failures=tuple(failures))


def newest_scored(home: Path, series: SeriesId, limit: int) -> pl.DataFrame:
    """Return the newest `limit` scored rows of one series by target time, newest last.

    Months are read from the newest backwards, only as many as needed.
    """
    found = scored_rows(*(pl.DataFrame(schema=tree.schema) for tree in (FORECASTS, LEDGER)))
    for path in reversed(month_files(series.folder(home, LEDGER.name)) if limit else []):
        rows, scores = (read_month(home, series, tree, path.stem) for tree in (FORECASTS, LEDGER))
        if rows is None or scores is None:
            continue
        found = pl.concat([scored_rows(rows, scores), found]).sort("target_time", "issued_at", "step")
        found = found.tail(limit)
        # Forecasts of earlier months target at most this month's first hours.
        reach = pl.duration(seconds=series.seconds * pl.col("step").max())
        first = rows.select(pl.col("issued_at").min() + reach).item()
        if len(found) == limit and found["target_time"][0] > first:
            break
    return found


def _scores_due(home: Path, series: SeriesId, now: datetime) -> pl.DataFrame:
    """Return the scores of a series' due forecasts; empty if none are due."""
    due = _due(home, series, now)
    if due.is_empty():
        return pl.DataFrame(schema=LEDGER_SCHEMA)
    step = timedelta(seconds=series.seconds)
    first: datetime = due["issued_at"].min() - step  # type: ignore[operator, assignment]
    columns = ["open", "close"]
    klines = read_klines(home, series, since=first, as_of=now, columns=columns, confirmed=False)
    leaps = level_leaps(*(klines[name].to_numpy() for name in columns))
    closes = klines.select(
        target_time=pl.col("open_time").cast(pl.Datetime("us", "UTC")) + step,
        realised_close="close",
        level=pl.Series(leaps.cumsum()),
    )
    known = due.join(closes, on="target_time", how="inner").filter(pl.col("target_time") <= now)
    origins = closes.select(issued_at="target_time", level_before="level")
    known = known.join(origins, on="issued_at", how="left", maintain_order="left")
    known = known.filter(pl.col("level_before").is_null() | (pl.col("level_before") == pl.col("level")))
    return known.with_columns(scored_at=pl.lit(now, pl.Datetime("us", "UTC"))).select(*LEDGER_SCHEMA)


def _due(home: Path, series: SeriesId, now: datetime) -> pl.DataFrame:
    """Return key and target time of unscored rows whose candle has closed by `now`; raises `DamagedError`."""
    found = [
        pl.DataFrame(schema={**{n: LEDGER_SCHEMA[n] for n in KEY}, "target_time": pl.Datetime("us", "UTC")})
    ]
    for path in month_files(series.folder(home, FORECASTS.name)):
        # A month whose rows are all scored is not read again, so that the work does not grow with history.
        scores = series.folder(home, LEDGER.name) / path.name
        if path.stem > month_of(now) or count_rows(path) == count_rows(scores) >= 0:
            continue
        rows = load(home, series, FORECASTS, path)
        done = load(home, series, LEDGER, scores) if scores.exists() else None
        due = rows.filter(pl.col("target_time") <= now).select(*KEY, "target_time")
        found.append(due if done is None else due.join(done, on=list(KEY), how="anti"))
    return pl.concat(found)
