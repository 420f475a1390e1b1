"""Daily sums of a series' scores: small, so that the live record never reads the ledger again from its beginning."""

from datetime import datetime, timedelta
from functools import cache
from pathlib import Path

import polars as pl
import polars.selectors as cs

from schemas.errors import DamagedError
from schemas.forecast_rows import CHAMPION
from schemas.identity import SeriesId
from schemas.ledger import BANDS
from tasks.forecasting.months import (
    FORECASTS,
    LEDGER,
    month_bytes,
    month_files,
    parse_rows,
    read_month,
)
from tasks.forecasting.score import nothing_scored, scored_rows, with_scale
from tasks.judging.live_interval import ratio_interval
from tasks.storage.files import write_bytes
from tasks.storage.locks import locked

DAILY = "daily.parquet"

KEY = ("day", "model_version", "weights_sha256", "live")
ROLLING_DAYS = 30
"""Window of `rolling` and of the coverage, in days."""

DAYS_SCHEMA = {
    "day": pl.Date,
    **dict.fromkeys(("ratio", "low", "high", "rolling", *(f"coverage_{band}" for band in BANDS)), pl.Float64),
}


def day_sums(scored: pl.DataFrame) -> pl.DataFrame:
    """Return the daily sums of scored rows of one series (`scored_rows` of rows `with_scale`).

    One row per UTC day of `issued_at`, model version, its weights, and live or replay. `horizon`: steps of a forecast.
    Sums over the scored rows: `crps` over all rows; `paired_…` and `ref_…` of the model and of the reference over the
    `ref_rows` rows with a reference; `scaled_…` in units of the reference's width at the origin, additive across coins.
    """
    # Ratios are of rows that both have: forecasts without a reference count for the hit rates alone.
    paired = pl.col("ref_crps").is_not_null()
    champions = scored.filter(pl.col("role") == CHAMPION)  # older versions stored others' forecasts, too
    days = champions.with_columns(day=pl.col("issued_at").dt.date()).group_by(KEY)
    return days.agg(
        pl.col("horizon").max(),
        pl.col("issued_at").n_unique().alias("forecasts"),
        pl.len().alias("rows"),
        paired.sum().alias("ref_rows"),
        pl.col("direction_hit").count().alias("moved"),
        pl.col("direction_hit").sum().alias("direction_hits"),
        *(pl.col(f"{whose}covered_{band}").sum() for band in BANDS for whose in ("", "ref_")),
        pl.col("crps", "ref_crps", "ref_tail").sum(),
        pl.col("crps", "tail").filter(paired).sum().name.prefix("paired_"),
        (pl.col("crps", "ref_crps", "tail", "ref_tail") / pl.col("ref_width"))
        .filter(paired)
        .sum()
        .name.prefix("scaled_"),
    ).sort(KEY)


@cache
def _no_sums() -> pl.DataFrame:
    return day_sums(with_scale(nothing_scored())).with_columns(source=pl.lit(""))


def daily_sums(home: Path, series: SeriesId) -> pl.DataFrame:
    """Return a series' daily sums, oldest first, updated from its month files; empty if it has no month files.

    `source` tells from which state of the month's files a row was computed. Sums of a month that is damaged or missing,
    as `cpb verify` tells, stay.
    """
    folder = series.folder(home, LEDGER.name)
    if not folder.is_dir():
        return _no_sums()
    with locked(folder / ".lock"):  # guards the sums only; the month files may be written concurrently
        stored, parts = read_sums(home, series), [_no_sums()]
        names = {file.name for file in month_files(folder)} | {
            f"{day:%Y-%m}.parquet" for day in stored["day"]
        }
        for name in sorted(names):
            forecasts, ledger = series.folder(home, FORECASTS.name) / name, folder / name
            states = (path.stat() for path in (forecasts, ledger) if path.exists())
            # Inode, time and size: month files are only ever replaced by a rename.
            source = " ".join(f"{state.st_ino}/{state.st_mtime_ns}/{state.st_size}" for state in states)
            part = stored.filter(pl.col("source") == source)
            if part.is_empty():
                rows = read_month(home, series, FORECASTS, forecasts)
                scores = read_month(home, series, LEDGER, ledger)
                # Damaged now, sound when it was summed: what was computed then is still true.
                if rows is None or scores is None:
                    part = stored.filter(pl.col("day").dt.strftime("%Y-%m.parquet") == name)
                else:
                    part = day_sums(scored_rows(with_scale(rows), scores)).with_columns(source=pl.lit(source))
            parts.append(part)
        sums = pl.concat(parts).sort(KEY)
        # Unchanged sums are not written: the page would take a new file for new scores.
        if not sums.equals(stored):
            write_bytes(folder / DAILY, month_bytes(folder / DAILY, sums))
    return sums


