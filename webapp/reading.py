"""Reads what the API shows, through `tasks`; nothing is written and nothing computed that a step did not leave."""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import polars as pl

from schemas.errors import CpbError, MemberError
from schemas.handover import Decision
from schemas.identity import SIM, SPOT, Market, SeriesId, stored_series
from schemas.universe import INTERVAL_SECONDS
from tasks.forecasting import store as forecast_store
from tasks.forecasting.index import month_files
from tasks.forecasting.ledger import newest_scored
from tasks.forecasting.months import forecast_command
from tasks.forecasting.staleness import find_stale, newest_month
from tasks.forecasting.summary import read_summary
from tasks.forecasting.watch import alarms
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
    RecordEntry,
    SeriesInfo,
)

_CANDLE = ("open", "high", "low", "close", "volume")


# Forecasts are refreshed once an hour (`forecast/hourly`), whatever the length of the candles.
_REFRESH = timedelta(hours=1)


def health(home: Path) -> Health:
    """Count the series with forecasts, find the newest one, and say what is too old."""
    known = all_series(home)
    shown = [s for s in known if not s.simulated] or known
    issued = [s.issued_at for s in shown if s.issued_at]
    served = [s for s in shown if s.issued_at] or shown
    stale = find_stale(home, [SeriesId(s.market, s.symbol, s.timeframe) for s in served], grace=_REFRESH)
    return Health(
        status="empty" if not known else "stale" if stale else "ok",
        series=len(issued),
        newest_forecast=max(issued, default=None),
        stale=[str(one) for one in stale],
    )


def all_series(home: Path) -> list[SeriesInfo]:
    """Return every series that has forecasts or candles: those with forecasts first, real ones before simulated."""
    with_forecast = set(forecast_store.stored(home))
    known = with_forecast.union(stored_series(home, "klines"))
    ordered = sorted(
        (
            s for s in known if s.timeframe in INTERVAL_SECONDS
        ),  # the page has no calendar for candles of a month
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
    """Return the market of a request that names none: spot, or the simulator where nothing else is stored."""
    markets = {s.market for tree in ("forecasts", "klines") for s in stored_series(home, tree)}
    return "sim" if markets == {SIM} else "spot"


def newest_forecast(home: Path, series: SeriesId) -> Forecast:
    """Return the newest forecast; raises `MemberError` where the series has none."""
    rows = forecast_store.latest(home, series)
    if rows.is_empty():
        raise _no_forecast(series)
    first = rows.row(0, named=True)
    head = {k: first[k] for k in ("symbol", "timeframe", "issued_at", "model_version", "last_close")}
    return Forecast(market=series.market, **head, steps=rows.drop(*head).to_dicts())


def candles(home: Path, series: SeriesId, limit: int, until: datetime | None = None) -> Candles:
    """Return the newest `limit` candles that close by `until`; raises `MemberError` where there are none."""
    step = timedelta(seconds=series.seconds)
    columns = ["open_time", *_CANDLE]
    since = newest_month(home, series, until)
    if since:
        # Holes make the window shorter than `limit`; twice its length and a month more is nearly always enough.
        since -= 2 * limit * step + timedelta(days=31)
    frame = read_klines(home, series, since=since, as_of=until, columns=columns, provisional=True)
    if since and len(frame) < limit:
        frame = read_klines(home, series, as_of=until, columns=columns, provisional=True)
    frame = frame.tail(limit).with_columns(close_time=pl.col("open_time") + step)
    return Candles(**_identity(series), candles=[Candle(**row) for row in frame.to_dicts()])


def scored(home: Path, series: SeriesId, limit: int) -> Ledger:
    """Return the record of a series as the last scoring left it, and the newest `limit` scored rows.

    Raises:
        MemberError: the series has no forecast.
    """
    if not month_files(series.folder(home, "forecasts")):
        raise _no_forecast(series)
    known = read_summary(home, series.market)
    record = [
        RecordEntry(**entry.model_dump())
        for entry in (known.entries if known else ())
        if entry.timeframe == series.timeframe and (entry.symbol == series.symbol or entry.kind == "pooled")
    ]
    own = [entry for entry in record if entry.kind == "series"]
    rows = newest_scored(home, series, limit)
    return Ledger(
        **_identity(series),
        watch=next((found for found in alarms(home, series.market) if found.series == series), None),
        summary=_hit_rates(own),
        live=_hit_rates([entry for entry in own if entry.live]),
        recorded_at=known.made_at if known else None,
        record=record,
        rows=[LedgerRow(**row) for row in rows.select(list(LedgerRow.model_fields)).to_dicts()],
    )


def _no_forecast(series: SeriesId) -> MemberError:
    return MemberError(f"no forecast of {series} is stored; make one with `{forecast_command(series)}`")


def _hit_rates(entries: list[RecordEntry]) -> LedgerSummary:
    """Return the rates of several entries together, each weighed with its rows."""
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


def leaderboard(market: Market) -> Leaderboard:
    """Return a market's leaderboard over its finished runs, and its champions; a note says why it is empty."""
    from tasks.tracking.store import sqlite_path, tracking_uri

    uri = tracking_uri()
    return _leaderboard(uri, market, _changed(sqlite_path(uri)))


@lru_cache(maxsize=8)
def _leaderboard(uri: str, market: Market, _changed: float) -> Leaderboard:
    from tasks.tracking.decisions import newest_decisions
    from tasks.tracking.leaderboard import COLUMNS
    from tasks.tracking.leaderboard import leaderboard as rows_of
    from tasks.tracking.registry import champions
    from tasks.tracking.store import open_store

    rows: list[dict[str, Any]] = []
    served: list[Any] = []
    decided: dict[SeriesId, Decision] = {}
    note = None
    try:
        store = open_store(uri, create=False)
        served = champions(market=market, store=store)
        decided = newest_decisions(store)
        rows = rows_of(store=store, market=market)
    except CpbError as error:
        note = str(error)
    return Leaderboard(
        market=market,
        rows=rows,
        columns=COLUMNS,
        champions=[_champion(c, decided.get(c.series)) for c in served],
        verdict=_overall(served),
        note=note,
    )


def _overall(served: list[Any]) -> str | None:
    from tasks.hub.card import verdict

    return verdict(served) if served else None


def _champion(champion: Any, decision: Decision | None) -> ChampionInfo:
    return ChampionInfo(
        **_identity(champion.series),
        model_version=champion.model_version,
        architecture=champion.architecture or None,
        preset=champion.preset or None,
        verdict=champion.verdict or None,
        reason=champion.tags.get("reason"),
        decision=decision,
        selected_on=champion.selected_on or None,
        metrics={k: v for k, v in champion.metrics.items() if k.startswith("test_")},
    )


def _identity(series: SeriesId) -> dict[str, Any]:
    return {"market": series.market, "symbol": series.symbol, "timeframe": series.timeframe}


def _changed(database: Path | None) -> float:
    """Return when the store last changed; for a remote one the current minute, so that it is asked once a minute."""
    if database is None:
        return datetime.now(UTC).timestamp() // 60
    files = (database, database.with_name(f"{database.name}-wal"))
    return max((f.stat().st_mtime for f in files if f.exists()), default=0.0)


def _info(home: Path, series: SeriesId) -> SeriesInfo:
    rows = forecast_store.latest(home, series)
    issued, version = (rows["issued_at"][0], rows["model_version"][0]) if len(rows) else (None, None)
    return SeriesInfo(**_identity(series), issued_at=issued, model_version=version)
