"""Scores of stored forecasts: the realised closes of due rows, and the losses of scored rows.

The ledger (`HOME/ledger`) holds realised closes in separate files: forecasts are joined with it on reading and never
rewritten. A row is scored once, when its candle has closed and is stored; if the candle is missing (an exchange
outage), or the price level has leapt since the forecast (another unit), the row stays unscored. A month in which only
such rows are left is remembered as settled, in `settled.json`, and opened again when its candles change.

Losses are those of the model and of the reference: CRPS, tails, coverage, in log-return.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl

from cpbmodels.data.columns import level_leaps
from cpbmodels.data.prediction import QUANTILE_COLUMNS
from schemas.forecast_rows import KEY, LEDGER_SCHEMA, REFERENCE_COLUMNS
from schemas.identity import SeriesId
from schemas.ledger import BANDS, Settled, SettledMonth
from tasks.forecasting.months import (
    FORECASTS,
    IS_LIVE,
    LEDGER,
    count_rows,
    load,
    month_files,
    read_month,
    read_months,
)
from tasks.judging.scores import BAND_LEVELS, TAILS, pinball
from tasks.market.klines import candles_digest, read_klines
from tasks.storage.records import find_record, write_record

ORIGIN = ("model_version", "role", "issued_at")
"""Columns that identify one forecast of a series."""

_DUE = {
    "month": pl.String,
    **{name: FORECASTS.schema[name] for name in (*KEY, "target_time")},
}
_STEP_1 = tuple(f"{whose}covered_{band}" for whose in ("", "ref_") for band in BANDS)


def scores_due(home: Path, series: SeriesId, now: datetime) -> pl.DataFrame:
    """Return the ledger rows of a series' unscored forecasts whose candle has closed by `now`; empty if none are due.

    Months whose rows cannot be scored are recorded as settled.

    Raises:
        DamagedError: a month of forecasts or scores.
    """
    settled = _read_settled(home, series)
    months = _open_months(home, series, now, settled)
    due = pl.concat([month.due for month in months] or [pl.DataFrame(schema=_DUE)])
    if due.is_empty():
        return pl.DataFrame(schema=LEDGER_SCHEMA)
    step = timedelta(seconds=series.seconds)
    # A candle earlier: the origin's own close is that of the candle before, which a leap is measured from.
    first: datetime = due["issued_at"].min() - step  # type: ignore[operator, assignment]
    # Before the candles are read: a candle that arrives meanwhile opens the month again.
    digests = {month.name: candles_digest(home, series, month.first - step, month.last) for month in months}
    columns = ["open", "close"]
    klines = read_klines(home, series, since=first, as_of=now, columns=columns, confirmed=False)
    leaps = level_leaps(*(klines[name].to_numpy() for name in columns))
    closes = klines.select(
        target_time=pl.col("open_time").cast(pl.Datetime("us", "UTC")) + step,
        realised_close="close",
        level=pl.Series(leaps.cumsum()),
    )
    closed = due.join(closes, on="target_time", how="inner").filter(pl.col("target_time") <= now)
    origins = closes.select(issued_at="target_time", level_before="level")
    closed = closed.join(origins, on="issued_at", how="left", maintain_order="left")
    # Between origin and target the price leapt, as by a redenomination: such a row is never scored, since
    # no forecast is of that.
    closed = closed.filter(pl.col("level_before").is_null() | (pl.col("level_before") == pl.col("level")))
    moving = set(closed["month"])
    new = {
        month.name: SettledMonth(
            forecasts=month.forecasts,
            scores=month.scores,
            first=month.first,
            last=month.last,
            candles=digests[month.name],
        )
        for month in months
        if month.last <= now and month.name not in moving
    }
    _write_settled(home, series, settled, new, opened={month.name for month in months})
    return closed.with_columns(scored_at=pl.lit(now, pl.Datetime("us", "UTC"))).select(*LEDGER_SCHEMA)


@dataclass(frozen=True)
class _Month:
    """A month with unscored rows: its rows `due`, the number of rows in its files, its first origin and last target."""

    name: str
    due: pl.DataFrame
    forecasts: int
    scores: int
    first: datetime
    last: datetime


def _open_months(
    home: Path, series: SeriesId, now: datetime, settled: Mapping[str, SettledMonth]
) -> list[_Month]:
    """Return the months that have unscored rows whose candle has closed by `now`, and are not settled."""
    months = []
    for path in month_files(series.folder(home, FORECASTS.name)):
        # A month whose rows are all scored is not read again, so that the work does not grow with history.
        scores = series.folder(home, LEDGER.name) / path.name
        counts = count_rows(path), count_rows(scores)
        # Footers alone: a month of equal counts has a score for every row.
        if path.stem > f"{now:%Y-%m}" or counts[0] == counts[1] >= 0:
            continue
        if (known := settled.get(path.stem)) and _is_settled(home, series, known, counts):
            continue
        rows = load(home, series, FORECASTS, path)
        due = rows.filter(pl.col("target_time") <= now)
        if scores.exists():
            # By key, not by number: rows of several origins come due in any order.
            due = due.join(load(home, series, LEDGER, scores), on=list(KEY), how="anti")
        if due.is_empty():
            continue
        due = due.with_columns(month=pl.lit(path.stem)).select(*_DUE)
        first, last = rows["issued_at"].sort()[0], rows["target_time"].sort()[-1]
        months.append(_Month(path.stem, due, *counts, first, last))
    return months


def settled_path(home: Path, series: SeriesId) -> Path:
    """Return the path of a series' record of settled months."""
    return series.folder(home, LEDGER.name) / "settled.json"


