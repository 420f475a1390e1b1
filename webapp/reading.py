"""Reads the API's data of a series through `tasks`; writes nothing, and computes only from stored results."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl

from schemas.errors import MemberError
from schemas.identity import (
    COINS,
    INTERVAL_SECONDS,
    MARKETS,
    SIM,
    SPOT,
    Market,
    SeriesId,
    coins_label,
    options_of,
    stored_series,
    symbol_of,
)
from schemas.ledger import LedgerSummary as LiveRecord
from tasks.forecasting import months
from tasks.forecasting.drift import alarms
from tasks.forecasting.months import forecast_command, month_files
from tasks.forecasting.record import read_summary
from tasks.forecasting.score import newest_scored
from tasks.forecasting.staleness import BETWEEN_RUNS, find_stale, newest_month, with_source
from tasks.market.klines import read_klines
from webapp.answers import (
    Candles,
    Forecast,
    Forecasts,
    Health,
    Ledger,
    LedgerRow,
    LedgerSummary,
    RecordEntry,
    SeriesInfo,
)
from webapp.replies import Answer, State, kept_while, market_state, series_state, tree_state

CANDLE = ("open", "high", "low", "close", "volume")


def health(home: Path) -> Health:
    """Return the number of series with forecasts, the newest forecast, and the stale series."""
    known = all_series(home)
    shown = [s for s in known if not s.simulated] or known
    issued = [s.issued_at for s in shown if s.issued_at]
    served = [SeriesId(s.market, s.symbol, s.timeframe) for s in [s for s in shown if s.issued_at] or shown]
    stale = too_old(home, tuple(served))
    return Health(
        status="empty" if not known else "stale" if stale else "ok",
        series=len(issued),
        newest_forecast=max(issued, default=None),
        stale=[stale[one] for one in served if one in stale],
    )


def _candles_and_forecasts(home: Path, _series: tuple[SeriesId, ...]) -> State:
    minute = int(datetime.now(UTC).timestamp() // 60)
    return minute, *(tree_state(home, tree) for tree in ("klines", "provisional", "forecasts"))


@kept_while(_candles_and_forecasts, 16)
def too_old(home: Path, series: tuple[SeriesId, ...]) -> dict[SeriesId, str]:
    """Return a message for each series whose newest candle or forecast is too old."""
    found = find_stale(home, series, grace=BETWEEN_RUNS)
    return {one.series: f"{one.finding}; {mend(home, [one.series])}" for one in found}


def mend(home: Path, series: Sequence[SeriesId]) -> str:
    """Return how stale series of one market are renewed, as a clause that names the command.

    `cpb forecast` fetches candles too; `cpb ingest` is enough for series that are not forecast.
    """
    command = "ingest" if newest(home, series[0]).is_empty() else "forecast"
    return f"refresh {'it' if len(series) == 1 else 'them'} with " + with_source(
        f"cpb {command} {options_of(series)}", series[0].market
    )


def all_series(home: Path) -> list[SeriesInfo]:
    """Return every series with forecasts or candles: series with forecasts first, real markets before simulated."""
    with_forecast = set(months.series_with_forecasts(home))
    known = with_forecast.union(stored_series(home, "klines"))
    # the page does not support monthly candles
    ordered = sorted(
        (s for s in known if s.timeframe in INTERVAL_SECONDS),
        key=lambda s: (
            s not in with_forecast,
            s.market == SIM,
            s.market != SPOT,
            s.market,
            s.symbol,
            s.seconds,
        ),
    )
    return [_info(home, series) for series in ordered]


def default_market(home: Path) -> Market:
    """Return the default market of a request: the first real market in the store, else the simulator.

    Simulated forecasts are never shown as real: if there are real candles, they must be requested by `market=sim`.
    """
    stored = {s.market for tree in ("forecasts", "klines") for s in stored_series(home, tree)}
    return min(stored, key=MARKETS.index, default="spot")


@kept_while(lambda home, series: series_state(home, series, "forecasts"), 1000)
def newest(home: Path, series: SeriesId) -> pl.DataFrame:
    """Return the rows of the newest forecast, or an empty frame; cached while the series' files are unchanged."""
    return months.latest(home, series)


def forecast_at(home: Path, series: SeriesId, issued_at: datetime | None = None) -> pl.DataFrame:
    """Return the rows of the forecast issued at an instant, default the newest; raises `MemberError` without one."""
    rows = months.latest(home, series, issued_at) if issued_at else newest(home, series)
    if not rows.is_empty() and issued_at in (None, rows["issued_at"][0]):
        return rows
    if issued_at is None or newest(home, series).is_empty():
        raise _no_forecast(home, series)
    raise MemberError(
        f"no forecast of {series} was issued at {issued_at:%Y-%m-%dT%H:%M:%SZ}; "
        f"/api/forecasts/{series.symbol}/{series.timeframe} lists those that were"
    )


