"""The ledger's input to the promotion gate and the drift watch: one loss per completely scored forecast."""

from collections.abc import Collection, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from schemas.forecasts import CHALLENGER, CHAMPION
from schemas.identity import SeriesId
from tasks.forecasting.losses import BANDS, ORIGIN, scored_rows
from tasks.forecasting.months import FORECASTS, LEDGER, read_months

_STEP_1 = tuple(f"{whose}covered_{band}" for whose in ("", "ref_") for band in BANDS)

SCHEMA: dict[str, Any] = {
    "series": pl.String,
    "issued_at": pl.Datetime("us", "UTC"),
    "role": pl.String,
    "version": pl.String,
    "crps": pl.Float64,
    "ref_crps": pl.Float64,
    "ref_width": pl.Float64,
    "scored_at": pl.Datetime("us", "UTC"),
    **{f"{name}_step_1": pl.Boolean for name in _STEP_1},
}
"""`series`: its name, `BTCUSDT-1h`. `version`: registered model and version. `crps`, `ref_crps`: means over all steps
of the model's and the reference's CRPS (log-return). `ref_width`: a scale of the loss that is known at the origin, see
`losses.reference_width`. `scored_at`: when the last step was scored. `covered_N_step_1`, `ref_covered_N_step_1`:
whether the first close was inside the central band of N % of the model, of the reference."""


def evidence_rows(
    home: Path,
    series: Sequence[SeriesId],
    since: datetime | None = None,
    until: datetime | None = None,
    *,
    roles: Collection[str] = (CHAMPION, CHALLENGER),
) -> pl.DataFrame:
    """Return one row per live forecast with a reference and a score for every step, by origin and series.

    If a champion was replaced between two runs at the same origin, both versions have a row, told apart by `version`.
    Months outside the bounds are not read.

    Args:
        since, until: bounds of `issued_at`, UTC, both inclusive.
        roles: only forecasts with these roles.

    Returns:
        Columns of `SCHEMA`, sorted by `issued_at`, `series`, `role`, `version`.
    """
    parts = [_of_series(home, one, since, until, roles) for one in series]
    return pl.concat([pl.DataFrame(schema=SCHEMA), *parts]).sort("issued_at", "series", "role", "version")


def _of_series(
    home: Path, series: SeriesId, since: datetime | None, until: datetime | None, roles: Collection[str]
) -> pl.DataFrame:
    rows = read_months(home, series, FORECASTS, since, until).filter(
        pl.col("role").is_in(list(roles)), pl.col("ref_q50").is_not_null()
    )
    steps = rows.group_by(ORIGIN).agg(steps=pl.len())
    scored = scored_rows(rows, read_months(home, series, LEDGER, since, until)).sort("step")
    whole = (
        scored.group_by(ORIGIN)
        .agg(
            pl.len().alias("scored"),
            pl.col("live").all(),
            pl.col("crps", "ref_crps").mean(),
            pl.col("ref_width").first(),
            pl.col("scored_at").max(),
            *(pl.col(name).first().alias(f"{name}_step_1") for name in _STEP_1),
        )
        .join(steps, on=list(ORIGIN), how="inner")
        .filter(pl.col("live"), pl.col("scored") == pl.col("steps"))
    )
    named = whole.with_columns(series=pl.lit(series.name), version=pl.col("model_version"))
    return named.select(pl.col(name).cast(kind) for name, kind in SCHEMA.items())