def _is_settled(home: Path, series: SeriesId, month: SettledMonth, counts: tuple[int, int]) -> bool:
    """Whether neither rows nor candles of a settled month have changed since."""
    step = timedelta(seconds=series.seconds)
    return (month.forecasts, month.scores) == counts and month.candles == candles_digest(
        home, series, month.first - step, month.last
    )


def _read_settled(home: Path, series: SeriesId) -> Mapping[str, SettledMonth]:
    record = find_record(settled_path(home, series), Settled)
    return record.months if record else {}


def _write_settled(
    home: Path,
    series: SeriesId,
    before: Mapping[str, SettledMonth],
    new: Mapping[str, SettledMonth],
    opened: Collection[str],
) -> None:
    # A month that was opened again is settled anew, or not at all any more.
    after = {name: month for name, month in before.items() if name not in opened} | dict(new)
    if after != before:
        write_record(settled_path(home, series), Settled(months=after))


def scored_rows(rows: pl.DataFrame, scores: pl.DataFrame) -> pl.DataFrame:
    """Return the forecast rows that have a score, in their order, with the score's columns and losses.

    Added columns: `realised_close`, `scored_at`; `live` (made before the target candle closed; false for replays);
    `crps`, `tail` (mean pinball loss at 5 and 95 %), both of the log-return since `last_close`, comparable across
    coins; `covered_50 covered_80 covered_90`; the same of the reference as `ref_…` (null for rows without a
    reference); and `direction_hit`: whether the median is on the realised side of `last_close`; null if one equals it.

    Args:
        rows: forecast rows of one series.
        scores: rows of the ledger.
    """
    joined = rows.join(scores, on=list(KEY), how="inner", maintain_order="left")
    closes = pl.col("realised_close")
    # 1 for the same side, -1 for the other, 0 where close or median did not move: that is no hit and no
    # miss.
    moved = (closes - pl.col("last_close")).sign() * (pl.col("q50") - pl.col("last_close")).sign()
    model, reference = (_losses(joined, columns) for columns in (QUANTILE_COLUMNS, REFERENCE_COLUMNS))
    return joined.with_columns(
        IS_LIVE.alias("live"),
        pl.when(moved != 0).then(moved > 0).alias("direction_hit"),
        **model,
        **{f"ref_{name}": values for name, values in reference.items()},
    )


def with_scale(rows: pl.DataFrame) -> pl.DataFrame:
    """Return complete forecasts with `horizon`, their steps, and `ref_width`, in which losses are added up.

    `ref_width` is the reference's log(q90 / q10), mean over the steps of a forecast: a scale of the loss across coins
    and times that is known at the origin; null without a reference.
    """
    width = (pl.col("ref_q90") / pl.col("ref_q10")).log().mean().over(ORIGIN)
    return rows.with_columns(ref_width=width, horizon=pl.col("step").max().over(ORIGIN))


