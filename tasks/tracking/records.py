"""What runs are called and what is written on them: names, tags, params and metrics as MLflow's entities.

A flow is `train-all · 20 coins · 15m 1h · default · 2025-06-06`, a fleet `har · 20 coins · 1h · default · 2025-06-06`.
Members are called `ARCH/SYMBOL/IV`.

Every text stored in MLflow passes `text`, which removes user names, passwords and tokens from URLs.
"""

import hashlib
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.handover import SeriesRecord
from schemas.identity import SIM, ModelId, coins_label
from schemas.run import RunSpec
from tasks.storage.urls import without_credentials
from tasks.tracking.tags import CANDLES_UNTIL, COINS, REAL, SEED, SIMULATED, SOURCE_KIND, TIMEFRAMES

if TYPE_CHECKING:
    from mlflow.entities import Metric, Param, RunTag

_CONTRACT = (
    "test_crps", "test_crps_ratio", "test_mae_ratio", "test_directional_accuracy", "test_coverage_80", "windows_per_s",
    "epochs_run", "gpu_mem_allocated_peak_mb", "gpu_mem_reserved_peak_mb", "gpu_util_mean", "rss_peak_mb",
)  # fmt: skip
_READ = (
    "test_crps_ratio_low", "test_crps_ratio_high", "test_p", "test_p_holm", "test_n", "test_coverage_90",
    "validation_crps_ratio",
)  # fmt: skip
"""Metrics of members other than champions that leaderboard, the page's lists, model card and gate read."""
LOGGED = frozenset((*_CONTRACT, *_READ, *(name.replace("crps", "rps") for name in (*_CONTRACT, *_READ))))
"""Metrics of a member's run in MLflow: those of the contract, and those read by lists and gates.

A metric of a run costs SQLite 380 bytes of rows and indexes (six of them), and a night over the whole exchange has
thousands of members. All other metrics are beside the model, in `metrics.json` and `config.json`.
"""
_CLASSIFIER = "test_accuracy"
"""A metric that only classifiers have; there are few classifiers, so all their metrics are logged."""
_TEXT_LIMIT = 6000  # MLflow's limit for a param; a tag may have 8000
SEPARATOR = " · "


@dataclass(frozen=True)
class OpenRun:
    """A parent or fleet run ready for writing; `finished`: it was already complete."""

    run_id: str
    finished: bool


@dataclass(frozen=True)
class MemberRecord:
    """A trained and judged member, or a failed member with its `reason`.

    `history` is one dict per epoch (`train_loss val_loss lr`); `metrics` are logged once; `config` is the
    whole resolved configuration; `folder` holds the artifacts; `tags` adds to the contract's tags.
    """

    key: str
    model: ModelId
    device: str
    preset: str
    data_digest: str
    as_of: str
    config: Mapping[str, Any] = field(default_factory=dict)
    history: Sequence[Mapping[str, Any]] = ()
    metrics: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    tags: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""


def logged(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of a member that are logged in MLflow."""
    if _CLASSIFIER in metrics:
        return dict(metrics)
    return {name: value for name, value in metrics.items() if name in LOGGED}


def text(value: Any) -> str:
    """Return a value as MLflow text, JSON unless it is a text, without credentials in URLs.

    A truncated text ends with its length and digest.
    """
    out = without_credentials(value if isinstance(value, str) else json.dumps(value, default=str))
    if len(out) <= _TEXT_LIMIT:
        return out
    note = f"… [{len(out)} chars, sha256 {hashlib.sha256(out.encode()).hexdigest()[:12]}]"
    return out[: _TEXT_LIMIT - len(note)] + note


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested dicts as one level, `{"optimizer": {"lr": 1}}` -> `{"optimizer.lr": 1}`; lists are kept."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def param_texts(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the flattened configuration as MLflow param texts."""
    return {name: text(value) for name, value in flatten(config).items()}


def param_entries(texts: Mapping[str, str]) -> list["Param"]:
    """Return texts as MLflow params."""
    from mlflow.entities import Param

    return [Param(name, value) for name, value in texts.items()]


def tag_texts(tags: Mapping[str, Any]) -> dict[str, str]:
    """Return tags as MLflow texts; None values are left out."""
    return {name: text(value) for name, value in tags.items() if value is not None}


def tag_entries(tags: Mapping[str, Any]) -> list["RunTag"]:
    """Return tags as MLflow run tags."""
    from mlflow.entities import RunTag

    return [RunTag(name, value) for name, value in tag_texts(tags).items()]


def metric_entries(
    values: Mapping[str, Any], step: int = 0, timestamp: int | None = None, model: str = ""
) -> list["Metric"]:
    """Return the numbers as MLflow metrics; None, NaN, infinite and non-numeric values are left out.

    Args:
        model: id of a logged model that gets them too.
    """
    from mlflow.entities import Metric

    stamp = timestamp or int(time.time() * 1000)
    numbers = {name: float(value) for name, value in values.items() if _is_number(value)}
    return [Metric(name, value, stamp, step, model_id=model or None) for name, value in numbers.items()]


def _is_number(value: Any) -> bool:
    if value is None or isinstance(value, (str, bytes, list, dict, tuple)):
        return False
    return math.isfinite(float(value))


def run_name(what: str, spec: RunSpec, records: Sequence[SeriesRecord]) -> str:
    """Return the name of a flow's run (`what`: its command) or a fleet's (its architecture) on these series."""
    coins = coins_label(record.series.symbol for record in records)
    return SEPARATOR.join((what, coins, _timeframes(records), spec.preset, _data_end(spec, records)))


def _data_end(spec: RunSpec, records: Iterable[SeriesRecord]) -> str:
    """Return the day (UTC) before which the data ends: `--as-of`, with its time unless midnight, else the day of the
    newest candle.
    """
    as_of = spec.scope.as_of
    if as_of is None:
        return f"{datetime.fromtimestamp(max(r.last_us for r in records) / 1e6, UTC):%Y-%m-%d}"
    return instant_label(as_of)


def instant_label(instant: datetime) -> str:
    """Return the day of an instant, with its time unless that is midnight."""
    return f"{instant:%Y-%m-%d}" if instant.time() == instant.time().min else f"{instant:%Y-%m-%dT%H:%M}"


def source_kind(market: str) -> str:
    """Return whether a market's candles are `real` or `simulated`."""
    return SIMULATED if market == SIM else REAL


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
    return {SOURCE_KIND: source_kind(spec.market), SEED: str(spec.seed)}


def _timeframes(records: Iterable[SeriesRecord]) -> str:
    found = {record.series.timeframe: record.series.seconds for record in records}
    return " ".join(sorted(found, key=found.__getitem__))
