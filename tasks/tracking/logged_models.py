"""Judged members on the experiment's page "Models" in MLflow, as logged models with their figures, run and versions.

A logged model has no files of its own: MLflow chooses their place itself, so that they would be stored twice. They are
its run's, and a registered version is what MLflow loads. Its cost per member stands in docs/decisions.md.
"""

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tasks.tracking.connection import Store, pages
from tasks.tracking.records import MemberRecord

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel
    from mlflow.entities.model_registry import ModelVersion

OWN = "cpb"
"""Type of the logged models that cpb makes: only these are deleted with their run."""
FIGURES = ("test_crps_ratio", "test_crps_ratio_low", "test_crps_ratio_high", "test_coverage_80")
"""Metrics of a run that stand beside its logged model too; each takes 0.4 kB of the database."""

_VERSIONS = "mlflow.modelVersions"
"""Tag from which MLflow's interface links a logged model to its registered versions."""
_REFUSED = re.compile(r"[/:.%\"']")
"""Characters that MLflow refuses in a logged model's name."""
_RUNS_A_SEARCH = 100


def open_model(store: Store, run_id: str, record: MemberRecord) -> str:
    """Create the logged model of a member's run, and return its id; `finalize_logged_model` ends it."""
    name = _REFUSED.sub("-", str(record.model))
    made = store.client.create_logged_model(store.experiment_id, name, run_id, model_type=OWN)
    return str(made.model_id)


def link_version(store: Store, version: "ModelVersion") -> None:
    """Link the logged model of a version's run to the version."""
    own = {"name": version.name, "version": str(version.version)}
    for model in models_of(store, [version.run_id or ""]):
        linked = json.loads(model.tags.get(_VERSIONS, "[]"))
        if own not in linked:
            store.client.set_logged_model_tags(model.model_id, {_VERSIONS: json.dumps([*linked, own])})


def delete_models(store: Store, run_ids: Sequence[str]) -> None:
    """Mark the logged models of runs as deleted, as `delete_run` marks the runs."""
    for model in models_of(store, run_ids):
        store.client.delete_logged_model(model.model_id)


def models_of(store: Store, run_ids: Sequence[str]) -> "list[LoggedModel]":
    """Return the logged models that cpb made for these runs."""
    found: list[LoggedModel] = []
    for start in range(0, len(run_ids), _RUNS_A_SEARCH):
        ids = ", ".join(f"'{run_id}'" for run_id in run_ids[start : start + _RUNS_A_SEARCH])
        wanted = f"source_run_id IN ({ids}) AND model_type = '{OWN}'"
        found += pages(store.client.search_logged_models, [store.experiment_id], wanted)
    return found
