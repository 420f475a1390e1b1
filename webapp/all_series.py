"""All series: the list of them, the overview with a row for each, and the health of the service."""

from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl

from schemas.errors import CpbError
from schemas.identity import MARKETS, SIM, SPOT, Market, SeriesId, market_option
from tasks.forecasting import months
from tasks.forecasting.months import IS_LIVE
from tasks.forecasting.outlook import rarely_touched
from tasks.forecasting.record import champion_records
from tasks.forecasting.staleness import refreshed_by
from tasks.forecasting.watch import alarms
from webapp import answers
from webapp.cache import drop_changed, until_files_change
from webapp.one_series import candle_rows, newest_chances
from webapp.recent import recent_fields
from webapp.runs import champions_of
from webapp.stored import all_stored, damaged, default_market, newest, record, too_old

SPARKLINE = 48
"""Closes in a row of the overview."""


def health(home: Path) -> answers.Health:
    """Return the number of series with forecasts, the newest forecast, and the stale series."""
    every = listed(home)
    # A demo beside real data must neither hide nor raise an alarm.
    shown = [info for info in every if not info.simulated] or every
    with_forecast = [info for info in shown if info.issued_at]
    served = [SeriesId(info.market, info.symbol, info.timeframe) for info in with_forecast or shown]
    stale = too_old(home, tuple(served)) | damaged(home)
    return answers.Health(
        status="empty" if not every else "stale" if stale else "ok",
        series=len(with_forecast),
        newest_forecast=max((info.issued_at for info in with_forecast if info.issued_at), default=None),
        stale=list(stale.values()),
        standing=[
            f"{series}: {note}" for series in served if (note := months.standing_note(newest(home, series)))
        ],
    )


def warm(home: Path) -> None:
    """Read what the first answers need, except for MLflow's store, which takes seconds."""
    # First, so that what is read now is cached for this state of the files.
    drop_changed(home)
    health(home)
    for series in all_stored(home):
        _close_fields(home, series)
        if len(newest(home, series)):
            _forecast_fields(home, series)


def listed(home: Path) -> list[answers.SeriesInfo]:
    """Return every series with forecasts or candles: series with forecasts first, real markets before simulated."""
    infos = [
        answers.SeriesInfo(
            **vars(series),
            issued_at=rows["issued_at"][0] if len(rows) else None,
            model_version=rows["model_version"][0] if len(rows) else None,
        )
        for series in all_stored(home)
        for rows in [newest(home, series)]
    ]
    return sorted(infos, key=lambda i: (i.issued_at is None, i.simulated, i.market != SPOT, i.market))


def overview(home: Path, market: Market) -> answers.Overview:
    """Return a row for each series of a market that has candles or forecasts, those with a forecast first."""
    everything = all_stored(home)
    of_market = [series for series in everything if series.market == market]
    ordered = sorted(of_market, key=lambda series: newest(home, series).is_empty())
    with_forecast = [series for series in ordered if len(newest(home, series))]
    # The page shows candles and forecasts also while MLflow's store cannot be read.
    served, unreadable = _served(market)
    records = champion_records(record(home, market))
    watched = {
        alarm.series: {"watch": alarm.state, "watch_reason": alarm.reason or None}
        for alarm in alarms(home, market)
    }
    stale, damages = too_old(home, tuple(with_forecast or of_market)), damaged(home)
    rows = [
        answers.OverviewRow(
            **vars(series),
            **(_forecast_fields(home, series) if series in with_forecast else {}),
            **_close_fields(home, series),
            **served.get(series, {}),
            **records.get(series, {}),
            **watched.get(series, {}),
            stale=(stale | damages).get(series),
            command=f"cpb {'forecast' if series in with_forecast else 'train-all'} {series.options}",
        )
        for series in ordered
    ]
    issued = months.series_with_forecasts(home)
    first = default_market(home)
    return answers.Overview(
        market=market,
        rows=rows,
        note=_missing(market, everything, with_forecast) or unreadable,
        stale=refreshed_by(home, [series for series in ordered if series in stale]) if stale else None,
        markets=[
            answers.MarketInfo(
                market=name,
                series=sum(series.market == name for series in everything),
                forecasts=sum(series.market == name for series in issued),
            )
            for name in sorted(MARKETS, key=lambda name: name != first)
            if any(series.market == name for series in everything)
        ],
    )


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
    if market != SIM and any(series.market == SIM for series in everything):
        text += ". What `cpb demo` has made is of the simulated market (market=sim), not of this one"
    return text


def _served(market: Market) -> tuple[dict[SeriesId, dict[str, Any]], str | None]:
    try:
        serving, _, old = champions_of(market)
    except CpbError as error:
        return {}, str(error)
    return {
        champion.series: {
            "architecture": champion.architecture or None,
            "champion": champion.model_version,
            "verdict": champion.verdict or None,
            "selected_on": champion.selected_on or None,
            "crps_ratio": champion.metrics.get("test_crps_ratio"),
        }
        for champion in serving
    }, old


def _forecast_fields(home: Path, series: SeriesId) -> dict[str, Any]:
    rows = newest(home, series)
    last = rows.row(-1, named=True)
    fields = {**recent_fields(home, series)}
    with suppress(CpbError):  # its model has no table of extremes, or another model serves now
        fields |= rarely_touched(newest_chances(home, series))
    read = ("issued_at", "made_at", "model_version", "q10", "q90", "standing")
    return fields | {
        **{name: last[name] for name in read},
        "live": rows.select(IS_LIVE)[0, 0],
        "origin_close": last["last_close"],
        # In percent of the last close: coins of any price stand in one column.
        "range_80_low": 100 * (last["q10"] / last["last_close"] - 1),
        "range_80_high": 100 * (last["q90"] / last["last_close"] - 1),
        "range_at": last["target_time"],
        "standing_note": months.standing_note(rows) or None,
    }


@until_files_change
def _close_fields(home: Path, series: SeriesId) -> dict[str, Any]:
    """Return the newest close, its change over a day and the sparkline; empty if no candle can be read."""
    a_day = max(86_400 // series.seconds, 1)
    try:
        rows = candle_rows(home, series, max(SPARKLINE, a_day + 1))
    except CpbError:  # missing or damaged, as reported by health and `cpb verify`
        return {}
    if rows.is_empty():
        return {}
    last = rows.row(-1, named=True)
    # Across a gap, and with weekly candles, the change would span several days.
    day_before = last["close_time"] - timedelta(days=1)
    step = timedelta(seconds=min(series.seconds, 86_400))
    before = rows.filter(pl.col("close_time").is_between(day_before - step, day_before, closed="right"))
    return {
        "last_close": last["close"],
        "closed_at": last["close_time"],
        "change_1d": 100 * (last["close"] / before["close"][-1] - 1) if len(before) else None,
        "sparkline": rows["close"].tail(SPARKLINE).to_list(),
    }
