"""One series: its forecasts, candles, chances of prices, and scores; writes nothing."""

from base64 import b64encode
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl

from schemas.errors import MemberError
from schemas.identity import SeriesId
from tasks.forecasting import months
from tasks.forecasting.months import month_files
from tasks.forecasting.price_chances import PriceChances, chances_of
from tasks.forecasting.score import newest_scored
from tasks.forecasting.staleness import newest_month
from tasks.forecasting.watch import alarms
from tasks.market.klines import read_klines
from webapp import answers
from webapp.cache import until_files_change
from webapp.stored import newest, no_forecast, record

STOPS = (0.25, 0.1, 0.05)
"""Chances of which the prices are marked in the chart."""

A = TypeVar("A", bound=answers.OfPrices)

CANDLE = ("open", "high", "low", "close", "volume")


def forecast_at(home: Path, series: SeriesId, issued_at: datetime | None = None) -> pl.DataFrame:
    """Return the rows of the forecast issued at an instant, default the newest.

    Raises:
        MemberError: there is none.
        DamagedError: a month that holds it.
    """
    rows = months.latest(home, series, issued_at) if issued_at else newest(home, series)
    # The newest issued by then may be an earlier one: only the very time asked for is an answer.
    if not rows.is_empty() and issued_at in (None, rows["issued_at"][0]):
        return rows
    if issued_at is None or newest(home, series).is_empty():
        raise no_forecast(home, series)
    raise MemberError(
        f"no forecast of {series} was issued at {issued_at:%Y-%m-%dT%H:%M:%SZ}; "
        f"/api/forecasts/{series.symbol}/{series.timeframe} lists those that were"
    )


def forecast(home: Path, series: SeriesId, issued_at: datetime | None = None) -> answers.Forecast:
    """Return a forecast; arguments and errors as in `forecast_at`."""
    rows = forecast_at(home, series, issued_at)
    fields = {"standing_note": months.standing_note(rows) or None, "steps": rows.rows(named=True)}
    return answers.Forecast(market=series.market, **rows.row(0, named=True), **fields)


def touch(home: Path, series: SeriesId, prices: Sequence[float]) -> answers.Touch:
    """Return the chances that prices are reached; errors as in `_answered`."""
    return _answered(
        home, series, answers.Touch, lambda of: {"touch": of.touch(prices), "stops": of.stops(STOPS)}
    )


def first(home: Path, series: SeriesId, target: float, stop: float) -> answers.First:
    """Return the chances that a target, and that a stop, is reached first; errors as in `_answered`.

    Raises:
        UsageError: the prices do not lie on opposite sides of the last close.
    """
    return _answered(home, series, answers.First, lambda of: {"first": of.first(target, stop)})


def above(home: Path, series: SeriesId, prices: Sequence[float]) -> answers.Above:
    """Return the chances of closes above prices; errors as in `_answered`."""
    return _answered(home, series, answers.Above, lambda of: {"above": of.above(prices)})


def table(home: Path, series: SeriesId) -> answers.Table:
    """Return the table of extremes that the chances are read from; errors as in `_answered`."""

    def arrays(of: PriceChances) -> dict[str, Any]:
        return {name: _values(array) for name, array in vars(of.table()).items() if array is not None}

    return _answered(home, series, answers.Table, arrays)


def _values(array: np.ndarray) -> dict[str, Any]:
    data = array.astype(array.dtype.newbyteorder("<")).tobytes()
    return {"dtype": array.dtype.name, "shape": array.shape, "data": b64encode(data).decode()}


def _answered(
    home: Path, series: SeriesId, kind: type[A], ask: Callable[[PriceChances], dict[str, Any]]
) -> A:
    """Return an answer of the newest forecast, or why there is none; raises `MemberError` without a forecast."""
    fields: dict[str, Any] = {"market": series.market, **forecast_at(home, series).row(0, named=True)}
    try:
        fields |= ask(newest_chances(home, series))
    except MemberError as error:
        fields["note"] = str(error)
    return kind(**fields)


@until_files_change
def newest_chances(home: Path, series: SeriesId) -> PriceChances:
    """Return the chances of the newest forecast, which exists; errors as in `price_chances.chances_of`."""
    return chances_of(home, series, newest(home, series))


def forecasts(home: Path, series: SeriesId, limit: int, until: datetime | None = None) -> pl.DataFrame:
    """Return `answers.IssuedForecast` of the newest `limit`; raises `MemberError` if the series has no forecast."""
    forecast_at(home, series)  # raises without one
    return months.issues(home, series, limit, until)[list(answers.IssuedForecast.model_fields)]


def candle_rows(home: Path, series: SeriesId, limit: int, until: datetime | None = None) -> pl.DataFrame:
    """Return the newest `limit` candles that close by `until`; raises `MemberError` if there are none."""
    step = timedelta(seconds=series.seconds)
    columns = ["open_time", *CANDLE]
    since = newest_month(home, series, until)
    if since:
        # Gaps leave fewer than `limit` candles in the window; twice its length plus a month is nearly always enough.
        since -= 2 * limit * step + timedelta(days=31)
    # From the newest months only: years of hourly candles take tenths of a second.
    frame = read_klines(home, series, since=since, as_of=until, columns=columns, confirmed=False)
    if since and len(frame) < limit:
        frame = read_klines(home, series, as_of=until, columns=columns, confirmed=False)
    close_time = (pl.col("open_time") + step).alias("close_time")
    return frame.tail(limit).select("open_time", close_time, *CANDLE)


def scored(home: Path, series: SeriesId, limit: int) -> tuple[answers.Ledger, str, pl.DataFrame]:
    """Return the record of a series as of the last scoring, and the newest `limit` scored rows, its `rows`.

    Raises:
        MemberError: the series has no forecast.
    """
    if not month_files(series.folder(home, "forecasts")):
        raise no_forecast(home, series)
    of_market = record(home, series.market)
    entries = [
        answers.RecordEntry(**entry.model_dump())
        for entry in (of_market.entries if of_market else ())
        if entry.timeframe == series.timeframe and (entry.symbol == series.symbol or entry.kind == "pooled")
    ]
    # Of the series, not of versions: these would count each row twice.
    of_series = [entry for entry in entries if entry.kind == "series"]
    rows = newest_scored(home, series, limit)[list(answers.LedgerRow.model_fields)]
    ledger = answers.Ledger(
        **vars(series),
        watch=next((alarm for alarm in alarms(home, series.market) if alarm.series == series), None),
        summary=_hit_rates(of_series),
        live=_hit_rates([entry for entry in of_series if entry.live]),
        recorded_at=of_market.made_at if of_market else None,
        record=entries,
        rows=[],
    )
    return ledger, "rows", rows


def _hit_rates(entries: list[answers.RecordEntry]) -> answers.LedgerSummary:
    """Return the mean rates of several entries, weighted by their rows."""

    def mean(name: str) -> float | None:
        values = [(value, entry.rows) for entry in entries if (value := getattr(entry, name)) is not None]
        total = sum(weight for _, weight in values)
        return sum(value * weight for value, weight in values) / total if total else None

    rates = ("crps", "coverage_50", "coverage_80", "coverage_90", "directional_accuracy")
    return answers.LedgerSummary(
        scored=sum(entry.rows for entry in entries),
        forecasts=sum(entry.forecasts for entry in entries),
        **{name: mean(name) for name in rates},
    )
