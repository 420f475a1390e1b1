"""Reads models, champions and decisions from MLflow's store, in one thread at a time; cached while unchanged."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, TypeVar

import polars as pl

from schemas.errors import CpbError
from schemas.handover import Decision
from schemas.identity import Market, SeriesId
from tasks.hub.card import verdict
from tasks.tracking.boards import (
    COLUMNS,
    coin_ratios,
    judged_models,
    loss_histories,
    newest_flow_runs,
    read_members,
)
from tasks.tracking.boards import leaderboard as read_board
from tasks.tracking.registry import champions, decisions_on, newest_decisions
from tasks.tracking.store import Store, open_store, store_errors, tracking_uri
from webapp.answers import ChampionInfo, Decisions, FlowRun, Leaderboard, Models
from webapp.reading import identity
from webapp.replies import Answer, State, database_state, kept_while

T = TypeVar("T")

PACE_S = 5.0
"""Seconds between checks of the store: a training writes constantly, and reading 40 champions takes a second."""

_reading = threading.RLock()
_looked: dict[str, tuple[float, State]] = {}


def state() -> tuple[str, State]:
    """Return the store's URI and its state as of the last check; a server's state changes every minute."""
    uri = tracking_uri()
    looked, known = _looked.get(uri, (0.0, ()))
    now = time.monotonic()
    if not known or now - looked >= PACE_S:
        found = database_state(uri)
        known = (datetime.now(UTC).timestamp() // 60,) if found is None else found
        _looked[uri] = now, known
    return uri, known


@contextmanager
def _store() -> Iterator[Store]:
    """Yield the store, locked for this thread; raises `CpbError` if it cannot be read."""
    with _reading, store_errors():
        yield open_store(create=False)


def _or_note(read: Callable[[Store], list[T]], missing: str | None = None) -> tuple[list[T], str | None]:
    """Return what `read` finds in the store, and a note if that is nothing: `missing`, or why it cannot be read."""
    try:
        with _store() as store:
            found = read(store)
    except CpbError as error:
        return [], str(error)
    return found, None if found else missing


def load() -> None:
    """Load MLflow and open its store so that no request has to wait; errors are reported by the first request."""
    with suppress(CpbError), _store():
        pass


def leaderboard(market: Market, timeframe: str | None = None, run: str | None = None) -> Answer:
    """Return a market's leaderboard over its finished runs, and its champions; a note says why it is empty.

    Args:
        run: id of a flow's run, or the beginning of an id, to restrict the rows to that run.
    """
    rows: list[dict[str, Any]] = []
    served: list[Any] = []
    decided: dict[SeriesId, Decision] = {}
    note = None
    try:
        served, decided = champions_of(market)
        rows = board_rows(market, timeframe, run)
    except CpbError as error:
        note = str(error)
    board = Leaderboard(
        market=market,
        rows=rows,
        columns=COLUMNS,
        champions=[_champion(c, decided.get(c.series)) for c in served],
        verdict=verdict(served) if served else None,
        note=note,
    )
    return Answer(board, "rows")


@kept_while(lambda: state(), 1)
def _members() -> pl.DataFrame:
    with _store() as store:
        return read_members(store)


def board_rows(market: Market, timeframe: str | None, run: str | None) -> list[dict[str, Any]]:
    """Return the rows of a market's leaderboard; arguments as in `leaderboard`.

    Raises:
        CpbError: there are none, or the run is of another market.
    """
    rows = read_board(run, _members(), market=market, timeframes=[timeframe] if timeframe else None)
    of_market = [row for row in rows if row["market"] == market]  # rows of a run are not filtered by market
    if not of_market:
        raise CpbError(
            f"run {run} is of market {rows[0]['market']}: ask for it with market={rows[0]['market']}"
        )
    return [row for row in of_market if timeframe in (None, row["timeframe"])]


def coin_rows(market: Market, timeframe: str | None) -> list[dict[str, Any]]:
    """Return the ratio of each architecture of the leaderboard on each coin; empty if there are none."""
    with suppress(CpbError):
        return coin_ratios(_members(), board_rows(market, timeframe, None))
    return []


def histories(run_id: str) -> dict[str, list[dict[str, float]]]:
    """Return the losses per epoch of a run's models; errors as in `boards.loss_histories`."""
    with _store() as store:
        return loss_histories(store, run_id)


@kept_while(lambda _market: state(), 8)
def champions_of(market: Market) -> tuple[list[Any], dict[SeriesId, Decision]]:
    """Return a market's champions (`registry.Champion`), and the newest decision on every series.

    Raises:
        CpbError: there is no store, or it cannot be read.
    """
    with _store() as store:
        return champions(market=market, store=store), newest_decisions(store)


def models(series: SeriesId) -> Answer:
    """Return a series' newest judged model of each architecture and preset; a note says why there are none."""
    missing = f"no judged model of {series} is in the MLflow store; train some with `cpb train-all {series.options}`"
    found, note = _or_note(lambda store: judged_models(store, series), missing)
    return Answer(Models(**identity(series), models=found, note=note), "models")


def decided_on(series: SeriesId, limit: int) -> tuple[list[Decision], str | None]:
    """Return the newest decisions on a series, newest first; a note says why there are none."""
    missing = f"nothing has been decided on {series} yet; `cpb train-all {series.options}` trains candidates"
    return _or_note(lambda store: decisions_on(store, series, limit), missing)


def decisions(series: SeriesId, limit: int) -> Answer:
    """Return the newest decisions on a series; a note says why there are none."""
    found, note = decided_on(series, limit)
    return Answer(Decisions(**identity(series), decisions=found, note=note), "decisions")


def flow_runs(limit: int) -> tuple[list[FlowRun], str | None]:
    """Return the newest runs of the flow, newest first, and the error if the store cannot be read."""

    return _or_note(lambda store: [FlowRun(**dict(run)) for run in newest_flow_runs(store, limit)])


def _champion(champion: Any, decision: Decision | None) -> ChampionInfo:
    return ChampionInfo(
        **identity(champion.series),
        model_version=champion.model_version,
        architecture=champion.architecture or None,
        preset=champion.preset or None,
        verdict=champion.verdict or None,
        reason=champion.tags.get("reason"),
        decision=decision,
        selected_on=champion.selected_on or None,
        metrics={k: v for k, v in champion.metrics.items() if k.startswith("test_")},
    )
