"""Names of the tags that cpb writes on runs, registered models and versions, and what is read from them."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from schemas.identity import MARKETS, SIM, SPOT, SeriesId

if TYPE_CHECKING:
    from mlflow.entities import Run

KEY, KIND, OUTCOME, PARENT = "cpb.key", "cpb.kind", "outcome", "mlflow.parentRunId"
FLOW, FLEET, MEMBER = "flow", "fleet", "member"
"""Values of `KIND`."""
REASON = "reason"
WARNINGS = "warnings"
"""Of a flow's run: what a person should know of its trainings, in one line."""
MARKET, SYMBOL, TIMEFRAME = "market", "symbol", "timeframe"
COMMAND, COINS, TIMEFRAMES, SEED = "command", "coins", "timeframes", "seed"
"""Of flows and fleets (the command: of flows; the seed: of members too): what was asked, for filters and lists."""
AS_OF, NEWEST = "as_of", "newest"
"""Up to when candles were to be seen, as asked, and its value where all there were were."""
CANDLES_UNTIL = "candles_until"
"""Of flows and fleets: the day (UTC) before which the data ends, as in the run's name."""
SOURCE_KIND, REAL, SIMULATED = "source_kind", "real", "simulated"
"""Of flows, fleets and members: whether the candles are real, and its two values."""
FILES = "files"
"""JSON: the sha256 of each file of a model's folder."""
MLFLOW_FILES = "mlflow_files"
"""JSON, on a member's run: the sha256 of each file that makes its folder an MLflow model (`flavour.py`)."""
RECIPE = "cpb.recipe"
"""Of a version: architecture, preset and the digest of its options, `har/default/3f9a12c0d4e5`."""
SELECTED = "cpb.selected_on"
"""Of a version: the test rows on which its recipe was chosen, `2025-02-06/2025-06-05`: no result of its own."""
KEEP = "keep"
"""Tag of a run or a version that pruning must leave as it is; people set it, its value does not matter."""
PRUNED = "cpb.pruned"
"""When a flow's or a fleet's run lost its members' runs; the flow's run holds their figures in one file."""
PROCESS, HEARTBEAT = "cpb.process", "cpb.heartbeat"
"""The process that a run was opened by, and when (UTC) that process last said that it lives."""


def series_tags(series: SeriesId) -> dict[str, str]:
    """Return the tags by which MLflow's interface finds the runs and versions of a series."""
    return {MARKET: series.market, SYMBOL: series.symbol, TIMEFRAME: series.timeframe}


def market_of(run: "Run") -> str:
    """Return the market that a flow's run is about; runs of older releases say it in their params."""
    tags, params = run.data.tags, run.data.params
    if tags.get(MARKET) in MARKETS:
        return tags[MARKET]
    if SIM in (params.get("source"), params.get("scope.source"), tags.get("source")):
        return SIM
    market = params.get("market") or params.get("scope.market")
    return market if market in MARKETS else SPOT


def as_of(tags: Mapping[str, str]) -> str | None:
    """Return up to when a run saw candles: as asked, else the day of the newest one that it met.

    `newest` of runs of older releases, which do not say that day.
    """
    asked = tags.get(AS_OF)
    return tags.get(CANDLES_UNTIL, asked) if asked == NEWEST else asked


def command_of(run: "Run") -> str:
    """Return the command that made a flow's run; runs of older releases were called after it."""
    return run.data.tags.get(COMMAND) or run.info.run_name or ""


def digests_of(tags: Mapping[str, str], key: str = FILES) -> dict[str, str]:
    """Return the recorded sha256 of each file from the tags of a run or a version; empty where there are none."""
    try:
        found = json.loads(tags.get(key, "{}"))
    except ValueError:
        return {}
    return {str(name): str(digest) for name, digest in found.items()} if isinstance(found, dict) else {}
