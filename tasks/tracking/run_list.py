"""The flow runs in MLflow, for `cpb leaderboard --run` and the page.

Ids may be typed in full or as a unique prefix.
"""

import json
from collections.abc import Collection
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel

from schemas.errors import CpbError
from schemas.identity import Market
from tasks.tracking.connection import Store, find_run, search, search_lazily
from tasks.tracking.mlflow_store import dead_runs
from tasks.tracking.tags import (
    FLOW,
    KIND,
    OUTCOME,
    PARENT,
    REASON,
    STUDY,
    as_of,
    market_of,
)

if TYPE_CHECKING:
    from mlflow.entities import Run

SHORT = 8
"""Characters of an id that are displayed; git displays 7 of 40, MLflow's ids have 32."""
_MIN_TYPED = 4
_NEWEST, _PAGE = "attributes.start_time DESC", 1000


def finished_flows(store: Store, condition: str = "") -> "list[Run]":
    """Return the finished flow runs, newest first; `condition`: a further condition in MLflow's filter syntax."""
    finished = f"tags.`{KIND}` = '{FLOW}' and attributes.status = 'FINISHED'"
    return search(store, f"{finished} and {condition}" if condition else finished, [_NEWEST])


class FlowRunInfo(BaseModel):
    """A run of the flow, or a search of `cpb tune`; the page's `FlowRun` documents the fields."""

    market: Market
    run_id: str
    kind: Literal["flow", "study"]
    name: str
    status: str
    outcome: str | None
    started_at: datetime
    ended_at: datetime | None
    preset: str | None
    coins: list[str]
    timeframes: list[str]
    architectures: list[str]
    as_of: str | None
    reason: str | None


def newest_flow_runs(store: Store, limit: int) -> list[FlowRunInfo]:
    """Return the newest flow runs and `cpb tune` searches, finished or running, newest first."""
    return [_info(run, died) for run, died in _newest(store, (FLOW, STUDY), limit)]


def _newest(store: Store, kinds: Collection[str], limit: int | None = None) -> "list[tuple[Run, str | None]]":
    """Return the newest runs of some kinds, newest first.

    Each with the reason why its process is dead, even if the run is not marked as killed yet; None if alive.
    """
    runs = [
        run
        for kind in kinds  # MLflow's filters have no OR
        for run in islice(
            search_lazily(store, f"tags.`{KIND}` = '{kind}'", [_NEWEST], page_size=limit or _PAGE), limit
        )
    ]
    runs = sorted(runs, key=lambda run: run.info.start_time, reverse=True)[:limit]
    dead = dead_runs(store) if any(run.info.status == "RUNNING" for run in runs) else {}
    return [(run, dead.get(run.info.run_id)) for run in runs]


def _info(run: "Run", died: str | None) -> FlowRunInfo:
    tags, params, info = run.data.tags, run.data.params, run.info
    return FlowRunInfo(
        market=market_of(run),
        run_id=info.run_id,
        kind=tags[KIND],
        name=info.run_name or "",
        status="KILLED" if died else info.status,
        outcome=tags.get(OUTCOME),
        started_at=_time(info.start_time),
        ended_at=_time(info.end_time),
        preset=params.get("preset"),
        coins=_names(params.get("coins")),
        timeframes=_names(params.get("timeframes")),
        architectures=_names(params.get("architectures")),
        as_of=as_of(tags),
        reason=died or tags.get(REASON),
    )


def _names(text: str | None) -> list[str]:
    """Return the names in a param: MLflow stores text, a list as JSON."""
    if not text:
        return []
    return json.loads(text) if text.startswith("[") else [part.strip() for part in text.split(",")]


def _time(stamp_ms: int | None) -> datetime | None:
    return datetime.fromtimestamp(stamp_ms / 1000, UTC) if stamp_ms else None


def short_id(run_id: str) -> str:
    """Return the prefix of a run's id, as commands print it and `find_flow` accepts it."""
    return run_id[:SHORT]


def find_flow(store: Store, text: str) -> "Run":
    """Return the flow run with this id or unique id prefix; for a fleet's or member's id, its flow.

    Raises:
        CpbError: no run or several runs match.
    """
    run = find_run(store, text)
    while run is not None and run.data.tags.get(PARENT):
        run = find_run(store, run.data.tags[PARENT])
    if run is not None:
        return run
    begun = text.strip().lower()
    flows = search(store, f"tags.`{KIND}` = '{FLOW}'") if len(begun) >= _MIN_TYPED else []
    found = [flow for flow in flows if flow.info.run_id.startswith(begun)]
    if len(found) == 1:
        return found[0]
    if found:
        ids = ", ".join(sorted(flow.info.run_id for flow in found))
        raise CpbError(
            f"several runs begin with {text!r}: {ids}; give more characters of the id",
            code="ambiguous-run", field="run",
        )  # fmt: skip
    raise CpbError(
        f"there is no run {text!r}; `cpb ui` shows the runs (old runs are pruned; "
        f"give at least {_MIN_TYPED} characters of an id)",
        code="no-run", field="run",
    )  # fmt: skip
