"""Data that is too old: candles and forecasts more than two intervals behind what Binance has published.

Candles of the REST API (`--tail`) are available as soon as they close; a day's file is published up to six hours after
the day's end. Simulated data is never too old, and neither is a coin that has stopped trading.
"""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import polars as pl

from cpbmodels.data import INTERVAL_SECONDS
from schemas.errors import MINUTE, CpbError
from schemas.identity import APART, SIM, SeriesId, market_option, options_of
from tasks.forecasting.months import FORECASTS, latest, month_files
from tasks.market.klines import read_klines, with_source
from tasks.storage.urls import public_url

PUBLISHING_DELAY = timedelta(hours=6)
"""Usual maximum delay from the end of a day to its file."""

INTERVALS_ALLOWED = 2

MAX_NAMED = 3
"""Maximum number of stale series whose names stand in the command that refreshes them."""

BETWEEN_RUNS = timedelta(hours=2)
"""Additional tolerated age where runs refresh the data: a run starts every hour and takes some time."""

STOPPED_AFTER = timedelta(days=14)
"""A coin whose newest candle is this far behind the newest of its market has stopped trading: not a failure."""


@dataclass(frozen=True)
class Stale:
    """A series whose newest candle, or newest forecast, is too old; `newest` is that candle's close."""

    series: SeriesId
    what: Literal["candle", "forecast"]
    newest: datetime
    age: timedelta

    @property
    def finding(self) -> str:
        """What is too old, and by how much."""
        hours = self.age.total_seconds() / 3600
        age = f"{hours:.1f} hours" if hours < 48 else f"{hours / 24:.0f} days"
        return f"{self.series}: the newest {self.what} is {age} old ({self.newest:{MINUTE}} UTC)"


def refreshed_by(home: Path, series: Sequence[SeriesId], source: str | None = None) -> str:
    """Return how stale series of one market are refreshed, as a clause that names the command.

    `cpb forecast` fetches candles too; `cpb ingest` is for series without forecasts.

    Args:
        source: that of the command whose candles they are, as it was typed; None if it is not known.
    """
    market = series[0].market
    forecast = any(month_files(s.folder(home, FORECASTS.name)) for s in series)
    # Of many series the command without names does it: it forecasts with every champion.
    options = market_option(market) if forecast and len(series) > MAX_NAMED else f" {options_of(series)}"
    command = f"cpb {'forecast' if forecast else 'ingest'}{options}"
    if source:
        # A mirror's password is not shown: whoever typed it knows it.
        of_market = market_option(market) if market in APART else ""
        told = f"`{command.removesuffix(of_market)} --source {shlex.quote(public_url(source))}`"
    else:
        told = with_source(command, market)
    return f"refresh {'it' if len(series) == 1 else 'them'} with {told}"


def newest_close(home: Path, series: SeriesId, now: datetime | None = None) -> tuple[datetime, bool] | None:
    """Return the close of the newest candle (by `now`), and whether it came from the REST API; None without candles."""
    month = newest_month(home, series, now)
    if month is None:
        return None
    since = month - timedelta(days=32)  # the newest month may have no candle closed by `now` yet
    try:
        # Twice: with and without provisional candles. A newer candle in the second came from the REST API.
        confirmed, newest = (
            read_klines(home, series, since=since, as_of=now, columns=["open_time"], confirmed=confirmed)
            .select(pl.col("open_time").max())
            .item()
            for confirmed in (True, False)
        )
    except CpbError:  # unreadable candles: reported when read for a forecast, and by `cpb verify`
        return None
    return (newest + timedelta(seconds=series.seconds), newest != confirmed) if newest else None


def find_stale(
    home: Path,
    series: Sequence[SeriesId],
    now: datetime | None = None,
    grace: timedelta = timedelta(0),
    read_close: Callable[..., tuple[datetime, bool] | None] = newest_close,
    read_forecast: Callable[..., pl.DataFrame] = latest,
) -> list[Stale]:
    """Return the series whose newest candle or newest forecast is too old, at most one finding per series.

    A series without candles is skipped: ingestion reports missing candles.

    Args:
        now: UTC; default the current time. With `--as-of` that time: nothing newer is read.
        grace: added to the allowed age if data is refreshed at intervals, as by an hourly forecast.
        read_close, read_forecast: `newest_close` and `latest`, or functions that keep their results.
    """
    until = (now,) if now else ()
    now = now or datetime.now(UTC)
    real = [s for s in series if s.market != SIM and s.timeframe in INTERVAL_SECONDS]
    newest = {s: close for s in real if (close := read_close(home, s, *until))}
    # Compared with the market's newest coin: one coin that stands behind the others has stopped trading.
    stale: list[Stale] = []
    for s, (closed, live) in newest.items():
        leader = max(close for other, (close, _) in newest.items() if other.market == s.market)
        if leader - closed > STOPPED_AFTER:
            continue
        # Candles from the REST API are there as soon as they close, those of a day's file hours after the day's end.
        day = (now - PUBLISHING_DELAY).replace(hour=0, minute=0, second=0, microsecond=0)
        oldest = (now if live else day) - INTERVALS_ALLOWED * timedelta(seconds=s.seconds) - grace
        if closed < oldest:
            stale.append(Stale(s, "candle", closed, now - closed))
        # One finding a series: a forecast from old candles is old for that reason.
        elif (issued := read_forecast(home, s, *until)["issued_at"].max()) and issued < oldest:  # type: ignore[operator]
            stale.append(Stale(s, "forecast", issued, now - issued))  # type: ignore[arg-type, operator]
    return stale


def stale_sentence(home: Path, stale: Sequence[Stale], source: str | None = None) -> str:
    """Return the first finding of one market, of how many more it is so, and a command for all; "" for none."""
    if not stale:
        return ""
    more = f"; so it is with {len(stale) - 1} more series" if len(stale) > 1 else ""
    return f"{stale[0].finding}{more}; {refreshed_by(home, [old.series for old in stale], source)}"


def newest_month(home: Path, series: SeriesId, until: datetime | None) -> datetime | None:
    """Return the start of the newest stored month of candles (not after `until`): older months need not be read."""
    # Names of months compare as texts; `9999-12` is after each.
    last = f"{until:%Y-%m}" if until else "9999-12"
    months = [f.stem for f in series.folder(home, "klines").glob("????-??.parquet") if f.stem <= last]
    return datetime.strptime(max(months), "%Y-%m").replace(tzinfo=UTC) if months else None
