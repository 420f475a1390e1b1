"""Names, tags and params of runs and versions, and their metrics as MLflow stores them (names: `metrics.py`).

A flow is called `train-all · 20 coins · 15m 1h · default · 2025-06-06`, a fleet `har · 20 coins · 1h · default ·
2025-06-06`. Every text stored in MLflow passes `mlflow_text`, which removes user names, passwords and tokens from URLs.
"""

import hashlib
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from numbers import Real
from typing import TYPE_CHECKING, Any

from cpbmodels.fleet.config import WEIGHTS
from schemas.coins import coins_label
from schemas.handover import SeriesRecord
from schemas.identity import MARKETS, SIM, SPOT, SeriesId
from schemas.run import RunSpec
from tasks.storage.urls import public_url, without_credentials
from tasks.tracking.metrics import RATIO

if TYPE_CHECKING:
    from mlflow.entities import Metric, Param, Run, RunTag

KEY, KIND, OUTCOME, PARENT = "cpb.key", "cpb.kind", "outcome", "mlflow.parentRunId"
FLOW, FLEET, MEMBER = "flow", "fleet", "member"
"""Values of `KIND`."""
STUDY, TRIAL = "study", "trial"
"""Values of `KIND` for runs of `cpb tune`, so that no board includes a trial among the trained models."""
REASON = "reason"
BEST, BEST_CLASSIFIER = "best_{}", "best_classifier_{}"
"""Of a flow's run, by timeframe: the fleet whose pooled skill is the run's, as `har/default`."""
WARNINGS = "warnings"
"""Of a flow's run: warnings about its trainings, in one line."""
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
FLEET_SPEC = "cpb.fleet"
"""JSON, on a version: the `FleetSpec` that made the model, so that a night can train it again."""
SELECTED = "cpb.selected_on"
"""Of a version: the test rows on which its recipe was selected, `2025-02-06/2025-06-05`; not an independent result."""
KEEP = "keep"
"""Tag of a run or a version that pruning must keep; set by people, with any value."""
PRUNED = "cpb.pruned"
"""Time at which members of a fleet were pruned: the remaining members, such as champions, are not a complete fleet."""
BOARD, NO_SCORE = "cpb.board", "none"
"""Of a fleet's run: digest of its market, recipe and judged series, so that the board reads the newest of equal fleets
alone (`board_of`); and its value for a fleet without a score."""
PROCESS = "cpb.process"
"""The process that opened a run."""
OPENED_AT = "cpb.opened_at"
"""When that process opened the run (ISO 8601, UTC): MLflow keeps the first start of a run that is continued."""
Age = tuple[str, str]
"""End of a model's candles, then start of its run: ISO 8601 in UTC, so that texts sort like times."""
_TEXT_LIMIT = 6000  # MLflow's limit for a param; a tag may have 8000
SEPARATOR = " · "
COMPLETE, PARTIAL, FAILED = "complete", "partial", "failed"
"""Outcomes of a flow or fleet; `partial` keeps good results, and the same command continues it."""


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
        digests = json.loads(tags.get(key, "{}"))
    except ValueError:
        return {}
    return {str(name): str(digest) for name, digest in digests.items()} if isinstance(digests, dict) else {}


def weights_of(tags: Mapping[str, str]) -> str:
    """Return the recorded sha256 of a model's weights from the tags of its run or version; "" if not recorded."""
    return digests_of(tags).get(WEIGHTS, "")


def age_of(run: "Run") -> Age:
    """Return the age of a run's models: the candles end at its `as_of`, else at its start."""
    started = datetime.fromtimestamp(run.info.start_time / 1000, UTC)
    try:
        until = datetime.fromisoformat(run.data.tags.get(AS_OF, ""))
    except ValueError:  # `NEWEST`, or missing
        until = started
    until = until.astimezone(UTC) if until.tzinfo else until.replace(tzinfo=UTC)
    return f"{until:%Y-%m-%dT%H:%M:%SZ}", f"{started:%Y-%m-%dT%H:%M:%SZ}"


def recipe_of_run(params: Mapping[str, str], *tags: Mapping[str, str]) -> str:
    """Return the preset of a run's models, with the digest of its changed options if the run's params include it."""
    return params.get("recipe") or next((named["preset"] for named in tags if named.get("preset")), "")


def board_of(fleet: "Run", members: Iterable["Run"]) -> str:
    """Return the value of a fleet's tag `BOARD`: equal for fleets of which the board shows the newest alone.

    Fleets whose `as_of` was requested are told apart from those that saw the newest candles: of these the one that
    began last is the newest.
    """
    tags = fleet.data.tags
    judged = sorted(
        {f"{m.data.tags.get(SYMBOL)} {m.data.tags.get(TIMEFRAME)}" for m in members if is_judged(m)}
    )
    if not judged:
        return NO_SCORE
    requested = tags.get(AS_OF, NEWEST) != NEWEST
    recipe = recipe_of_run(fleet.data.params, tags)
    parts = [market_of(fleet), architecture_of(fleet), recipe, requested, judged]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def is_judged(member: "Run") -> bool:
    """Whether a member's run has a score that the board shows."""
    return bool(member.info.status == "FINISHED" and RATIO in member.data.metrics)


