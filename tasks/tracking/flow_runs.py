"""The newest runs of the flow and searches of `cpb tune`, as the page lists them."""

import json
from datetime import UTC, datetime
from itertools import islice
from typing import Literal

from pydantic import BaseModel

from schemas.identity import Market
from tasks.tracking.calls import NEWEST_FIRST, search
from tasks.tracking.dead_runs import dead_runs
from tasks.tracking.experiment import Store
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
    """Return the newest flow runs and `cpb tune` searches, newest first; a run whose process is dead is killed."""
    top = search(store, f"tags.`{PARENT}` IS NULL", [NEWEST_FIRST], page_size=limit)
    runs = list(islice((run for run in top if run.data.tags.get(KIND) in (FLOW, STUDY)), limit))
    # Looked for only where a run claims to be running: it searches the whole store.
    dead = dead_runs(store) if any(run.info.status == "RUNNING" for run in runs) else {}
    return [
        FlowRunInfo(
            market=market_of(run),
            run_id=run.info.run_id,
            kind=run.data.tags[KIND],
            name=run.info.run_name or "",
            # Shown as killed before any writer has marked it: the page only reads.
            status="KILLED" if run.info.run_id in dead else run.info.status,
            outcome=run.data.tags.get(OUTCOME),
            started_at=datetime.fromtimestamp(run.info.start_time / 1000, UTC),
            ended_at=datetime.fromtimestamp(run.info.end_time / 1000, UTC) if run.info.end_time else None,
            preset=run.data.params.get("preset"),
            coins=_names(run.data.params.get("coins")),
            timeframes=_names(run.data.params.get("timeframes")),
            architectures=_names(run.data.params.get("architectures")),
            as_of=as_of(run.data.tags),
            reason=dead.get(run.info.run_id) or run.data.tags.get(REASON),
        )
        for run in runs
    ]


def _names(text: str | None) -> list[str]:
    """Return the names in a param: MLflow stores text, a list as JSON."""
    if not text:
        return []
    return json.loads(text) if text.startswith("[") else [part.strip() for part in text.split(",")]
