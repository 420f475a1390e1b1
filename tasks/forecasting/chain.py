"""The single write path of forecasts and scores: a batch of many series at once."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import polars as pl

from schemas.errors import CpbError, MemberError
from schemas.identity import SeriesId
from tasks.forecasting.months import FORECASTS, LEDGER, Tree, add_rows

Kind = Literal["forecasts", "scores"]
"""What a batch holds."""

_TREES: dict[Kind, Tree] = {"forecasts": FORECASTS, "scores": LEDGER}


def append(
    home: Path,
    market: str,
    kind: Kind,
    batch: Mapping[SeriesId, pl.DataFrame],
    *,
    lost: Callable[[SeriesId, str], None] | None = None,
) -> dict[SeriesId, int | CpbError]:
    """Store the rows of a batch that are not there yet; the first row under a key stands.

    A null `made_at` becomes the clock's time. What is wrong with one series stops no other.

    Args:
        batch: rows by series, all of one market.
        lost: called with a series and a sentence for each of its damaged files that was set aside.

    Returns:
        For each series how many of its rows were new, or why none was stored (code `rows`: they break the contract or
        are of another series).
    """
    now = datetime.now(UTC)
    done: dict[SeriesId, int | CpbError] = {}
    for series, rows in batch.items():
        try:
            if series.market != market:
                raise MemberError(f"{series} is not of market {market}", code="rows", field="market")
            stamped = (
                rows.with_columns(pl.col("made_at").fill_null(now)) if "made_at" in rows.columns else rows
            )
            said = (lambda text, series=series: lost(series, text)) if lost else None
            done[series] = add_rows(home, series, _TREES[kind], stamped, lost=said)
        except CpbError as error:
            done[series] = error
    return done