def architecture_of(fleet: "Run") -> str:
    """Return the architecture of a fleet's run, as the board shows it."""
    return fleet.data.tags.get("architecture") or fleet.info.run_name or ""


def mlflow_text(value: Any) -> str:
    """Return a value as MLflow text, JSON unless it is a text, without credentials in URLs.

    A truncated text ends with its length and digest.
    """
    # Before it is cut: a URL that was cut in the middle is not recognised any more.
    out = without_credentials(value if isinstance(value, str) else json.dumps(value, default=str))
    if len(out) <= _TEXT_LIMIT:
        return out
    note = f"… [{len(out)} chars, sha256 {hashlib.sha256(out.encode()).hexdigest()[:12]}]"
    return out[: _TEXT_LIMIT - len(note)] + note


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested dicts as one level, `{"optimizer": {"lr": 1}}` -> `{"optimizer.lr": 1}`; lists are kept."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        # An empty dict is a value of its own: flattened, it would vanish.
        if isinstance(value, dict) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def spec_params(spec: RunSpec) -> dict[str, Any]:
    """Return the options of a run as params; the preset files as one text, whose names a param's name cannot hold."""
    params = spec.model_dump(mode="json") | {"source": public_url(spec.source) if spec.source else None}
    files = params.pop("preset_files")
    return params | ({"preset_files": json.dumps(files)} if files else {})


def param_texts(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the flattened configuration as MLflow param texts."""
    return {name: mlflow_text(value) for name, value in flatten(config).items()}


def param_entries(texts: Mapping[str, str]) -> list["Param"]:
    """Return texts as MLflow params."""
    from mlflow.entities import Param

    return [Param(name, value) for name, value in texts.items()]


def tag_texts(tags: Mapping[str, Any]) -> dict[str, str]:
    """Return tags as MLflow texts; None values are left out."""
    return {name: mlflow_text(value) for name, value in tags.items() if value is not None}


def tag_entries(tags: Mapping[str, Any]) -> list["RunTag"]:
    """Return tags as MLflow run tags."""
    from mlflow.entities import RunTag

    return [RunTag(name, value) for name, value in tag_texts(tags).items()]


def metric_entries(values: Mapping[str, Any], step: int = 0, timestamp: int | None = None) -> list["Metric"]:
    """Return the numbers as MLflow metrics; None, NaN, infinite and non-numeric values are left out."""
    from mlflow.entities import Metric

    stamp = timestamp or int(time.time() * 1000)
    numbers = {n: float(v) for n, v in values.items() if isinstance(v, Real) and math.isfinite(v)}
    return [Metric(name, value, stamp, step) for name, value in numbers.items()]


def run_name(what: str, preset: str, scope: Mapping[str, str]) -> str:
    """Return the name of a flow's run or a fleet's.

    Args:
        what: the flow's command, the fleet's architecture.
        preset: the flow's presets, the fleet's preset with the digest of its changed options.
        scope: its `scope_tags`.
    """
    return SEPARATOR.join((what, scope[COINS], scope[TIMEFRAMES], preset, scope[CANDLES_UNTIL]))


def _data_end(spec: RunSpec, records: Iterable[SeriesRecord]) -> str:
    """Return the day (UTC) before which the data ends: `--as-of`, with its time unless midnight, else the day of the
    newest candle.
    """
    as_of = spec.scope.as_of
    if as_of is None:
        return f"{datetime.fromtimestamp(max(r.last_us for r in records) / 1e6, UTC):%Y-%m-%d}"
    return f"{as_of:%Y-%m-%d}" if as_of.time() == as_of.time().min else f"{as_of:%Y-%m-%dT%H:%M}"


def scope_tags(spec: RunSpec, records: Sequence[SeriesRecord]) -> dict[str, str]:
    """Return the tags of a flow's or a fleet's run on these series."""
    return {
        COINS: coins_label(record.series.symbol for record in records),
        TIMEFRAMES: _timeframes(records),
        CANDLES_UNTIL: _data_end(spec, records),
        **source_tags(spec),
    }


def source_tags(spec: RunSpec) -> dict[str, str]:
    """Return the tags that members also have, in addition to their series' tags."""
    return {SOURCE_KIND: SIMULATED if spec.market == SIM else REAL, SEED: str(spec.seed)}


def _timeframes(records: Iterable[SeriesRecord]) -> str:
    seconds = {record.series.timeframe: record.series.seconds for record in records}
    return " ".join(sorted(seconds, key=seconds.__getitem__))
