"""Issues each champion's forecast from the newest closed candles of its series into the forecast store.

Beside it the reference's forecast, which is stored in the model's folder as fitted during judging.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

import cpbmodels
from cpbmodels.data.series import Series, forecast_rows
from cpbmodels.data.wide import NO_MARKET, Market
from schemas.errors import CpbError, DamagedError, MemberError
from schemas.frames import CHAMPION, FORECAST_SCHEMA, REFERENCE_COLUMNS
from schemas.handover import Failure, ForecastBatch, Step
from schemas.identity import SeriesId
from schemas.ledger import Reference
from schemas.scope import Scope
from tasks.forecasting.chain import ANY_ERROR, Kind, append, as_error
from tasks.judging.scores import Array, reference_quantiles
from tasks.running.parallel import run_each, usable_cores
from tasks.signals.feature_files import market_key, newest_markets, newest_series
from tasks.storage.model_folder import PackagedModel, read_config, read_reference

LEARNT = "learnt"
"""Code of the failure for an origin inside the candles that a model was trained or selected on."""


def issue_forecasts(scope: Scope, champions: Sequence[PackagedModel]) -> ForecastBatch:
    """Forecast with the champions; an error in one series becomes its `Failure`, the others are still forecast.

    A series without a usable reference (code `reference`) is still forecast; its rows have null reference columns.
    """
    failures: list[Failure] = []
    readers = [market_key(champion.series) for champion in champions if _reads_market(champion)]
    markets = newest_markets(scope.home, readers, since=scope.since, as_of=scope.as_of)

    def rows_of(champion: PackagedModel) -> pl.DataFrame | None:
        reference = None
        try:
            try:
                reference = reference_of(champion.series, champion.folder)
            except MemberError as error:  # a forecast without reference is better than none
                failures.append(failure(champion.series, "forecast", error))
            rows = _forecast(champion, scope, reference, markets.get(market_key(champion.series)))
            learnt, issued_at = read_config(champion.folder).learnt_until, rows["issued_at"][0]
            if learnt and issued_at <= learnt:
                raise MemberError(
                    f"{champion.series}: {champion.model_version} was trained or chosen on candles until "
                    f"{learnt:%Y-%m-%d %H:%M}, so a forecast from {issued_at:%Y-%m-%d %H:%M} would not be out of "
                    "sample; give a later --as-of, or none",
                    code=LEARNT, field="as_of",
                )  # fmt: skip
        except ANY_ERROR as error:
            failures.append(failure(champion.series, "forecast", error))
            return None
        return rows

    # A thread per core: reading candles, computing columns and inference release the GIL.
    made = run_each([partial(rows_of, champion) for champion in champions], workers=usable_cores())
    failures.sort(key=lambda failed: str(failed.series))
    batch = {
        c.series: rows for c, rows in zip(champions, made, strict=True) if isinstance(rows, pl.DataFrame)
    }
    stored, more = store_batch(scope.home, "forecasts", batch)
    return ForecastBatch(
        rows=sum(stored.values()),
        total_rows=sum(len(batch[series]) for series in stored),
        series=tuple(stored),
        failures=(*failures, *more),
    )


def store_batch(
    home: Path, kind: Kind, rows: Mapping[SeriesId, pl.DataFrame]
) -> tuple[dict[SeriesId, int], list[Failure]]:
    """Append rows of one market; return the number of new rows by stored series, and the failures."""
    step: Step = "forecast" if kind == "forecasts" else "score"
    new = append(home, next(iter(rows)).market, kind, rows) if rows else {}
    stored = {series: number for series, number in new.items() if isinstance(number, int)}
    return stored, [failure(s, step, error) for s, error in new.items() if isinstance(error, CpbError)]


def failure(series: SeriesId, step: Step, error: BaseException) -> Failure:
    """Return the failure of one series; an unexpected error is also logged with its traceback."""
    reason = error if isinstance(error, cpbmodels.ModelError) else as_error(series, error)
    return Failure.of(series, step, reason)


def _reads_market(champion: PackagedModel) -> bool:
    try:
        return NO_MARKET in read_config(champion.folder).features
    except CpbError:  # reported when it is loaded
        return False


def _forecast(
    champion: PackagedModel, scope: Scope, reference: Reference | None, market: Market | None
) -> pl.DataFrame:
    """Return a model's forecast from the newest stored candles of its series, as rows of the contract.

    Args:
        reference: the model's reference; the rows contain its quantiles for the same origin, null without a reference.
        market: what the coins share at their newest candles, for a model that reads it.

    Raises:
        MemberError: there are no candles in the scope.
        ModelError: too few candles for the model, or its forecast is not finite.
    """
    series = newest_series(scope.home, champion.series, since=scope.since, as_of=scope.as_of)
    if market is not None:
        series = replace(series, market=market)
    # after a gap: the forecast before it is already stored
    forecast = cpbmodels.load(champion.folder).forecast(series, go_back=True)
    row, horizon = forecast.issued_row, len(forecast.candle)
    return contract_rows(
        champion.series,
        champion.model_version,
        issued_at=series.end_of(row),
        close=np.stack([forecast.close[q] for q in cpbmodels.QUANTILES]),
        candle=forecast.candle,
        last_close=forecast.last_close,
        reference=reference_prices(reference, series, row, horizon) if reference else None,
    )


def contract_rows(
    series: SeriesId,
    model_version: str,
    issued_at: datetime,
    close: np.ndarray,
    candle: np.ndarray,
    last_close: float,
    *,
    reference: np.ndarray | None = None,
) -> pl.DataFrame:
    """Return one forecast as rows of the contract, steps 1 … H; `made_at` is null, and set by `append`.

    Args:
        model_version: registered model and version, `cpb-BTCUSDT-1h/3`.
        issued_at: UTC end of the last candle used.
        close: float64 [19, H], the close's quantiles 0.05 … 0.95, in prices.
        candle: float64 [H, 4], the median candle's open, high, low, close, in prices.
        last_close: close of the last candle used.
        reference: float64 [19, H], the close's quantiles by the random walk from the same origin, in prices.
    """
    rows = forecast_rows([issued_at], series.seconds, close.T[None], candle[None])
    named = rows.with_columns(
        symbol=pl.lit(series.symbol),
        timeframe=pl.lit(series.timeframe),
        model_version=pl.lit(model_version),
        last_close=pl.lit(float(last_close)),
        role=pl.lit(CHAMPION),
        made_at=pl.lit(None),  # set when it is stored
        **{
            name: pl.lit(None) if reference is None else pl.Series(reference[i])
            for i, name in enumerate(REFERENCE_COLUMNS)
        },
    )
    return named.select(pl.col(name).cast(kind) for name, kind in FORECAST_SCHEMA.items())


def reference_of(series: SeriesId, folder: Path) -> Reference:
    """Return the reference of the model in `folder`.

    Raises:
        MemberError: (code `reference`) the folder has no reference, or a damaged reference.
    """
    why = "its model has no record of its reference"
    try:
        if reference := read_reference(folder):
            return reference
    except DamagedError as error:
        why = str(error)
    retrain = f"train it again, as in `cpb train-all {series.options}`"
    raise MemberError(f"{series}: {why}; {retrain}", code="reference")


def reference_prices(reference: Reference, series: Series, row: int, horizon: int) -> Array:
    """Return the reference's quantiles [19, H] of the closes after the candle in `row`, in prices."""
    moves = reference_quantiles(reference, series, np.asarray([row]))[0, :horizon]
    return np.ascontiguousarray(series.prices[row, 3] * np.exp(moves).T)
