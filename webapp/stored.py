"""Which series are stored, their newest forecasts, and what of them is too old or damaged; writes nothing."""

from pathlib import Path

import polars as pl

from cpbmodels.data import INTERVAL_SECONDS
from schemas.coins import COINS, coins_label, symbol_of
from schemas.errors import DamagedError, MemberError
from schemas.identity import MARKETS, Market, SeriesId, stored_series
from tasks.forecasting import months
from tasks.forecasting.months import forecast_command
from tasks.forecasting.record import read_summary
from tasks.forecasting.staleness import BETWEEN_RUNS, find_stale, newest_close, stale_sentence
from webapp.cache import until_files_change

closed_at, record = until_files_change(newest_close), until_files_change(read_summary)
"""A series' newest candle's close; the record of a market as of the last scoring."""


@until_files_change
def _newest(home: Path, series: SeriesId) -> tuple[pl.DataFrame, str]:
    # The damage is cached with the result: each page would otherwise read and hash the file again.
    try:
        return months.latest(home, series), ""
    except DamagedError as error:
        return pl.DataFrame(schema=months.FORECASTS.schema), str(error)


def newest(home: Path, series: SeriesId) -> pl.DataFrame:
    """Return the newest forecast of a series; empty if there is none, or its month is `damaged`."""
    return _newest(home, series)[0]


def damaged(home: Path) -> dict[SeriesId, str]:
    """Return the damage of the newest forecasts, by series."""
    return {series: text for series in all_stored(home) if (text := _newest(home, series)[1])}


def too_old(home: Path, series: tuple[SeriesId, ...]) -> dict[SeriesId, str]:
    """Return a message for each series whose newest candle or forecast is too old."""
    # The cached readers: an overview asks for the close of every series.
    late = find_stale(home, series, grace=BETWEEN_RUNS, read_close=closed_at, read_forecast=newest)
    return {stale.series: stale_sentence(home, [stale]) for stale in late}


@until_files_change
def all_stored(home: Path) -> list[SeriesId]:
    """Return every series with forecasts or candles, in order of symbol and length; monthly candles are left out."""
    every = {*months.series_with_forecasts(home), *stored_series(home, "klines")}
    return sorted((s for s in every if s.timeframe in INTERVAL_SECONDS), key=lambda s: (s.symbol, s.seconds))


def default_market(home: Path) -> Market:
    """Return the default market of a request: the first real market in the store, else the simulator.

    Simulated forecasts are never shown as real: if there are real candles, they must be requested by `market=sim`.
    """
    return min({series.market for series in all_stored(home)}, key=MARKETS.index, default="spot")


def check_coin(home: Path, series: SeriesId) -> None:
    """Raise `MemberError` for a coin of which nothing is stored and which the default universe lacks."""
    # Of all markets: a coin that exists in another one is no typing error.
    symbols = {stored.symbol for stored in all_stored(home)}
    if series.symbol in symbols or series.symbol in map(symbol_of, COINS):
        return
    there = f", only of {coins_label(sorted(symbols))}" if symbols else ""
    raise MemberError(f"the coin {series.symbol} is unknown: nothing of it is stored{there}; check the name")


def no_forecast(home: Path, series: SeriesId) -> MemberError:
    """Return the error of a series without a forecast: its damage, or the command that makes one."""
    return MemberError(
        damaged(home).get(series)
        or f"no forecast of {series} is stored; make one with `{forecast_command(series)}`"
    )