@cache
def nothing_scored() -> pl.DataFrame:
    """Return the columns of `scored_rows` without rows."""
    return scored_rows(*(pl.DataFrame(schema=tree.schema) for tree in (FORECASTS, LEDGER)))


def _losses(rows: pl.DataFrame, columns: tuple[str, ...]) -> dict[str, pl.Series]:
    """Return the columns of `scored_rows` for one forecaster; null if it has no quantiles."""
    prices, closes = rows[list(columns)].to_numpy(), rows["realised_close"].to_numpy()
    last = rows["last_close"].to_numpy()
    # In log-returns, so that a loss of a coin at 1e-5 and one at 1e5 are of one scale.
    loss = pinball(np.log(prices / last[:, None]), np.log(closes / last))
    losses = {"crps": 2 * loss.mean(axis=-1), "tail": loss[:, list(TAILS)].mean(axis=-1)}
    inside = {
        f"covered_{band}": (closes >= prices[:, low]) & (closes <= prices[:, high])
        for band, (low, high) in BAND_LEVELS.items()
    }
    # A forecast without a reference: NaN would count as a miss.
    unknown = np.flatnonzero(np.isnan(prices[:, 0]))
    return {
        name: pl.Series(name, values).scatter(unknown, None) for name, values in (losses | inside).items()
    }


def newest_scored(home: Path, series: SeriesId, limit: int) -> pl.DataFrame:
    """Return the newest `limit` scored rows of one series by target time, newest last.

    Months are read from the newest backwards, only as many as needed.
    """
    newest = nothing_scored()
    for path in reversed(month_files(series.folder(home, LEDGER.name)) if limit else []):
        forecasts = series.folder(home, FORECASTS.name) / path.name
        rows, scores = read_month(home, series, FORECASTS, forecasts), read_month(home, series, LEDGER, path)
        if rows is None or scores is None or rows.is_empty() or scores.is_empty():
            continue
        # Forecasts of earlier months target at most this month's first hours.
        reach = timedelta(seconds=series.seconds) * int(rows["step"].to_numpy().max())
        first, oldest = rows["issued_at"].sort()[0] + reach, scores["issued_at"].sort().tail(limit)[0] - reach
        part = scored_rows(rows.filter(pl.col("issued_at") >= oldest), scores)
        newest = pl.concat([part, newest]).sort("target_time", "issued_at", "step").tail(limit)
        if len(newest) == limit and newest["target_time"][0] > first:
            break
    return newest


def evidence_rows(
    home: Path, series: SeriesId, since: datetime | None = None, until: datetime | None = None
) -> pl.DataFrame:
    """Return one row per live forecast of a series with a reference and a score for every step, by origin and version.

    If a champion was replaced between two runs at the same origin, both versions have a row. Months outside the bounds
    are not read.

    Args:
        since, until: bounds of `issued_at`, UTC, both inclusive.

    Returns:
        `issued_at`; `model_version`; `weights_sha256`; `crps`, `ref_crps`: means over all steps of the model's and the
        reference's CRPS (log-return); `ref_width`, as in `with_scale`; `covered_N_step_1`, `ref_covered_N_step_1`:
        whether the first close was inside the central band of N % of the model, of the reference.
    """
    rows = read_months(home, series, FORECASTS, since, until).filter(pl.col("ref_q50").is_not_null())
    steps = rows.group_by(ORIGIN).agg(steps=pl.len())
    scored = scored_rows(with_scale(rows), read_months(home, series, LEDGER, since, until)).sort("step")
    forecasts = scored.group_by(ORIGIN).agg(
        pl.len().alias("scored"),
        pl.col("live").all(),
        pl.col("crps", "ref_crps").mean(),
        pl.col("ref_width", "weights_sha256").first(),
        pl.col(_STEP_1).first().name.suffix("_step_1"),
    )
    # Only complete forecasts: while the last steps are missing, the mean over steps would be of the easy
    # ones.
    whole = forecasts.join(steps, on=list(ORIGIN), how="inner")
    return whole.filter(pl.col("live"), pl.col("scored") == pl.col("steps")).sort(
        "issued_at", "model_version"
    )
