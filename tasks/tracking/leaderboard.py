"""The leaderboard, from MLflow alone: architecture x timeframe against the random walk.

Each row belongs to one run. A run replaces rows of earlier runs if it has judged all their coins under the same recipe;
a run with fewer coins, or with failed coins, gets its own row, marked `partial`, and the row of many coins keeps its
interval.
"""

import math
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from schemas.errors import CpbError
from schemas.identity import SIM
from tasks.tracking.archive import fleets_of, readable_fleets
from tasks.tracking.board import BoardRow, order, rows_of
from tasks.tracking.connection import Store
from tasks.tracking.run_list import find_flow, finished_flows
from tasks.tracking.runs import COMPLETE
from tasks.tracking.store import open_store
from tasks.tracking.tags import OUTCOME, age_of, market_of

if TYPE_CHECKING:
    from mlflow.entities import Run


_ASKED = ("coins", "timeframes", "architectures", "preset", "overrides", "seeds", "dtype")
"""Params of a flow run that define the models to train."""


def leaderboard(
    parent: str | None = None,
    store: Store | None = None,
    *,
    market: str | None = None,
    symbols: Collection[str] | None = None,
    timeframes: Collection[str] | None = None,
) -> list[dict[str, Any]]:
    """Return the rows by market and timeframe, complete rows before `partial` rows, the best CRPS ratio first.

    Keys are those of `COLUMNS`; a value that was not measured is None. A row has an interval if a single fleet trained
    all its coins: the intervals of several fleets cannot be combined.

    Args:
        parent: run id of a flow, or its first characters, for the rows of that run alone; filters are then ignored.
        market: default: all real markets, or the simulated market if nothing real was trained.
        symbols, timeframes: filters; default all.

    Raises:
        CpbError: there is no such run, the id is ambiguous, or nothing was judged.
    """
    store = store or open_store(create=False)
    if parent is None:
        return _current(store, market, symbols, timeframes)
    flow = find_flow(store, parent)
    rows = board_of(store, flow)
    if not rows:
        raise CpbError(
            f"run {flow.info.run_id!r} holds no judged fleet; `cpb leaderboard --list` shows the runs that there are",
            code="no-run",
        )
    return rows


def board_of(store: Store, flow: "Run") -> list[dict[str, Any]]:
    """Return the rows of one flow run, from its members' runs, or from its archive for pruned members."""
    rows = rows_of(fleets_of(store, flow), _of_flow(flow))
    return sorted((row.values for row in rows), key=order)


def _of_flow(flow: "Run") -> dict[str, Any]:
    """Return the columns common to all rows of a flow run."""
    as_of, started = age_of(flow)
    return {"market": market_of(flow), "as_of": as_of, "started_at": started, "flow_run": flow.info.run_id}


def _current(
    store: Store, market: str | None, symbols: Collection[str] | None, timeframes: Collection[str] | None
) -> list[dict[str, Any]]:
    """Return the current rows over all finished flow runs."""
    flows = _newest_flows(store)
    trained = {of_flow["market"] for _, of_flow in flows}
    shown = {market} if market else trained - {SIM} or trained
    if not shown & trained:
        which = f" of market {market}" if market else ""
        raise CpbError(
            f"no finished training run{which} in the MLflow store yet; start one with `cpb train-all`",
            code="no-run",
        )
    rows: list[BoardRow] = []
    for flow, of_flow in flows:
        if of_flow["market"] in shown:
            found = rows_of(readable_fleets(store, flow), of_flow, symbols, timeframes)
            rows += [row for row in found if not any(newer.covers(row) for newer in rows)]
    if not rows:
        raise CpbError(
            "no model that was judged is of these markets, coins and timeframes; leave some of the options out",
            code="no-run",
        )
    return sorted((row.values | {"partial": row.part_of_any(rows)} for row in rows), key=order)


def _newest_flows(store: Store) -> "list[tuple[Run, dict[str, Any]]]":
    """Return the finished flow runs, newest first; of runs of the same requested models only the newest.

    So a year of nightly runs costs one search and the reading of one run, and coins no longer traded leave the board.
    A run on older candles does not replace a run on newer candles, nor does a run with failed models replace a run in
    which more were judged.
    """
    kept: list[tuple[Run, dict[str, Any]]] = []
    newer: dict[tuple[str | None, ...], list[tuple[str, float]]] = {}
    for run in finished_flows(store):
        of_flow = _of_flow(run)
        asked = tuple(run.data.params.get(name) for name in _ASKED)
        # A run that does not record its request is its own group.
        key = (of_flow["market"], *asked) if any(asked) else (run.info.run_id,)
        as_of, judged = of_flow["as_of"], _judged(run)
        before = newer.setdefault(key, [])
        if not any(seen >= as_of and count >= judged for seen, count in before):
            before.append((as_of, judged))
            kept.append((run, of_flow))
    return kept


def _judged(flow: "Run") -> float:
    """Return how many models a run has judged; infinite if none failed, since it then trained all requested models."""
    metrics = flow.data.metrics
    complete = flow.data.tags.get(OUTCOME, COMPLETE) == COMPLETE and not metrics.get("failed")
    return math.inf if complete else metrics.get("members", 0)
