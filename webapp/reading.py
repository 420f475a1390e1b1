"""Reads what the API shows, through `tasks`; nothing is written and nothing computed that a step did not leave."""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import polars as pl

from schemas.errors import CpbError, MemberError
from schemas.universe import INTERVAL_SECONDS
from tasks.judging import forecast_store
from tasks.judging.ledger import ledger, summary
from tasks.market.store import read_klines
from webapp.answers import (
    Candle,
    Candles,
    ChampionInfo,
    Forecast,
    Health,
    Leaderboard,
    Ledger,
    LedgerRow,
    LedgerSummary,
    SeriesInfo,
)

_CANDLE = ("open", "high", "low", "close", "volume")
_LEDGER_DAYS = 90


def health(home: Path) -> Health:
    """Count the series with forecasts and find the newest one."""
    issued = [s.issued_at for s in all_series(home) if s.issued_at]
    return Health(series=len(issued), newest_forecast=max(issued, default=None))


def all_series(home: Path) -> list[SeriesInfo]:
    """Return every series that has forecasts or candles, those with forecasts first."""
    with_forecast = set(forecast_store.stored_series(home))
    known = with_forecast | _with_candles(home)
    ordered = sorted(
        known, key=lambda pair: (pair not in with_forecast, pair[0], INTERVAL_SECONDS.get(pair[1], 0))
    )
    return [_info(home, *pair) for pair in ordered]


def newest_forecast(home: Path, symbol: str, timeframe: str) -> Forecast:
    """Return the newest forecast; raises `MemberError` where the series has none."""
    rows = forecast_store.latest(home, symbol, timeframe)
    if rows.is_empty():
        raise MemberError(
            f"no forecast of {symbol} {timeframe} is stored; make one with "
            f"`cpb forecast --coins {symbol} --timeframes {timeframe}`"
        )
    first = rows.row(0, named=True)
    head = {k: first[k] for k in ("symbol", "timeframe", "issued_at", "model_version", "last_close")}
    return Forecast(**head, steps=rows.drop(*head).to_dicts())


def candles(home: Path, symbol: str, timeframe: str, limit: int, until: datetime | None = None) -> Candles:
    """Return the newest `limit` candles that close by `until`; raises `MemberError` where there are none."""
    step = timedelta(seconds=INTERVAL_SECONDS[timeframe])
    until = until.replace(tzinfo=UTC) if until and not until.tzinfo else until
    columns = ["open_time", *_CANDLE]
    since = _month_of_newest(home, symbol, timeframe, until)
    if since:
        # Holes make the window shorter than `limit`; twice its length and a month more is nearly always enough.
        since -= 2 * limit * step + timedelta(days=31)
    frame = read_klines(home, symbol, timeframe, since=since, as_of=until, columns=columns, provisional=True)
    if since and len(frame) < limit:
        frame = read_klines(home, symbol, timeframe, as_of=until, columns=columns, provisional=True)
    frame = frame.tail(limit).with_columns(close_time=pl.col("open_time") + step)
    shown = [Candle(**row) for row in frame.to_dicts()]
    return Candles(symbol=symbol, timeframe=timeframe, candles=shown)


def scored(home: Path, symbol: str, timeframe: str, limit: int) -> Ledger:
    """Return hit rates of the last 90 days of forecasts and the newest `limit` scored rows."""
    newest = newest_forecast(home, symbol, timeframe)
    rows = ledger(home, symbol, timeframe, since=newest.issued_at - timedelta(days=_LEDGER_DAYS))
    shown = rows.sort("target_time", "issued_at", "step").tail(limit).select(list(LedgerRow.model_fields))
    return Ledger(
        symbol=symbol,
        timeframe=timeframe,
        summary=LedgerSummary(**summary(rows)),
        live=LedgerSummary(**summary(rows.filter("live"))),
        rows=[LedgerRow(**row) for row in shown.to_dicts()],
    )


def leaderboard() -> Leaderboard:
    """Return the leaderboard of the newest finished run and the champions; empty with a note before the first."""
    from tasks.tracking.store import sqlite_path, tracking_uri

    uri = tracking_uri()
    return _leaderboard(uri, _changed(sqlite_path(uri)))


@lru_cache(maxsize=4)
def _leaderboard(uri: str, _changed: float) -> Leaderboard:
    from tasks.tracking.leaderboard import COLUMNS
    from tasks.tracking.leaderboard import leaderboard as rows_of
    from tasks.tracking.registry import champions
    from tasks.tracking.store import open_store

    try:
        store = open_store(uri, create=False)
        rows, served = rows_of(store=store), champions(store=store)
    except CpbError as error:
        return Leaderboard(rows=[], columns=COLUMNS, champions=[], verdict=None, note=str(error))
    return Leaderboard(
        rows=rows,
        columns=COLUMNS,
        champions=[_champion(c) for c in served],
        verdict=_overall(served),
        note=None,
    )


def _overall(served: list[Any]) -> str | None:
    from tasks.hub.card import verdict
    from tasks.tracking.registry import of_source

    real = of_source(served, None)  # simulated ones count only where there is nothing else
    return verdict(real or served) if served else None


def _champion(champion: Any) -> ChampionInfo:
    return ChampionInfo(
        symbol=champion.symbol,
        timeframe=champion.timeframe,
        model_version=champion.model_version,
        architecture=champion.tags.get("architecture"),
        verdict=champion.tags.get("verdict"),
        reason=champion.tags.get("reason"),
        simulated=champion.tags.get("source") == "sim",
        metrics={k: v for k, v in champion.metrics.items() if k.startswith("test_")},
    )


def _changed(database: Path | None) -> float:
    """Return when the store last changed; for a remote one the current minute, so that it is asked once a minute."""
    if database is None:
        return datetime.now(UTC).timestamp() // 60
    files = (database, database.with_name(f"{database.name}-wal"))
    return max((f.stat().st_mtime for f in files if f.exists()), default=0.0)


def _info(home: Path, symbol: str, timeframe: str) -> SeriesInfo:
    rows = forecast_store.latest(home, symbol, timeframe)
    issued, version = (rows["issued_at"][0], rows["model_version"][0]) if len(rows) else (None, None)
    return SeriesInfo(symbol=symbol, timeframe=timeframe, issued_at=issued, model_version=version)


def _with_candles(home: Path) -> set[tuple[str, str]]:
    folders = (home / "klines").glob("interval=*/symbol=*")
    named = {(f.name.removeprefix("symbol="), f.parent.name.removeprefix("interval=")) for f in folders}
    return {(s, t) for s, t in named if t in INTERVAL_SECONDS}  # the page has no calendar for months


def _month_of_newest(home: Path, symbol: str, timeframe: str, until: datetime | None) -> datetime | None:
    """Return the start of the newest stored month (not after `until`), so that older ones need not be read."""
    folder = home / "klines" / f"interval={timeframe}" / f"symbol={symbol}"
    months = sorted(f.stem for f in folder.glob("????-??.parquet"))
    if until:
        months = [m for m in months if m <= until.strftime("%Y-%m")]
    return datetime.strptime(months[-1], "%Y-%m").replace(tzinfo=UTC) if months else None
