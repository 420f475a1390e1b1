"""Losses of scored forecast rows, of the model and of the reference: CRPS, tails, coverage, in log-return.

`evidence_rows` has one loss per completely scored forecast: the input of the promotion gate and the drift watch.
"""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from cpbmodels.data.rows import QUANTILE_COLUMNS
from schemas.forecasts import KEY, REFERENCE_COLUMNS
from schemas.identity import SeriesId
from schemas.reference import BANDS as REFERENCE_BANDS
from tasks.forecasting.months import FORECASTS, LEDGER, read_months
from tasks.judging.scores import BANDS as BAND_LEVELS
from tasks.judging.scores import TAILS, pinball

BANDS = REFERENCE_BANDS
ORIGIN = ("model_version", "role", "issued_at")
"""Columns that identify one forecast of a series."""


def scored_rows(rows: pl.DataFrame, scores: pl.DataFrame) -> pl.DataFrame:
    """Return the forecast rows that have a score, in their order, with the score's columns and losses.

    Added columns: `realised_close`, `scored_at`; `live` (made before the target candle closed; false for replays);
    `crps`, `tail` (mean pinball loss at 5 and 95 %), both of the log-return since `last_close`, comparable across
    coins; `covered_50 covered_80 covered_90`; the same of the reference as `ref_…` (null for rows without a
    reference); `ref_width` (see `reference_width`); `horizon`: steps of the forecast; and `direction_hit`: whether the
    median is on the realised side of `last_close`; null if either equals it.

    Args:
        rows: forecast rows of one series, complete forecasts.
        scores: rows of the ledger.
    """
    whole = rows.with_columns(reference_width(), horizon=pl.col("step").max().over(ORIGIN))
    joined = whole.join(scores, on=list(KEY), how="inner", maintain_order="left")
    closes = pl.col("realised_close")
    moved = (closes - pl.col("last_close")).sign() * (pl.col("q50") - pl.col("last_close")).sign()
    own, other = (_losses(joined, columns) for columns in (QUANTILE_COLUMNS, REFERENCE_COLUMNS))
    return joined.with_columns(
        (pl.col("made_at") < pl.col("target_time")).fill_null(False).alias("live"),
        pl.when(moved != 0).then(moved > 0).alias("direction_hit"),
        **own,
        **{f"ref_{name}": values for name, values in other.items()},
    )


def reference_width() -> pl.Expr:
    """Return `ref_width`: the reference's log(q90 / q10), mean over the steps of a forecast; null without a reference.

    A scale of the loss that is known at the origin: the unit in which losses are added up across coins and times.
    """
    width = (pl.col("ref_q90") / pl.col("ref_q10")).log()
    return width.mean().over(ORIGIN).alias("ref_width")


def _losses(rows: pl.DataFrame, columns: tuple[str, ...]) -> dict[str, pl.Series]:
    """Return the columns of `scored_rows` for one forecaster; null if it has no quantiles."""
    prices, closes = rows.select(columns).to_numpy(), rows["realised_close"].to_numpy()
    last = rows["last_close"].to_numpy()
    loss = pinball(np.log(prices / last[:, None]), np.log(closes / last))
    inside = {
        f"covered_{band}": (closes >= prices[:, low]) & (closes <= prices[:, high])
        for band, (low, high) in BAND_LEVELS.items()
    }
    found = {"crps": 2 * loss.mean(axis=-1), "tail": loss[:, list(TAILS)].mean(axis=-1), **inside}
    unknown = rows[columns[0]].is_null().arg_true()
    return {name: pl.Series(name, values).scatter(unknown, None) for name, values in found.items()}


_STEP_1 = tuple(f"{whose}covered_{band}" for whose in ("", "ref_") for band in BANDS)

EVIDENCE_SCHEMA: dict[str, Any] = {
    "series": pl.String,
    "issued_at": pl.Datetime("us", "UTC"),
    "version": pl.String,
    "crps": pl.Float64,
    "ref_crps": pl.Float64,
    "ref_width": pl.Float64,
    "scored_at": pl.Datetime("us", "UTC"),
    **{f"{name}_step_1": pl.Boolean for name in _STEP_1},
}
"""`series`: its name, `BTCUSDT-1h`. `version`: registered model and version. `crps`, `ref_crps`: means over all steps
of the model's and the reference's CRPS (log-return). `ref_width`: a scale of the loss that is known at the origin, see
`reference_width`. `scored_at`: when the last step was scored. `covered_N_step_1`, `ref_covered_N_step_1`: whether the
first close was inside the central band of N % of the model, of the reference."""


def evidence_rows(
    home: Path,
    series: Sequence[SeriesId],
    since: datetime | None = None,
    until: datetime | None = None,
) -> pl.DataFrame:
    """Return one row per live forecast with a reference and a score for every step, by origin and series.

    If a champion was replaced between two runs at the same origin, both versions have a row, told apart by `version`.
    Months outside the bounds are not read.

    Args:
        since, until: bounds of `issued_at`, UTC, both inclusive.

    Returns:
        Columns of `EVIDENCE_SCHEMA`, sorted by `issued_at`, `series`, `version`.
    """
    parts = [_of_series(home, s, since, until) for s in series]
    return pl.concat([pl.DataFrame(schema=EVIDENCE_SCHEMA), *parts]).sort("issued_at", "series", "version")


def _of_series(home: Path, series: SeriesId, since: datetime | None, until: datetime | None) -> pl.DataFrame:
    rows = read_months(home, series, FORECASTS, since, until).filter(pl.col("ref_q50").is_not_null())
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
    return named.select(pl.col(name).cast(kind) for name, kind in EVIDENCE_SCHEMA.items())
