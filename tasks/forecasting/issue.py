"""Issues each champion's forecast from the newest closed candles of its series into the forecast store.

Beside it the reference's forecast, which is stored in the model's folder as fitted during judging.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from threading import Lock

import numpy as np
import polars as pl

import cpbmodels
from cpbmodels.data.cross_section import CrossSection
from cpbmodels.data.prediction import forecast_rows
from cpbmodels.data.series import Series
from cpbmodels.data.wide import NO_MARKET
from schemas.errors import CpbError, MemberError
from schemas.failure import Failure, StepName
from schemas.forecast_rows import CHAMPION, FORECAST_SCHEMA, REFERENCE_COLUMNS
from schemas.handover import ForecastBatch, Issued
from schemas.identity import SeriesId
from schemas.ledger import Reference
from schemas.scope import Scope
from tasks.forecasting.chain import ANY_ERROR, Kind, append, as_error
from tasks.forecasting.months import CLOCK_STEP
from tasks.judging.baselines import reference_quantiles
from tasks.judging.scores import Array
from tasks.market.klines import read_klines
from tasks.running.cores import usable_cores
from tasks.running.parallel import run_each
from tasks.signals.feature_files import market_key, newest_cross_sections, newest_series
from tasks.storage.packaged import PackagedModel, ServedModel, read_packaged

LEARNT = "learnt"
"""Code of the failure for an origin inside the candles that a model was trained or selected on."""


def issue_forecasts(scope: Scope, champions: Sequence[PackagedModel]) -> ForecastBatch:
    """Forecast with the champions; an error in one series becomes its `Failure`, the others are still forecast.

    Whatever a row says of its model is of one reading of the model's folder (`read_packaged`): a night may replace it
    at any moment. A series without a usable reference (code `reference`) is still forecast; its rows have null
    reference columns.
    """
    failures: list[Failure] = []
    shared = _CrossSections(scope)

    def made_by(champion: PackagedModel) -> tuple[Issued, pl.DataFrame] | None:
        series = champion.series
        try:
            model = served_model(champion)
            try:
                reference = reference_of(model)
            except MemberError as error:  # a forecast without reference is better than none
                reference = None
                failures.append(failure(series, "forecast", error))
            rows = _forecast(model, scope, reference, shared)
            # A replay over candles that the model has learnt from would look better than any forecast can
            # be.
            learnt, issued_at = model.config.learnt_until, rows["issued_at"][0]
            if learnt and issued_at <= learnt:
                raise MemberError(
                    f"{series}: {model.model_version} was trained or chosen on candles until "
                    f"{learnt:%Y-%m-%d %H:%M}, so a forecast from {issued_at:%Y-%m-%d %H:%M} would not be out of "
                    "sample; give a later --as-of, or none",
                    code=LEARNT,
                    field="as_of",
                )
            _check_clock(scope.home, champion.series, issued_at)
        except ANY_ERROR as error:
            failures.append(failure(series, "forecast", error))
            return None
        about = Issued(series=series, model_version=model.model_version, verdict=model.config.verdict)
        return about, rows

    # A thread per core: reading candles, computing columns and inference release the GIL.
    made = run_each([partial(made_by, champion) for champion in champions], workers=usable_cores())
    # Threads end in any order; a run says the same each time.
    failures.sort(key=lambda failed: str(failed.series))
    issued = [pair for pair in made if isinstance(pair, tuple)]
    batch = {about.series: rows for about, rows in issued}
    stored, more = store_batch(scope.home, "forecasts", batch)
    return ForecastBatch(
        rows=sum(stored.values()),
        # Rows that were there already count: a repeated command has nothing new, and nothing is missing.
        total_rows=sum(len(batch[series]) for series in stored),
        issued=tuple(about for about, _ in issued if about.series in stored),
        failures=(*failures, *more),
    )


def served_model(champion: PackagedModel) -> ServedModel:
    """Return the model in a champion's folder, which may be of another version than when the folder was listed.

    Raises:
        DamagedError: it is damaged.
        MemberError: it is of another series by now.
    """
    model = read_packaged(champion.folder)
    # The folder was listed before it was read; a publish may have replaced the tree in between.
    if model.series != champion.series:
        raise MemberError(
            f"{champion.series}: {champion.folder} has become the folder of {model.series}; run the command again",
            code="replaced",
        )
    return model


def _check_clock(home: Path, series: SeriesId, issued_at: datetime) -> None:
    """Refuse a replay where the clock is behind a stored candle: its rows would count as made before their candles.

    Raises:
        MemberError: (code `clock`) that is so.
    """
    now, closed = datetime.now(UTC), None
    with suppress(CpbError):  # damaged candles after the forecast are reported when they are read
        # Only candles after the origin: the newest of them says what time it is at least.
        later = read_klines(home, series, since=issued_at, columns=["open_time"], confirmed=False)
        opened: datetime | None = later["open_time"].max()  # type: ignore[assignment]
        closed = opened and opened + timedelta(seconds=series.seconds)
    if closed is not None and closed > now + CLOCK_STEP:
        raise MemberError(
            f"{series}: the clock of this machine says {now:%Y-%m-%d %H:%M} UTC, but a candle is stored that closed at "
            f"{closed:%Y-%m-%d %H:%M}: set the clock, then forecast again",
            code="clock",
        )


def store_batch(
    home: Path, kind: Kind, rows: Mapping[SeriesId, pl.DataFrame]
) -> tuple[dict[SeriesId, int], list[Failure]]:
    """Append rows of one market; return the number of new rows by stored series, and the failures."""
    step: StepName = "forecast" if kind == "forecasts" else "score"
    new = append(home, next(iter(rows)).market, kind, rows) if rows else {}
    stored = {series: number for series, number in new.items() if isinstance(number, int)}
    return stored, [failure(s, step, error) for s, error in new.items() if isinstance(error, CpbError)]


def failure(series: SeriesId, step: StepName, error: BaseException) -> Failure:
    """Return the failure of one series; an unexpected error is also logged with its traceback."""
    reason = error if isinstance(error, cpbmodels.ModelError) else as_error(series, error)
    return Failure.of(series, step, reason)


class _CrossSections:
    """What the coins of a market and timeframe share at their newest candles, read when the first model needs it."""

    def __init__(self, scope: Scope) -> None:
        self._scope, self._lock = scope, Lock()
        self._known: dict[tuple[str, str], CrossSection | None] = {}

    def of(self, series: SeriesId) -> CrossSection | None:
        scope, key = self._scope, market_key(series)
        # Under the lock while it is read: other threads would read the same coins again, which takes
        # seconds.
        with self._lock:
            if key not in self._known:
                found = newest_cross_sections(scope.home, [key], since=scope.since, as_of=scope.as_of)
                self._known[key] = found.get(key)
            return self._known[key]


def _forecast(
    model: ServedModel, scope: Scope, reference: Reference | None, shared: _CrossSections
) -> pl.DataFrame:
    """Return a model's forecast from the newest stored candles of its series, as rows of the contract.

    Args:
        reference: the model's reference; the rows contain its quantiles for the same origin, null without a reference.

    Raises:
        MemberError: there are no candles in the scope.
        ModelError: too few candles for the model, or its forecast is not finite.
    """
    series = newest_series(scope.home, model.series, since=scope.since, as_of=scope.as_of)
    if NO_MARKET in model.config.features:
        series = replace(series, cross_section=shared.of(model.series))
    # after a gap: the forecast before it is already stored
    forecast = model.member().forecast(series, go_back=True)
    row, horizon = forecast.issued_row, len(forecast.candle)
    return contract_rows(
        model.series,
        model.model_version,
        issued_at=series.end_of(row),
        close=np.stack([forecast.close[q] for q in cpbmodels.QUANTILES]),
        candle=forecast.candle,
        last_close=forecast.last_close,
        weights_sha256=model.weights_sha256,
        standing=series.still_until(row),
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
    weights_sha256: str,
    standing: int,
    reference: np.ndarray | None = None,
) -> pl.DataFrame:
    """Return one forecast as rows of the contract, steps 1 … H; `made_at` is null, and set by `append`.

    Args:
        model_version: registered model and version, `cpb-BTCUSDT-1h/3`.
        issued_at: UTC end of the last candle used.
        close: float64 [19, H], the close's quantiles 0.05 … 0.95, in prices.
        candle: float64 [H, 4], the median candle's open, high, low, close, in prices.
        last_close: close of the last candle used.
        weights_sha256: of the model's weights.
        standing: number of candles that stand still, counted back from the last candle used.
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
        weights_sha256=pl.lit(weights_sha256),
        standing=pl.lit(standing),
        **{
            name: pl.lit(None) if reference is None else pl.Series(reference[i])
            for i, name in enumerate(REFERENCE_COLUMNS)
        },
    )
    return named.select(pl.col(name).cast(kind) for name, kind in FORECAST_SCHEMA.items())


def reference_of(model: ServedModel) -> Reference:
    """Return the reference of a model.

    Raises:
        MemberError: (code `reference`) its folder has no reference, or a damaged reference.
    """
    if model.reference:
        return model.reference
    why = model.reference_fault or "its model has no record of its reference"
    retrain = f"train it again, as in `cpb train-all {model.series.options}`"
    raise MemberError(f"{model.series}: {why}; {retrain}", code="reference")


def reference_prices(reference: Reference, series: Series, row: int, horizon: int) -> Array:
    """Return the reference's quantiles [19, H] of the closes after the candle in `row`, in prices."""
    # Log-returns from the last close, back to prices: exp of a quantile is the quantile of exp.
    moves = reference_quantiles(reference, series, np.asarray([row]))[0, :horizon]
    return np.ascontiguousarray(series.prices[row, 3] * np.exp(moves).T)
