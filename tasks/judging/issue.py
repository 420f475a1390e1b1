"""Issues forecasts: each champion, from the newest closed candles of its series, into the forecast store."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl

import cpbmodels
from schemas.errors import MemberError
from schemas.records import Failure
from schemas.scope import Scope
from schemas.universe import INTERVAL_SECONDS
from tasks.judging.forecast_store import append, forecast_rows
from tasks.signals.store import newest_series
from tasks.tracking.registry import Champion


@dataclass
class Issued:
    """New rows, rows that stand (new or there already), series forecast, and what failed."""

    rows: int = 0
    standing: int = 0
    series: int = 0
    failures: list[Failure] = field(default_factory=list)


def issue_forecasts(scope: Scope, champions: Sequence[Champion], provisional: bool = False) -> Issued:
    """Forecast the champions of the scope; one series' failure leaves the others' forecasts in place.

    `provisional` reads on into the newest candles that `ingest --tail` fetched.
    """
    issued = Issued()
    for champion in champions:
        try:
            rows = _forecast(scope, champion, provisional)
            issued.rows += append(scope.home, rows)
            issued.standing += len(rows)
            issued.series += 1
        except (MemberError, cpbmodels.ModelError) as error:
            issued.failures.append(
                Failure(
                    symbol=champion.symbol, timeframe=champion.timeframe, step="forecast", reason=str(error)
                )
            )
    return issued


def _forecast(scope: Scope, champion: Champion, provisional: bool) -> pl.DataFrame:
    series = newest_series(
        scope.home,
        champion.symbol,
        champion.timeframe,
        since=scope.since,
        as_of=scope.as_of,
        market=scope.market,
        provisional=provisional,
    )
    forecast = cpbmodels.load(champion.folder).forecast(series)
    step = INTERVAL_SECONDS[champion.timeframe]
    return forecast_rows(
        champion.symbol,
        champion.timeframe,
        champion.model_version,
        issued_at=_end_of(series, forecast.issued_row, step),
        step_seconds=step,
        close=np.stack([forecast.close[q] for q in cpbmodels.QUANTILES]),
        candle=forecast.candle,
        last_close=forecast.last_close,
    )


def _end_of(series: cpbmodels.Series, row: int, step_seconds: int) -> datetime:
    assert series.times is not None
    opened = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(series.times[row]))
    return opened + timedelta(seconds=step_seconds)
