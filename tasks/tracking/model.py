"""Registered versions as MLflow models, and judged members on the experiment's page "Models".

MLflow writes `MLmodel`, requirements and environment beside a registered model. They name `cpbmodels.mlflow` as the
loader, which reads `model.safetensors` and `config.json`: nothing is pickled, and no code of the folder is executed, as
it would be with `python_model=PATH`, which stores a script. The light library is included as a wheel, because it is in
no package index. The files belong to the run, whose tag `mlflow_files` lists their digests: a universal member's run
serves the versions of many coins.

A logged model has no files of its own: MLflow chooses their place itself, so that they would be stored twice. They are
its run's, and a registered version is what MLflow loads.
"""

import json
import logging
import re
import tempfile
import warnings
from collections.abc import Sequence
from importlib.metadata import version as installed
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.storage.files import local_path
from tasks.storage.model_folder import file_digests
from tasks.storage.wheel import light_wheel
from tasks.tracking.store import MLFLOW_FILES, Store, damaged, digests_of, pages

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel, Run
    from mlflow.entities.model_registry import ModelVersion

    from tasks.tracking.runs import MemberRecord

log = logging.getLogger("cpb")

ML_MODEL = "MLmodel"
OWN = "cpb"
"""Type of the logged models that cpb makes: only these are deleted with their run."""
FIGURES = ("test_crps_ratio", "test_crps_ratio_low", "test_crps_ratio_high", "test_coverage_80")
"""Metrics of a run that stand beside its logged model too; each takes 0.4 kB of the database."""

_PINNED = ("mlflow", "numpy", "pandas", "polars", "safetensors", "torch")
_VERSIONS = "mlflow.modelVersions"
"""Tag from which MLflow's interface links a logged model to its registered versions."""
_REFUSED = re.compile(r"[/:.%\"']")
"""Characters that MLflow refuses in a logged model's name."""
_RUNS_A_SEARCH = 100


def make_mlflow_model(store: Store, run: "Run") -> None:
    """Write the files by which MLflow loads a run's model, if any is missing or damaged; 10 ms and 0.2 MB a run.

    An `MLmodel` that cpb did not write is left alone, with a warning. A kill in between is safe: the names are recorded
    first, and the next call writes the files. On a tracking server, recorded files are assumed to exist.
    """
    folder, digests = local_path(run.info.artifact_uri), digests_of(run.data.tags, MLFLOW_FILES)
    if digests and (folder is None or not damaged(folder, digests)):
        return
    if folder and not digests and (folder / ML_MODEL).exists():
        log.warning("%s is not cpb's: the version is not made an MLflow model", folder / ML_MODEL)
        return
    with tempfile.TemporaryDirectory() as part:
        made = Path(part, "model")
        _save(made, run.info.run_id)
        found = file_digests(made)
        store.client.set_tag(run.info.run_id, MLFLOW_FILES, json.dumps(found))
        store.client.log_artifacts(run.info.run_id, str(made))
    for name in digests.keys() - found.keys():  # the wheel of another release
        if folder and Path(name).name == name:
            (folder / name).unlink(missing_ok=True)


def _save(folder: Path, run_id: str) -> None:
    import mlflow.pyfunc
    from mlflow.models import Model

    from cpbmodels.mlflow import signature

    wheel = light_wheel()
    # Without +cpu: an index may lack that build. The wheel's path is relative to the folder.
    pins = [f"{name}=={installed(name).partition('+')[0]}" for name in _PINNED]
    with warnings.catch_warnings():
        # MLflow wants an input example beside the signature, which says as much; it would take space in each version.
        warnings.filterwarnings("ignore", ".*input example", UserWarning)
        mlflow.pyfunc.save_model(
            folder,
            loader_module="cpbmodels.mlflow",
            mlflow_model=Model(run_id=run_id),
            signature=signature(),
            pip_requirements=[*pins, f"./{wheel.name}"],
        )
    (folder / wheel.name).write_bytes(wheel.data)


def open_model(store: Store, run_id: str, record: "MemberRecord") -> str:
    """Create the logged model of a member's run, and return its id; `finalize_logged_model` ends it."""
    name = _REFUSED.sub("-", str(record.model))
    made = store.client.create_logged_model(store.experiment_id, name, run_id, model_type=OWN)
    return str(made.model_id)


def link_version(store: Store, version: "ModelVersion") -> None:
    """Link the logged model of a version's run to the version."""
    link = {"name": version.name, "version": str(version.version)}
    for model in models_of(store, [version.run_id or ""]):
        links = [*json.loads(model.tags.get(_VERSIONS, "[]")), link]
        store.client.set_logged_model_tags(model.model_id, {_VERSIONS: json.dumps(links)})


def delete_models(store: Store, run_ids: Sequence[str]) -> None:
    """Mark the logged models of runs as deleted, as `delete_run` marks the runs."""
    for model in models_of(store, run_ids):
        store.client.delete_logged_model(model.model_id)


def models_of(store: Store, run_ids: Sequence[str]) -> "list[LoggedModel]":
    """Return the logged models that cpb made for these runs."""
    models: list[LoggedModel] = []
    for start in range(0, len(run_ids), _RUNS_A_SEARCH):
        ids = ", ".join(f"'{run_id}'" for run_id in run_ids[start : start + _RUNS_A_SEARCH])
        wanted = f"source_run_id IN ({ids}) AND model_type = '{OWN}'"
        models += pages(store.client.search_logged_models, [store.experiment_id], wanted)
    return models
