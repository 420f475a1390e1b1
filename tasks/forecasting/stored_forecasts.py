"""The forecast store: forecast rows as they were issued, with the time at which they were stored.

A stored row never changes: its realised close is in the ledger's separate files. The forecasts of each market are in a
separate tree (`SeriesId.folder`), so those of spot, futures and the simulator are never mixed.
"""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import polars as pl

from schemas.forecasts import CHAMPION, FALLBACK, FORECAST_SCHEMA
from schemas.identity import SeriesId, stored_series
from tasks.forecasting.months import FORECASTS, month_files, month_of, read_month
from tasks.forecasting.watch import is_drifted


def latest(home: Path, series: SeriesId, until: datetime | None = None) -> pl.DataFrame:
    """Return the newest forecast of one series (issued by `until`), its steps in order; empty without forecasts.

    Of several champions' forecasts at the same time, the last written. While the champion has drifted, its fallback's
    forecast if it exists for that time. A challenger's forecasts are never shown.
    """
    for rows in _shown(home, series, until):
        if not rows.is_empty():
            newest = rows.filter(pl.col("issued_at") == pl.col("issued_at").max())
            fallback = newest.filter(pl.col("role") == FALLBACK)
            newest = newest if fallback.is_empty() else fallback
            return newest.filter(pl.col("model_version") == pl.col("model_version").last()).sort("step")
    return pl.DataFrame(schema=FORECAST_SCHEMA)


def issues(home: Path, series: SeriesId, limit: int, until: datetime | None = None) -> pl.DataFrame:
    """Return the newest `limit` forecasts of a series (issued by `until`), oldest first, each selected as by `latest`.

    Columns: `issued_at`, `model_version`, `role`, `made_at`, and `live`: made before the first target candle closed.
    Months are read from the newest backwards, only as many as needed.
    """
    columns = ["issued_at", "model_version", "role", "made_at"]
    live = (pl.col("made_at") < pl.col("target_time")).fill_null(False).alias("live")
    found = pl.DataFrame(schema={**{name: FORECAST_SCHEMA[name] for name in columns}, "live": pl.Boolean})
    for rows in _shown(home, series, until):
        of_month = rows.filter(pl.col("step") == 1).select(*columns, live)
        order = ["issued_at", pl.col("role") == FALLBACK]
        shown = of_month.sort(order, maintain_order=True).unique(
            "issued_at", keep="last", maintain_order=True
        )
        found = pl.concat([shown, found])
        if len(found) >= limit:
            break
    return found.tail(limit)


def _shown(home: Path, series: SeriesId, until: datetime | None) -> Iterator[pl.DataFrame]:
    """Yield the rows (issued by `until`) of the visible roles, month by month from the newest backwards."""
    roles = [CHAMPION, FALLBACK] if is_drifted(home, series) else [CHAMPION]
    for path in reversed(month_files(series.folder(home, FORECASTS.name))):
        if until and path.stem > month_of(until):
            continue
        rows = read_month(home, series, FORECASTS, path.stem)
        if rows is not None:
            shown = pl.col("role").is_in(roles)
            yield rows.filter(shown & (pl.col("issued_at") <= until) if until else shown)


def series_with_forecasts(home: Path, market: str | None = None) -> list[SeriesId]:
    """Return every series (of `market`, default of all) that has forecasts, in order."""
    known = stored_series(home, FORECASTS.name)
    return [s for s in known if market in (None, s.market) and month_files(s.folder(home, FORECASTS.name))]
