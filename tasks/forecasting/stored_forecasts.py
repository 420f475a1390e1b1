"""The forecast store: forecast rows as they were issued, with the time at which they were stored.

A stored row never changes: its realised close is in the ledger's separate files. The forecasts of each market are in a
separate tree (`SeriesId.folder`), so those of spot, futures and the simulator are never mixed.
"""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import polars as pl

from schemas.forecasts import FORECAST_SCHEMA
from schemas.identity import SeriesId, stored_series
from tasks.forecasting.months import FORECASTS, month_files, month_of, read_month


def latest(home: Path, series: SeriesId, until: datetime | None = None) -> pl.DataFrame:
    """Return the newest forecast of one series (issued by `until`), its steps in order; empty without forecasts.

    Of several champions' forecasts at the same time, the last written.
    """
    for rows in _shown(home, series, until):
        if not rows.is_empty():
            newest = rows.filter(pl.col("issued_at") == pl.col("issued_at").max())
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
        shown = of_month.sort("issued_at", maintain_order=True).unique(
            "issued_at", keep="last", maintain_order=True
        )
        found = pl.concat([shown, found])
        if len(found) >= limit:
            break
    return found.tail(limit)


def _shown(home: Path, series: SeriesId, until: datetime | None) -> Iterator[pl.DataFrame]:
    """Yield the rows (issued by `until`), month by month from the newest backwards."""
    for path in reversed(month_files(series.folder(home, FORECASTS.name))):
        if until and path.stem > month_of(until):
            continue
        rows = read_month(home, series, FORECASTS, path.stem)
        if rows is not None:
            yield rows.filter(pl.col("issued_at") <= until) if until else rows


def series_with_forecasts(home: Path, market: str | None = None) -> list[SeriesId]:
    """Return every series (of `market`, default of all) that has forecasts, in order."""
    known = stored_series(home, FORECASTS.name)
    return [s for s in known if market in (None, s.market) and month_files(s.folder(home, FORECASTS.name))]
