"""The record of a series day by day: the ratio since the first day with its interval, and the last days alone."""

from datetime import datetime, timedelta

import polars as pl

from schemas.forecasts import CHAMPION
from schemas.identity import SeriesId
from tasks.forecasting.losses import BANDS
from tasks.judging.evidence import ratio_interval

ROLLING_DAYS = 30
"""Days of `rolling` and of the coverage."""

_SUMS = ("rows", "paired_crps", "ref_crps", *(f"covered_{band}" for band in BANDS))
SCHEMA = {
    "day": pl.Date,
    **dict.fromkeys(("ratio", "low", "high", "rolling", *(f"coverage_{band}" for band in BANDS)), pl.Float64),
}


def record_by_day(sums: pl.DataFrame, series: SeriesId, now: datetime, *, live: bool) -> pl.DataFrame:
    """Return a row per complete UTC day of what the champions of a series forecast, oldest first.

    `ratio`: CRPS over the reference's from the first day to this one, with its anytime-valid 95 % interval `low`,
    `high` (null while there are too few days); `rolling`, `coverage_50 …`: of the last `ROLLING_DAYS` days alone. At
    the last day they are what the live record says.

    Args:
        sums: `daily.read_sums` of the series.
        now: UTC; days whose forecasts may still come due after it are not complete.
        live: the forecasts made before their candles had closed, else the replays.
    """
    horizon = pl.col("horizon") * timedelta(seconds=series.seconds)
    ends = pl.col("day").cast(pl.Datetime("us", "UTC")) + timedelta(days=1) + horizon
    known = sums.filter(
        pl.col("role") == CHAMPION, pl.col("live") == live, pl.col("ref_rows") > 0, ends <= now
    )
    if known.is_empty():
        return pl.DataFrame(schema=SCHEMA)
    days = known.group_by("day").agg(pl.col(*_SUMS).sum()).sort("day")
    span = f"{ROLLING_DAYS}d"
    last = {name: pl.col(name).rolling_sum_by("day", window_size=span) for name in _SUMS}
    model, reference = pl.col("paired_crps"), pl.col("ref_crps")
    days = days.with_columns(
        ratio=model.cum_sum() / reference.cum_sum(),
        rolling=last["paired_crps"] / last["ref_crps"],
        mm=(model * model).cum_sum(),
        rr=(reference * reference).cum_sum(),
        mr=(model * reference).cum_sum(),
        m=model.cum_sum(),
        r=reference.cum_sum(),
        **{f"coverage_{band}": last[f"covered_{band}"] / last["rows"] for band in BANDS},
    )
    covers = int(known["horizon"].to_numpy().max()) * series.seconds / 86_400
    bounds = [
        ratio_interval(i, *sums_to, loss_days=covers) or (None, None)
        for i, sums_to in enumerate(days.select("m", "r", "mm", "rr", "mr").rows(), 1)
    ]
    low, high = zip(*bounds, strict=True)
    bounded = days.with_columns(low=pl.Series(low, dtype=pl.Float64), high=pl.Series(high, dtype=pl.Float64))
    return bounded.select(list(SCHEMA))
