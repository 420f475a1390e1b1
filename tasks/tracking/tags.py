"""Names of the tags that cpb writes on runs, registered models and versions, and functions that read them."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from schemas.identity import MARKETS, SPOT, SeriesId

if TYPE_CHECKING:
    from mlflow.entities import Run

KEY, KIND, OUTCOME, PARENT = "cpb.key", "cpb.kind", "outcome", "mlflow.parentRunId"
FLOW, FLEET, MEMBER = "flow", "fleet", "member"
"""Values of `KIND`."""
STUDY, TRIAL = "study", "trial"
"""Values of `KIND` for runs of `cpb tune`, so that no board includes a trial among the trained models."""
REASON = "reason"
WARNINGS = "warnings"
"""Of a flow's run: warnings about its trainings, in one line."""
LEFT_OUT = "left_out"
"""Of a flow's run: the models that it did not train, in a sentence (`idle_sentence` in `tasks/plan.py`)."""
MARKET, SYMBOL, TIMEFRAME = "market", "symbol", "timeframe"
COMMAND, COINS, TIMEFRAMES, SEED = "command", "coins", "timeframes", "seed"
"""Of flows and fleets (the command: of flows; the seed: of members too): requested values, for filters and lists."""
AS_OF, NEWEST = "as_of", "newest"
"""The requested end of the candles, and its value for no limit."""
CANDLES_UNTIL = "candles_until"
"""Of flows and fleets: the day (UTC) before which the data ends, as in the run's name."""
SOURCE_KIND, REAL, SIMULATED = "source_kind", "real", "simulated"
"""Of flows, fleets and members: whether the candles are real; and the tag's two values."""
FILES = "files"
"""JSON: the sha256 of each file of a model's folder."""
MLFLOW_FILES = "mlflow_files"
"""JSON, on a member's run: the sha256 of each file that makes its folder an MLflow model (`model.py`)."""
RECIPE = "cpb.recipe"
"""Of a version: architecture, preset and the digest of its options, `har/default/3f9a12c0d4e5`."""
SELECTED = "cpb.selected_on"
"""Of a version: the test rows on which its recipe was selected, `2025-02-06/2025-06-05`; not an independent result."""
KEEP = "keep"
"""Tag of a run or a version that pruning must keep; set by people, with any value."""
PRUNED = "cpb.pruned"
"""Time at which members of a fleet were pruned: the remaining members, such as champions, are not a complete fleet."""
PROCESS = "cpb.process"
"""The process that opened a run."""

Age = tuple[str, str]
"""End of a model's candles, then start of its run: ISO 8601 in UTC, so that texts sort like times."""


def series_tags(series: SeriesId) -> dict[str, str]:
    """Return the tags by which MLflow's interface finds the runs and versions of a series."""
    return {MARKET: series.market, SYMBOL: series.symbol, TIMEFRAME: series.timeframe}


def market_of(run: "Run") -> str:
    """Return the market of a flow's run; spot if not recorded, as on a run created by a person."""
    market = run.data.tags.get(MARKET)
    return market if market in MARKETS else SPOT


def as_of(tags: Mapping[str, str]) -> str | None:
    """Return the end of a run's candles: as requested, else the day of its newest candle."""
    asked = tags.get(AS_OF)
    return tags.get(CANDLES_UNTIL, asked) if asked == NEWEST else asked


def digests_of(tags: Mapping[str, str], key: str = FILES) -> dict[str, str]:
    """Return the recorded sha256 of each file from the tags of a run or a version; empty if missing or invalid."""
    try:
        found = json.loads(tags.get(key, "{}"))
    except ValueError:
        return {}
    return {str(name): str(digest) for name, digest in found.items()} if isinstance(found, dict) else {}


def age_of(run: "Run") -> Age:
    """Return the age of a run's models: the candles end at its `as_of`, else at its start."""
    started = datetime.fromtimestamp(run.info.start_time / 1000, UTC)
    until = _until(run.data.tags.get("as_of", ""), started)
    return until.isoformat(timespec="seconds"), started.isoformat(timespec="seconds")


def recipe_of_run(params: Mapping[str, str], *tags: Mapping[str, str]) -> str:
    """Return the preset of a run's models, with the digest of its changed options if the run's params include it."""
    return params.get("recipe") or next((found["preset"] for found in tags if found.get("preset")), "")


def _until(as_of: str, started: datetime) -> datetime:
    try:
        found = datetime.fromisoformat(as_of)
    except ValueError:  # "newest", or missing
        return started
    return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
