"""Names of the tags that cpb writes on runs, registered models and versions, and what is read from them."""

import json
from collections.abc import Hashable, Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from schemas.identity import MARKETS, SPOT, SeriesId

if TYPE_CHECKING:
    from mlflow.entities import Run

KEY, KIND, OUTCOME, PARENT = "cpb.key", "cpb.kind", "outcome", "mlflow.parentRunId"
FLOW, FLEET, MEMBER = "flow", "fleet", "member"
"""Values of `KIND`."""
STUDY, TRIAL = "study", "trial"
"""Values of `KIND` for what `cpb tune` searches: no board takes a trial for a model that was trained to be used."""
REASON = "reason"
WARNINGS = "warnings"
"""Of a flow's run: what a person should know of its trainings, in one line."""
LEFT_OUT = "left_out"
"""Of a flow's run: what it did not train, and why, in one sentence (`tasks/promotion/weekly.py`)."""
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

Key = TypeVar("Key", bound=Hashable)
Model = TypeVar("Model")
Age = tuple[str, str]
"""Until when a model's candles reach, then when its run began: ISO 8601 in UTC, so that texts sort as times do."""


def series_tags(series: SeriesId) -> dict[str, str]:
    """Return the tags by which MLflow's interface finds the runs and versions of a series."""
    return {MARKET: series.market, SYMBOL: series.symbol, TIMEFRAME: series.timeframe}


def market_of(run: "Run") -> str:
    """Return the market that a flow's run is about; spot where a run that a person made does not say."""
    market = run.data.tags.get(MARKET)
    return market if market in MARKETS else SPOT


def as_of(tags: Mapping[str, str]) -> str | None:
    """Return up to when a run saw candles: as asked, else the day of the newest one that it met."""
    asked = tags.get(AS_OF)
    return tags.get(CANDLES_UNTIL, asked) if asked == NEWEST else asked


def command_of(run: "Run") -> str:
    """Return the command that made a flow's run."""
    return run.data.tags.get(COMMAND) or run.info.run_name or ""


def digests_of(tags: Mapping[str, str], key: str = FILES) -> dict[str, str]:
    """Return the recorded sha256 of each file from the tags of a run or a version; empty where there are none."""
    try:
        found = json.loads(tags.get(key, "{}"))
    except ValueError:
        return {}
    return {str(name): str(digest) for name, digest in found.items()} if isinstance(found, dict) else {}


def newest_of(models: Iterable[tuple[Key, Age, Model]]) -> dict[Key, Model]:
    """Return for each key the model that has seen the newest candles; of several such, the one trained last."""
    found: dict[Key, tuple[Age, Model]] = {}
    for key, age, model in models:
        if key not in found or age > found[key][0]:
            found[key] = age, model
    return {key: model for key, (_, model) in found.items()}


def age_of(run: "Run") -> Age:
    """Return the age of a run's models: no candle that closes after its `as_of`, else after its start, was seen."""
    started = datetime.fromtimestamp(run.info.start_time / 1000, UTC)
    until = _until(run.data.tags.get("as_of", ""), started)
    return until.isoformat(timespec="seconds"), started.isoformat(timespec="seconds")


def recipe_of_run(params: Mapping[str, str], *tags: Mapping[str, str]) -> str:
    """Return the preset of a run's models, with the digest of what was changed in it where the run's params say so."""
    return params.get("recipe") or next((found["preset"] for found in tags if found.get("preset")), "")


def _until(as_of: str, started: datetime) -> datetime:
    try:
        found = datetime.fromisoformat(as_of)
    except ValueError:  # "newest", or not said
        return started
    return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
