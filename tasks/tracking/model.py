"""Registered versions as MLflow models.

MLflow writes `MLmodel`, requirements and environment beside a registered model. They name `cpbmodels.mlflow` as the
loader, which reads `model.safetensors` and `config.json`: nothing is pickled, and no code of the folder is executed, as
it would be with `python_model=PATH`, which stores a script. The light library is included as a wheel, because it is in
no package index. The files belong to the run, whose tag `mlflow_files` lists their digests: a universal member's run
serves the versions of many coins.
"""

import json
import logging
import tempfile
import warnings
from importlib.metadata import version as installed
from pathlib import Path
from platform import python_version
from typing import TYPE_CHECKING

from tasks.storage.model_folder import file_digests, first_damage
from tasks.storage.urls import local_path
from tasks.storage.wheel import light_wheel
from tasks.tracking.experiment import Store
from tasks.tracking.tags import MLFLOW_FILES, digests_of

if TYPE_CHECKING:
    from mlflow.entities import Run

log = logging.getLogger("cpb")

ML_MODEL = "MLmodel"

_PINNED = ("mlflow", "numpy", "pandas", "polars", "safetensors", "torch")


def make_mlflow_model(store: Store, run: "Run") -> None:
    """Write the files by which MLflow loads a run's model, if any is missing or damaged; 10 ms and 0.2 MB a run.

    An `MLmodel` that cpb did not write is left alone, with a warning. A kill in between is safe: the names are recorded
    first, and the next call writes the files. On a tracking server, recorded files are assumed to exist.
    """
    folder, digests = local_path(run.info.artifact_uri), digests_of(run.data.tags, MLFLOW_FILES)
    if digests and (folder is None or not first_damage(folder, digests)):
        return
    if folder and not digests and (folder / ML_MODEL).exists():
        log.warning("%s is not cpb's: the version is not made an MLflow model", folder / ML_MODEL)
        return
    with tempfile.TemporaryDirectory() as part:
        made = Path(part, "model")
        _save(made, run.info.run_id)
        files = file_digests(made)
        store.client.set_tag(run.info.run_id, MLFLOW_FILES, json.dumps(files))
        store.client.log_artifacts(run.info.run_id, str(made))
    for name in digests.keys() - files.keys():  # the wheel of another release
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
            # Not `pip_requirements`: MLflow would name the pip of this environment, and warn where it has none (uv).
            conda_env={
                "name": "mlflow-env",
                "channels": ["conda-forge"],
                "dependencies": [f"python={python_version()}", "pip", {"pip": [*pins, f"./{wheel.name}"]}],
            },
        )
    (folder / wheel.name).write_bytes(wheel.data)