def forecast(home: Path, series: SeriesId, issued_at: datetime | None = None) -> Answer:
    """Return a forecast; arguments and errors as in `forecast_at`."""
    rows = forecast_at(home, series, issued_at)
    first = rows.row(0, named=True)
    head = {k: first[k] for k in ("symbol", "timeframe", "issued_at", "model_version", "last_close")}
    return Answer(Forecast(market=series.market, **head, steps=rows.drop(*head).to_dicts()), "steps")


def forecasts(home: Path, series: SeriesId, limit: int, until: datetime | None = None) -> Answer:
    """Return the issue times of the newest `limit` forecasts; raises `MemberError` if the series has no forecast."""
    if newest(home, series).is_empty():
        raise _no_forecast(home, series)
    rows = months.issues(home, series, limit, until)
    return Answer(Forecasts(**identity(series), forecasts=[]), "forecasts", rows)


def candle_rows(home: Path, series: SeriesId, limit: int, until: datetime | None = None) -> pl.DataFrame:
    """Return the newest `limit` candles that close by `until`; raises `MemberError` if there are none."""
    step = timedelta(seconds=series.seconds)
    columns = ["open_time", *CANDLE]
    since = newest_month(home, series, until)
    if since:
        # Gaps leave fewer than `limit` candles in the window; twice its length plus a month is nearly always enough.
        since -= 2 * limit * step + timedelta(days=31)
    frame = read_klines(home, series, since=since, as_of=until, columns=columns, confirmed=False)
    if since and len(frame) < limit:
        frame = read_klines(home, series, as_of=until, columns=columns, confirmed=False)
    close_time = (pl.col("open_time") + step).alias("close_time")
    return frame.tail(limit).select("open_time", close_time, *CANDLE)


def unknown_coin(home: Path, series: SeriesId) -> MemberError | None:
    """Return the error for a coin of which nothing is stored and which the default universe lacks; None if known."""
    known = {one.symbol for tree in ("klines", "forecasts") for one in stored_series(home, tree)}
    if series.symbol in known or series.symbol in map(symbol_of, COINS):
        return None
    there = f", only of {coins_label(sorted(known))}" if known else ""
    return MemberError(f"the coin {series.symbol} is unknown: nothing of it is stored{there}; check the name")


def candles(home: Path, series: SeriesId, limit: int, until: datetime | None = None) -> Answer:
    """Return candles; arguments and errors as in `candle_rows`."""
    if unknown := unknown_coin(home, series):
        raise unknown
    return Answer(Candles(**identity(series), candles=[]), "candles", candle_rows(home, series, limit, until))


def scored(home: Path, series: SeriesId, limit: int) -> Answer:
    """Return the record of a series as of the last scoring, and the newest `limit` scored rows.

    Raises:
        MemberError: the series has no forecast.
    """
    if not month_files(series.folder(home, "forecasts")):
        raise _no_forecast(home, series)
    known = summary(home, series.market)
    record = [
        RecordEntry(**entry.model_dump())
        for entry in (known.entries if known else ())
        if entry.timeframe == series.timeframe and (entry.symbol == series.symbol or entry.kind == "pooled")
    ]
    own = [entry for entry in record if entry.kind == "series"]
    head = Ledger(
        **identity(series),
        watch=next((found for found in alarms(home, series.market) if found.series == series), None),
        summary=_hit_rates(own),
        live=_hit_rates([entry for entry in own if entry.live]),
        recorded_at=known.made_at if known else None,
        record=record,
        rows=[],
    )
    return Answer(head, "rows", newest_scored(home, series, limit).select(list(LedgerRow.model_fields)))


@kept_while(market_state, 8)
def summary(home: Path, market: Market) -> LiveRecord | None:
    """Return a market's record as of the last scoring; cached while unchanged, as reading it takes 20 ms."""
    return read_summary(home, market)


def identity(series: SeriesId) -> dict[str, Any]:
    """Return the first fields of every response about a series."""
    return {"market": series.market, "symbol": series.symbol, "timeframe": series.timeframe}


def _no_forecast(home: Path, series: SeriesId) -> MemberError:
    if unknown := unknown_coin(home, series):
        return unknown
    return MemberError(f"no forecast of {series} is stored; make one with `{forecast_command(series)}`")


def _hit_rates(entries: list[RecordEntry]) -> LedgerSummary:
    """Return the mean rates of several entries, weighted by their rows."""
    scored = sum(entry.rows for entry in entries)

    def mean(name: str) -> float | None:
        known = [(value, entry.rows) for entry in entries if (value := getattr(entry, name)) is not None]
        total = sum(weight for _, weight in known)
        return sum(value * weight for value, weight in known) / total if total else None

    names = ("crps", "coverage_50", "coverage_80", "coverage_90", "directional_accuracy")
    return LedgerSummary(
        scored=scored,
        forecasts=sum(entry.forecasts for entry in entries),
        **{name: mean(name) for name in names},  # type: ignore[arg-type]
    )


def _info(home: Path, series: SeriesId) -> SeriesInfo:
    rows = newest(home, series)
    issued, version = (rows["issued_at"][0], rows["model_version"][0]) if len(rows) else (None, None)
    return SeriesInfo(**identity(series), issued_at=issued, model_version=version)
