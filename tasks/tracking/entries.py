"""From cpb's records to MLflow's entries: params, metrics, tags and dataset inputs within MLflow's limits.

Every text that MLflow stores passes `text` or `_public` here, which remove user names, passwords and tokens from URLs.
"""

import hashlib
import json
import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tasks.storage.urls import without_credentials

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput, Metric, Param, RunTag

    from tasks.tracking.records import Dataset

_TEXT_LIMIT = 6000  # MLflow's limit for a param; a tag may have 8000
_DIGEST_LIMIT = 36


def text(value: Any) -> str:
    """Return a value as MLflow stores it, without credentials; one that is cut says its length and digest."""
    out = _public(value)
    if len(out) <= _TEXT_LIMIT:
        return out
    note = f"… [{len(out)} chars, sha256 {hashlib.sha256(out.encode()).hexdigest()[:12]}]"
    return out[: _TEXT_LIMIT - len(note)] + note


def _public(value: Any) -> str:
    """Return a text as it is, anything else as JSON; URLs in it without credentials."""
    return without_credentials(value if isinstance(value, str) else json.dumps(value, default=str))


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested dicts as one level, `{"optimizer": {"lr": 1}}` -> `{"optimizer.lr": 1}`; lists stay."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def param_texts(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the flattened configuration as MLflow stores it."""
    return {name: text(value) for name, value in flatten(config).items()}


def param_entries(texts: Mapping[str, str]) -> list["Param"]:
    """Return texts as MLflow params."""
    from mlflow.entities import Param

    return [Param(name, value) for name, value in texts.items()]


def tag_texts(tags: Mapping[str, Any]) -> dict[str, str]:
    """Return tags as MLflow stores them; None is no tag."""
    return {name: text(value) for name, value in tags.items() if value is not None}


def tag_entries(tags: Mapping[str, Any]) -> list["RunTag"]:
    """Return tags of a run."""
    from mlflow.entities import RunTag

    return [RunTag(name, value) for name, value in tag_texts(tags).items()]


def metric_entries(values: Mapping[str, Any], step: int = 0, timestamp: int | None = None) -> list["Metric"]:
    """Return the numbers as MLflow metrics; None, NaN, infinite and non-numeric values are no measurement."""
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
