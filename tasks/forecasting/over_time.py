"""The live record of a series day by day: what its figures show, made from the same daily sums as the summary."""

from datetime import UTC, datetime, timedelta
from itertools import accumulate
from pathlib import Path
from typing import Any

import polars as pl

from schemas.forecasts import CHAMPION
from schemas.identity import SeriesId
from tasks.forecasting.daily import daily_sums
from tasks.judging.evidence import ratio_interval

WINDOW = timedelta(days=30)
"""Days behind `rolling` and the coverages."""

_BANDS = (50, 80, 90)

SCHEMA: dict[str, Any] = {
    "day": pl.Date,
    **dict.fromkeys(("ratio", "low", "high", "rolling"), pl.Float64),
    **dict.fromkeys((f"coverage_{band}" for band in _BANDS), pl.Float64),
}


def record_over_time(
    home: Path, series: SeriesId, *, live: bool = True, now: datetime | None = None
) -> pl.DataFrame:
    """Return a row per complete UTC day with forecasts of the champion of that day, oldest first.

    Args:
        live: forecasts made before the candles closed that they are about; else replays. The two are never added up.
        now: UTC; default the clock's time. Days whose forecasts may still come due after it are left out.

    Returns:
        `day`; `ratio`, `low`, `high`: CRPS over the reference's since the first day and its anytime-valid 95 %
        interval (null where there are too few days); `rolling`, `coverage_N`: of the last `WINDOW` alone.
    """
    sums = daily_sums(home, series).filter(pl.col("role") == CHAMPION, pl.col("live") == live)
    ended = pl.col("day").cast(pl.Datetime("us", "UTC")) + timedelta(days=1)
    due = ended + pl.duration(seconds=pl.col("horizon") * series.seconds)
    horizon = sums["horizon"].to_list()
    days = (
        sums.filter(due <= (now or datetime.now(UTC)))
        .group_by("day")
        .agg(
            pl.col(
                "rows", "ref_rows", "paired_crps", "ref_crps", *(f"covered_{band}" for band in _BANDS)
            ).sum()
        )
        .filter(pl.col("ref_rows") > 0)
        .sort("day")
    )
    if days.is_empty():
        return pl.DataFrame(schema=SCHEMA)
    bounds = _bounds(days, max(horizon) * series.seconds / 86_400)
    last = {name: pl.col(name).rolling_sum_by("day", WINDOW) for name in days.columns if name != "day"}
    return days.select(
        "day",
        ratio=_ratio(pl.col("paired_crps").cum_sum(), pl.col("ref_crps").cum_sum()),
        low=pl.Series([low for low, _ in bounds], dtype=pl.Float64),
        high=pl.Series([high for _, high in bounds], dtype=pl.Float64),
        rolling=_ratio(last["paired_crps"], last["ref_crps"]),
        **{f"coverage_{band}": last[f"covered_{band}"] / last["rows"] for band in _BANDS},
    )


def _ratio(above: pl.Expr, below: pl.Expr) -> pl.Expr:
    return pl.when(below > 0).then(above / below)


def _bounds(days: pl.DataFrame, loss_days: float) -> list[tuple[float | None, float | None]]:
    """Return the interval as it stood at the end of each day."""
    pairs = days.select("paired_crps", "ref_crps").rows()
    terms = [(m, r, m * m, r * r, m * r) for m, r in pairs]
    totals = accumulate(terms, lambda a, b: tuple(x + y for x, y in zip(a, b, strict=True)))  # type: ignore[arg-type]
    found = [ratio_interval(i, *total, loss_days=loss_days) for i, total in enumerate(totals, 1)]
    return [pair or (None, None) for pair in found]
