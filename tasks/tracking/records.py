"""Records that steps pass for logging, and their conversion to MLflow entities within MLflow's limits.

Every text stored in MLflow passes `text` or `_public` here, which remove user names, passwords and tokens from URLs.
"""

import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.identity import ModelId
from tasks.storage.urls import without_credentials

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput, Metric, Param, RunTag

REPORT = "report.html"
"""Artifact name of a flow run's report."""

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
_DIGEST_LIMIT = 36


@dataclass(frozen=True)
class OpenRun:
    """A parent or fleet run ready for writing; `finished`: it was already complete."""

    run_id: str
    finished: bool


@dataclass(frozen=True)
class Dataset:
    """Candles that a run was trained or judged on, with their digest; `path`: the parquet file, or the folder.

    `context`: `training` or `test`, as shown in MLflow's interface.
    """

    name: str
    digest: str
    path: str
    rows: int
    columns: tuple[str, ...] = ()
    context: str = "training"


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

    @property
    def name(self) -> str:
        """The run's name, `ARCH/SYMBOL/IV`."""
        return str(self.model)


def logged(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of a member that are logged in MLflow."""
    if _CLASSIFIER in metrics:
        return dict(metrics)
    return {name: value for name, value in metrics.items() if name in LOGGED}


def text(value: Any) -> str:
    """Return a value as MLflow text, without credentials; a truncated text ends with its length and digest."""
    out = _public(value)
    if len(out) <= _TEXT_LIMIT:
        return out
    note = f"… [{len(out)} chars, sha256 {hashlib.sha256(out.encode()).hexdigest()[:12]}]"
    return out[: _TEXT_LIMIT - len(note)] + note


def _public(value: Any) -> str:
    """Return a text unchanged, anything else as JSON, without credentials in URLs."""
    return without_credentials(value if isinstance(value, str) else json.dumps(value, default=str))


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


def metric_entries(values: Mapping[str, Any], step: int = 0, timestamp: int | None = None) -> list["Metric"]:
    """Return the numbers as MLflow metrics; None, NaN, infinite and non-numeric values are left out."""
    from mlflow.entities import Metric

    stamp = timestamp or int(time.time() * 1000)
    return [Metric(name, float(v), stamp, step) for name, v in values.items() if _is_number(v)]


def _is_number(value: Any) -> bool:
    if value is None or isinstance(value, (str, bytes, list, dict, tuple)):
        return False
    return math.isfinite(float(value))


def dataset_input(dataset: "Dataset") -> "DatasetInput":
    """Return the dataset as MLflow's UI shows it: name, digest, file, rows and columns."""
    from mlflow.entities import Dataset as Entity
    from mlflow.entities import DatasetInput, InputTag

    columns = [{"name": name, "type": "double", "required": True} for name in dataset.columns]
    entity = Entity(
        name=text(dataset.name),
        digest=dataset.digest[:_DIGEST_LIMIT],
        source_type="local",
        source=_public({"uri": dataset.path}),
        schema=_public({"mlflow_colspec": columns}) if columns else None,
        profile=_public({"num_rows": dataset.rows}),
    )
    return DatasetInput(entity, [InputTag("mlflow.data.context", dataset.context)])
