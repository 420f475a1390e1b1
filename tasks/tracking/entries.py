"""From our records to MLflow's entries: params, metrics and dataset inputs within MLflow's limits."""

import json
import math
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput, Metric, Param

    from tasks.tracking.runs import Dataset

_TEXT_LIMIT = 6000  # MLflow's limit for a param; a tag may have 8000
_DIGEST_LIMIT = 36


def text(value: Any) -> str:
    """Return a value as MLflow stores it; too long a text is cut and says so."""
    out = value if isinstance(value, str) else json.dumps(value, default=str)
    return out if len(out) <= _TEXT_LIMIT else out[: _TEXT_LIMIT - 20] + f"… [{len(out)} chars]"


def flatten(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested dicts as one level, `{"optimizer": {"lr": 1}}` -> `{"optimizer.lr": 1}`; lists stay."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def param_entries(config: dict[str, Any]) -> list["Param"]:
    """Return the flattened configuration as MLflow params."""
    from mlflow.entities import Param

    return [Param(name, text(value)) for name, value in flatten(config).items()]


def metric_entries(values: dict[str, Any], step: int = 0, timestamp: int | None = None) -> list["Metric"]:
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
        name=dataset.name,
        digest=dataset.digest[:_DIGEST_LIMIT],
        source_type="local",
        source=json.dumps({"uri": dataset.path}),
        schema=json.dumps({"mlflow_colspec": columns}) if columns else None,
        profile=json.dumps({"num_rows": dataset.rows}),
    )
    return DatasetInput(entity, [InputTag("mlflow.data.context", "training")])
