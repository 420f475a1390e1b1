"""The fallback of a drifted champion: a robust HAR, fitted in closed form on the newest stored candles.

It is fitted again for every forecast (with a year of hourly candles in a fraction of a second), so it needs no model
folder and is never out of date. Its forecasts are stored beside the champion's, with the role `fallback` and their own
version text.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl

from cpbmodels.data.ranges import RangeModel
from schemas.errors import MemberError
from schemas.forecasts import FALLBACK
from schemas.handover import Failure
from schemas.identity import SeriesId
from schemas.reference import Reference
from schemas.scope import Scope
from tasks.forecasting.issue import (
    ANY_ERROR,
    Champion,
    contract_rows,
    failure,
    reference_of,
    reference_prices,
    store_batch,
)
from tasks.forecasting.watch import is_drifted
from tasks.judging.fitted import robust_har
from tasks.signals.feature_files import newest_series

MAX_ROWS = 20_000
"""Maximum candles to fit on: two years of hourly candles. More do not improve its skill."""
MIN_ORIGINS = 1000
"""Minimum origins to estimate 168 hours of the week and 19 quantiles."""


def fallback_version(series: SeriesId) -> str:
    """Return the version text of its forecasts: `cpb-BTCUSDT-1h/robust-har`."""
    return f"{series.registered}/robust-har"


def fallback_forecast(
    scope: Scope, wanted: SeriesId, provisional: bool, reference: Reference
) -> pl.DataFrame:
    """Return the fallback's forecast after the newest stored candle, as rows of the contract.

    Args:
        reference: the champion's reference; the rows contain its quantiles for the same origin, and it sets the steps.

    Raises:
        MemberError: there are no candles in the scope, or (code `history`) too few to fit the model.
    """
    horizon = reference.horizon
    series = newest_series(
        scope.home,
        wanted,
        since=scope.since,
        as_of=scope.as_of,
        provisional=provisional,
        rows=MAX_ROWS + horizon,
    )
    origins = np.flatnonzero(series.usable(1, horizon))
    if len(origins) < MIN_ORIGINS:
        raise MemberError(
            f"{wanted}: {len(origins)} candles to fit the fallback on, and it needs {MIN_ORIGINS}; ingest more "
            "history, with an earlier --since, or leave --fallback out",
            code="history",
            field="fallback",
        )
    model = robust_har(series, origins, horizon)
    row = series.newest_origin(1)
    last = float(series.prices[row, 3])
    close, candle = _prices(model, model.scale(series, np.asarray([row]))[0], last)
    return contract_rows(
        wanted,
        fallback_version(wanted),
        issued_at=series.end_of(row),
        close=close,
        candle=candle,
        last_close=last,
        role=FALLBACK,
        reference=reference_prices(reference, series, row, horizon),
    )


def issue_fallbacks(
    scope: Scope, champions: Sequence[Champion], provisional: bool = False
) -> tuple[list[SeriesId], list[Failure]]:
    """Store the fallback's forecast for each champion that has drifted; return their series, and the failures."""
    rows: dict[SeriesId, pl.DataFrame] = {}
    failures: list[Failure] = []
    for champion in champions:
        series = champion.series
        if not is_drifted(scope.home, series):
            continue
        try:
            reference = reference_of(series, champion.folder)
            rows[series] = fallback_forecast(scope, series, provisional, reference)
        except ANY_ERROR as error:
            failures.append(failure(series, "forecast", error))
    stored, more = store_batch(scope.home, "forecasts", rows)
    return list(stored), [*failures, *more]


def _prices(model: RangeModel, scale: np.ndarray, last: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the close's quantiles [19, H] and the median candle [H, 4], of a scale [H] in log-return."""
    close = last * np.exp(scale * model.table.T)
    opened, high, low = last * np.exp(scale * model.candle.T)
    median = close[len(close) // 2]
    top, bottom = np.maximum(opened, median), np.minimum(opened, median)
    return close, np.stack([opened, np.maximum(high, top), np.minimum(low, bottom), median], axis=1)
