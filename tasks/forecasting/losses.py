"""Losses of scored forecast rows, of the model and of the reference: CRPS, tails, coverage, in log-return."""

import numpy as np
import polars as pl

from cpbmodels.data.rows import QUANTILE_COLUMNS
from schemas.forecasts import KEY, REFERENCE_COLUMNS
from schemas.reference import BANDS as REFERENCE_BANDS
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
