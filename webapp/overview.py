"""Overview of all series of a market: newest close, forecast, champion, live record, and stale data."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl

from schemas.errors import CpbError
from schemas.identity import INTERVAL_SECONDS, MARKETS, SIM, Market, SeriesId, market_option, stored_series
from tasks.forecasting import months
from tasks.forecasting.drift import alarms
from tasks.forecasting.record import champion_records
from webapp import registry
from webapp.answers import MarketInfo, Overview, OverviewRow
from webapp.reading import candle_rows, default_market, identity, mend, newest, summary, too_old
from webapp.replies import Answer, kept_while, series_state

SPARKLINE = 48
"""Closes in a row's sparkline."""


def overview(home: Path, market: Market) -> Answer:
    """Return a row for each series of a market that has candles or forecasts, those with a forecast first."""
    everything = _stored(home)
    of_market = [s for s in everything if s.market == market and s.timeframe in INTERVAL_SECONDS]
    with_forecast = [s for s in of_market if not newest(home, s).is_empty()]
    ordered = sorted(of_market, key=lambda s: (s not in with_forecast, s.symbol, s.seconds))
    served, unknown = _champions(market)
    records = champion_records(summary(home, market))
    watched = {found.series: found for found in alarms(home, market)}
    stale = too_old(home, tuple(with_forecast or of_market))
    rows = [
        OverviewRow(
            **identity(one),
            **_forecast(newest(home, one)),
            **_closes(home, one),
            **served.get(one, {}),
            **records.get(one, {}),
            watch=watched[one].state if one in watched else None,
            watch_reason=watched[one].reason or None if one in watched else None,
            stale=stale.get(one),
            command=f"cpb {'forecast' if one in with_forecast else 'train-all'} {one.options}",
        )
        for one in ordered
    ]
    note = _missing(market, everything, with_forecast) or unknown
    advice = mend(home, [one for one in ordered if one in stale]) if stale else None
    markets = _markets(home, everything)
    return Answer(Overview(market=market, rows=rows, note=note, stale=advice, markets=markets), "rows")


def _stored(home: Path) -> list[SeriesId]:
    return sorted({*months.series_with_forecasts(home), *stored_series(home, "klines")})


def _markets(home: Path, everything: list[SeriesId]) -> list[MarketInfo]:
    with_forecast = months.series_with_forecasts(home)
    first = default_market(home)
    found = {market: [s for s in everything if s.market == market] for market in MARKETS}
    return [
        MarketInfo(
            market=market,
            series=len(found[market]),
            forecasts=sum(s.market == market for s in with_forecast),
        )
        for market in sorted(MARKETS, key=lambda m: (m != first, MARKETS.index(m)))
        if found[market]
    ]


def _missing(market: Market, everything: list[SeriesId], with_forecast: list[SeriesId]) -> str | None:
    """Return a message on how to get a forecast for this market; None if there are forecasts."""
    if with_forecast:
        return None
    if not everything:
        return "nothing is stored yet; run `cpb demo` (simulated market) or `cpb train-all`"
    text = (
        f"there are no forecasts of market {market} yet; `cpb train-all{market_option(market)}` "
        "trains on its candles and forecasts"
    )
    if market != SIM and any(s.market == SIM for s in everything):
        text += ". What `cpb demo` has made is of the simulated market (market=sim), not of this one"
    return text


def _champions(market: Market) -> tuple[dict[SeriesId, dict[str, Any]], str | None]:
    try:
        served, _ = registry.champions_of(market)
    except CpbError as error:
        return {}, str(error)
    return {
        one.series: {
            "architecture": one.architecture or None,
            "champion": one.model_version,
            "verdict": one.verdict or None,
            "selected_on": one.selected_on or None,
            "crps_ratio": one.metrics.get("test_crps_ratio"),
        }
        for one in served
    }, None


def _forecast(rows: pl.DataFrame) -> dict[str, Any]:
    if rows.is_empty():
        return {}
    first, last = rows.row(0, named=True), rows.row(-1, named=True)
    return {
        "issued_at": last["issued_at"],
        "made_at": last["made_at"],
        "live": last["made_at"] is not None and last["made_at"] < first["target_time"],
        "model_version": last["model_version"],
        "range_80_low": 100 * (last["q10"] / last["last_close"] - 1),
        "range_80_high": 100 * (last["q90"] / last["last_close"] - 1),
        "range_at": last["target_time"],
    }


@kept_while(lambda home, series: series_state(home, series, "klines", "provisional"), 1000)
def _closes(home: Path, series: SeriesId) -> dict[str, Any]:
    """Return the newest close, its change over a day and the sparkline; empty if no candle can be read."""
    a_day = max(86_400 // series.seconds, 1)
    try:
        candles = candle_rows(home, series, max(SPARKLINE, a_day + 1))
    except CpbError:  # missing or damaged, as reported by health and `cpb verify`
        return {}
    if candles.is_empty():
        return {}
    last = candles.row(-1, named=True)
    # Across a gap, and with weekly candles, the change would span several days.
    day_before = last["close_time"] - timedelta(days=1)
    step = timedelta(seconds=min(series.seconds, 86_400))
    before = candles.filter(pl.col("close_time").is_between(day_before - step, day_before, closed="right"))
    return {
        "last_close": last["close"],
        "closed_at": last["close_time"],
        "change_1d": 100 * (last["close"] / before["close"][-1] - 1) if len(before) else None,
        "sparkline": candles["close"].tail(SPARKLINE).to_list(),
    }
