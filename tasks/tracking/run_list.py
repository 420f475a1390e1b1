"""The flow runs in MLflow, for `cpb leaderboard --list`."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tasks.tracking.connection import Store, search
from tasks.tracking.reconcile import dead_runs
from tasks.tracking.run_names import source_kind
from tasks.tracking.store import open_store
from tasks.tracking.tags import COINS, FLOW, KIND, OUTCOME, REASON, TIMEFRAMES, as_of, command_of, market_of

if TYPE_CHECKING:
    from mlflow.entities import Run

RUN_COLUMNS = {
    "id": "the flow's run; its first characters are enough for `cpb leaderboard --run`",
    "started_at": "when it began (UTC)",
    "ended_at": "when it ended (UTC); empty while it runs",
    "command": "train-all or train",
    "market": "spot, um, cm, own for a user's tables, or sim for simulated candles",
    "source": "real or simulated",
    "coins": "the coins by name, from four on their number",
    "timeframes": "candle lengths",
    "architectures": "names of the architectures",
    "preset": "preset of the models",
    "as_of": "no candle that closes after this was seen, as asked; else the day of the newest candle",
    "members": "models that were judged; empty for runs of releases that did not count them",
    "failed": "models and steps that failed",
    "outcome": "running, complete, partial, failed or killed",
    "reason": "why it failed or was killed",
}
"""The columns of the list and what they mean."""


def list_runs(store: Store | None = None) -> list[dict[str, Any]]:
    """Return the flow runs, the newest first, by the names of `RUN_COLUMNS`; a value that is not known is None."""
    store = store or open_store(create=False)
    flows = search(store, f"tags.`{KIND}` = '{FLOW}'", ["attributes.start_time DESC"])
    dead = dead_runs(store) if any(flow.info.status == "RUNNING" for flow in flows) else {}
    return [_entry(flow, dead) for flow in flows]


def _entry(flow: "Run", dead: Mapping[str, str]) -> dict[str, Any]:
    tags, params, metrics, info = flow.data.tags, flow.data.params, flow.data.metrics, flow.info
    died = dead.get(info.run_id)
    market = market_of(flow)
    return {
        "id": info.run_id,
        "started_at": _time(info.start_time),
        "ended_at": _time(info.end_time),
        "command": command_of(flow),
        "market": market,
        "source": source_kind(market),
        "coins": tags.get(COINS) or params.get("coins"),
        "timeframes": tags.get(TIMEFRAMES) or _words(params.get("timeframes", "")),
        "architectures": _words(params.get("architectures", "")),
        "preset": tags.get("preset"),
        "as_of": as_of(tags),
        "members": int(metrics["members"]) if "members" in metrics else None,
        "failed": int(metrics["failed"]) if "failed" in metrics else None,
        "outcome": "killed" if died else _outcome(info.status, tags),
        "reason": died or tags.get(REASON),
    }


def _outcome(status: str, tags: Mapping[str, str]) -> str:
    return tags.get(OUTCOME, "complete") if status == "FINISHED" else status.lower()


def _words(text: str) -> str:
    """Return a param that is a JSON list, or names with commas, as words."""
    return " ".join(json.loads(text)) if text.startswith("[") else text.replace(",", " ")


def _time(stamp_ms: int | None) -> str | None:
    return datetime.fromtimestamp(stamp_ms / 1000, UTC).isoformat(timespec="seconds") if stamp_ms else None
