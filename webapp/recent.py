"""The newest forecast of a series beside those of the last 30 days: its width, and what came true of the last day's."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl

from schemas.forecast_rows import CHAMPION, KEY
from schemas.identity import SeriesId
from tasks.forecasting.months import FORECASTS, IS_LIVE, LEDGER, read_months
from webapp.cache import until_files_change
from webapp.stored import closed_at, newest

DAYS, MIN_DAYS = timedelta(days=30), 7
"""The span of earlier forecasts, and the days of it with forecasts from which on widths are compared."""

_DAY = timedelta(days=1)
_WIDTH = (pl.col("q90") - pl.col("q10")) / pl.col("last_close")
_TREE = replace(FORECASTS, columns=[*KEY, "role", "made_at", "target_time", "last_close", "q10", "q90"])


@until_files_change
def recent_fields(home: Path, series: SeriesId) -> dict[str, Any]:
    """Return the fields of `answers.OverviewRow` about earlier forecasts, of a series that has a forecast."""
    shown, (end, _) = newest(home, series), closed_at(home, series) or (None, False)
    issued, step, target = shown.select("issued_at", "step", "target_time").row(-1)
    stored = read_months(home, series, _TREE, issued - DAYS, issued)
    before = stored.filter(pl.col("role") == CHAMPION)  # older versions stored others' forecasts, too
    alike = before.filter(pl.col("step") == step, pl.col("issued_at") < issued)
    days = alike["issued_at"].dt.date().n_unique()
    usual = alike.select(_WIDTH.median()).item() if days >= MIN_DAYS else None
    # A price that does not move has no width.
    fields = {"width_days": days, "width_ratio": shown.select(_WIDTH)[-1, 0] / usual if usual else None}
    if end is None:
        return fields
    scores = read_months(home, series, LEDGER, end - _DAY - (target - issued), end)
    due = before.filter(pl.col("target_time").is_between(end - _DAY, end, closed="right"))
    scored = due.join(scores, on=list(KEY)).with_columns(live=IS_LIVE)
    # Live forecasts and replays are never one figure.
    counted = scored.filter(pl.col("live") == scored["live"].any())
    inside = counted.select(pl.col("realised_close").is_between("q10", "q90")).sum().item()
    return fields | {"day_closes": len(counted), "day_inside": inside, "day_live": scored["live"].any()}