def read_sums(home: Path, series: SeriesId) -> pl.DataFrame:
    """Return a series' daily sums as last written, without updating them; empty if they are missing or damaged."""
    try:
        return parse_sums(series.folder(home, LEDGER.name) / DAILY)
    except (FileNotFoundError, DamagedError):  # computed again at the next scoring
        return _no_sums()


def parse_sums(path: Path) -> pl.DataFrame:
    """Return the daily sums in a file; errors as in `months.parse_rows`."""
    return parse_rows(path, dict(_no_sums().schema))


def record_by_day(sums: pl.DataFrame, series: SeriesId, now: datetime, *, live: bool) -> pl.DataFrame:
    """Return a row per complete UTC day of the forecasts by a series' champions, oldest first.

    `ratio`: CRPS over the reference's CRPS from the first day to this day, with its anytime-valid 95 % interval `low`,
    `high` (null while there are too few days); `rolling`, `coverage_50 …`: over the last `ROLLING_DAYS` days only. The
    last day's values equal the live record.

    Args:
        sums: `read_sums` of the series.
        now: UTC; days with forecasts that may come due later are not complete.
        live: select the forecasts made before their candles closed, else the replays.
    """
    horizon = pl.col("horizon") * timedelta(seconds=series.seconds)
    ends = pl.col("day").cast(pl.Datetime("us", "UTC")) + timedelta(days=1) + horizon
    complete = sums.filter(pl.col("live") == live, pl.col("ref_rows") > 0, ends <= now)
    if complete.is_empty():
        return pl.DataFrame(schema=DAYS_SCHEMA)
    days = complete.group_by("day").agg(cs.numeric().sum(), steps=pl.col("horizon").max()).sort("day")
    model, reference = pl.col("paired_crps"), pl.col("ref_crps")
    totals = days.select(
        model.cum_sum().alias("model"),
        reference.cum_sum(),
        (model * model).cum_sum().alias("mm"),
        (reference * reference).cum_sum().alias("rr"),
        (model * reference).cum_sum().alias("mr"),
    )
    loss_days = int(days["steps"].to_numpy().max()) * series.seconds / 86_400
    # An interval a day, each from the sums to that day: it holds at every day at once, so the curve may be
    # read as it grows.
    bounds = [
        ratio_interval(count, *sums_to_day, loss_days=loss_days) or (None, None)
        for count, sums_to_day in enumerate(totals.rows(), 1)
    ]
    low, high = zip(*bounds, strict=True)

    def rolling(name: str) -> pl.Expr:
        return pl.col(name).rolling_sum_by("day", window_size=f"{ROLLING_DAYS}d")

    return days.select(
        "day",
        ratio=model.cum_sum() / reference.cum_sum(),
        low=pl.Series(low, dtype=pl.Float64),
        high=pl.Series(high, dtype=pl.Float64),
        rolling=rolling("paired_crps") / rolling("ref_crps"),
        **{f"coverage_{band}": rolling(f"covered_{band}") / rolling("rows") for band in BANDS},
    )
