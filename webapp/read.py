"""Reads the stored candles, forecasts and scores, through `tasks`; writes nothing."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl

from cpbmodels.data import INTERVAL_SECONDS
from cpbmodels.data.touch import Touch
from schemas.coins import COINS, coins_label, symbol_of
from schemas.errors import CpbError, DamagedError, MemberError
from schemas.identity import MARKETS, SIM, SPOT, Market, SeriesId, market_option, options_of, stored_series
from tasks.forecasting import months
from tasks.forecasting.months import IS_LIVE, forecast_command, month_files
from tasks.forecasting.record import champion_records, read_summary
from tasks.forecasting.score import newest_scored
from tasks.forecasting.touch_chances import stops, touch_of, touched
from tasks.forecasting.watch import BETWEEN_RUNS, alarms, find_stale, newest_close, newest_month
from tasks.market.klines import read_klines, with_source
from webapp import answers
from webapp.kept import kept, look
from webapp.runs import champions_of, identity

SPARKLINE = 48
"""Closes in a row of the overview."""

STOPS = (0.25, 0.1, 0.05)
"""Chances of which the prices are marked in the chart."""

closed_at, record = kept(newest_close), kept(read_summary)
"""A series' newest candle's close; the record of a market as of the last scoring."""

CANDLE = ("open", "high", "low", "close", "volume")


@kept
def _newest(home: Path, series: SeriesId) -> tuple[pl.DataFrame, str]:
    try:
        return months.latest(home, series), ""
    except DamagedError as error:
        return pl.DataFrame(schema=months.FORECASTS.schema), str(error)


def newest(home: Path, series: SeriesId) -> pl.DataFrame:
    """Return the newest forecast of a series; empty if there is none, or its month is `damaged`."""
    return _newest(home, series)[0]


def damaged(home: Path) -> dict[SeriesId, str]:
    """Return the damage of the newest forecasts, by series."""
    return {series: text for series in _stored(home) if (text := _newest(home, series)[1])}


def health(home: Path) -> answers.Health:
    """Return the number of series with forecasts, the newest forecast, and the stale series."""
    every = all_series(home)
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
    look(home)
    health(home)
    for series in _stored(home):
        _close_fields(home, series)


def too_old(home: Path, series: tuple[SeriesId, ...]) -> dict[SeriesId, str]:
    """Return a message for each series whose newest candle or forecast is too old."""
    late = find_stale(home, series, grace=BETWEEN_RUNS, read_close=closed_at, read_forecast=newest)
    return {stale.series: f"{stale.finding}; {mend(home, [stale.series])}" for stale in late}


def mend(home: Path, series: Sequence[SeriesId]) -> str:
    """Return how stale series of one market are renewed, as a clause that names the command.

    `cpb forecast` fetches candles too; `cpb ingest` is enough for series that are not forecast.
    """
    command = "ingest" if newest(home, series[0]).is_empty() else "forecast"
    return f"refresh {'it' if len(series) == 1 else 'them'} with " + with_source(
        f"cpb {command} {options_of(series)}", series[0].market
    )


def all_series(home: Path) -> list[answers.SeriesInfo]:
    """Return every series with forecasts or candles: series with forecasts first, real markets before simulated."""
    infos = [
        answers.SeriesInfo(
            **identity(series),
            issued_at=rows["issued_at"][0] if len(rows) else None,
            model_version=rows["model_version"][0] if len(rows) else None,
        )
        for series in _stored(home)
        for rows in [newest(home, series)]
    ]
    return sorted(infos, key=lambda i: (i.issued_at is None, i.simulated, i.market != SPOT, i.market))


@kept
def _stored(home: Path) -> list[SeriesId]:
    """Return every series with forecasts or candles, in order of symbol and length; monthly candles are left out."""
    every = {*months.series_with_forecasts(home), *stored_series(home, "klines")}
    return sorted((s for s in every if s.timeframe in INTERVAL_SECONDS), key=lambda s: (s.symbol, s.seconds))


def default_market(home: Path) -> Market:
    """Return the default market of a request: the first real market in the store, else the simulator.

    Simulated forecasts are never shown as real: if there are real candles, they must be requested by `market=sim`.
    """
    return min({series.market for series in _stored(home)}, key=MARKETS.index, default="spot")


def forecast_at(home: Path, series: SeriesId, issued_at: datetime | None = None) -> pl.DataFrame:
    """Return the rows of the forecast issued at an instant, default the newest.

    Raises:
        MemberError: there is none.
        DamagedError: a month that holds it.
    """
    rows = months.latest(home, series, issued_at) if issued_at else newest(home, series)
    if not rows.is_empty() and issued_at in (None, rows["issued_at"][0]):
        return rows
    if issued_at is None or newest(home, series).is_empty():
        raise _no_forecast(home, series)
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
    """Return the chances that prices are reached; raises `MemberError` if the series has no forecast."""
    fields: dict[str, Any] = {"market": series.market, **forecast_at(home, series).row(0, named=True)}
    try:
        rows, chances = _touch_of(home, series)
        fields |= {"touch": list(touched(rows, chances, prices)), "stops": list(stops(rows, chances, STOPS))}
    except MemberError as error:
        fields["note"] = str(error)
    return answers.Touch(**fields)


@kept
def _touch_of(home: Path, series: SeriesId) -> tuple[pl.DataFrame, Touch]:
    return (rows := newest(home, series)), touch_of(home, series, rows)


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
    frame = read_klines(home, series, since=since, as_of=until, columns=columns, confirmed=False)
    if since and len(frame) < limit:
        frame = read_klines(home, series, as_of=until, columns=columns, confirmed=False)
    close_time = (pl.col("open_time") + step).alias("close_time")
    return frame.tail(limit).select("open_time", close_time, *CANDLE)


def check_coin(home: Path, series: SeriesId) -> None:
    """Raise `MemberError` for a coin of which nothing is stored and which the default universe lacks."""
    symbols = {stored.symbol for stored in _stored(home)}
    if series.symbol in symbols or series.symbol in map(symbol_of, COINS):
        return
    there = f", only of {coins_label(sorted(symbols))}" if symbols else ""
    raise MemberError(f"the coin {series.symbol} is unknown: nothing of it is stored{there}; check the name")


def _no_forecast(home: Path, series: SeriesId) -> MemberError:
    return MemberError(
        damaged(home).get(series)
        or f"no forecast of {series} is stored; make one with `{forecast_command(series)}`"
    )


def scored(home: Path, series: SeriesId, limit: int) -> tuple[answers.Ledger, str, pl.DataFrame]:
    """Return the record of a series as of the last scoring, and the newest `limit` scored rows, its `rows`.

    Raises:
        MemberError: the series has no forecast.
    """
    if not month_files(series.folder(home, "forecasts")):
        raise _no_forecast(home, series)
    of_market = record(home, series.market)
    entries = [
        answers.RecordEntry(**entry.model_dump())
        for entry in (of_market.entries if of_market else ())
        if entry.timeframe == series.timeframe and (entry.symbol == series.symbol or entry.kind == "pooled")
    ]
    of_series = [entry for entry in entries if entry.kind == "series"]
    rows = newest_scored(home, series, limit)[list(answers.LedgerRow.model_fields)]
    ledger = answers.Ledger(
        **identity(series),
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


def overview(home: Path, market: Market) -> answers.Overview:
    """Return a row for each series of a market that has candles or forecasts, those with a forecast first."""
    everything = _stored(home)
    of_market = [series for series in everything if series.market == market]
    ordered = sorted(of_market, key=lambda series: newest(home, series).is_empty())
    with_forecast = [series for series in ordered if len(newest(home, series))]
    served, unreadable = _served(market)
    records = champion_records(record(home, market))
    watched = {
        alarm.series: {"watch": alarm.state, "watch_reason": alarm.reason or None}
        for alarm in alarms(home, market)
    }
    stale, damages = too_old(home, tuple(with_forecast or of_market)), damaged(home)
    rows = [
        answers.OverviewRow(
            **identity(series),
            **_forecast_fields(newest(home, series)),
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
        stale=mend(home, [series for series in ordered if series in stale]) if stale else None,
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


def _forecast_fields(rows: pl.DataFrame) -> dict[str, Any]:
    if rows.is_empty():
        return {}
    last = rows.row(-1, named=True)
    return {
        "issued_at": last["issued_at"],
        "made_at": last["made_at"],
        "live": rows.select(IS_LIVE)[0, 0],
        "model_version": last["model_version"],
        "range_80_low": 100 * (last["q10"] / last["last_close"] - 1),
        "range_80_high": 100 * (last["q90"] / last["last_close"] - 1),
        "range_at": last["target_time"],
        "standing": last["standing"],
        "standing_note": months.standing_note(rows) or None,
    }


@kept
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
