"""Makes the folder of a registered model an MLflow model: `MLmodel`, an example, requirements; no pickle.

MLflow imports `cpbmodels.mlflow`, which reads `model.safetensors` and `config.json` beside these files. The light
library is included as a wheel, because it is in no package index. The files belong to the run, whose tag
`mlflow_files` lists their digests: a universal member's run serves the versions of many coins.
"""

import json
import platform
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.storage.digests import file_digest
from tasks.storage.files import write_bytes
from tasks.storage.model_folder import damage_of, read_config
from tasks.storage.urls import local_path
from tasks.tracking.connection import Store
from tasks.tracking.tags import MLFLOW_FILES, digests_of

if TYPE_CHECKING:
    from mlflow.entities import Run

ML_MODEL, REQUIREMENTS, ENVIRONMENT = "MLmodel", "requirements.txt", "python_env.yaml"
EXAMPLE, SERVED_EXAMPLE = "input_example.json", "serving_input_example.json"
NAMES = (ML_MODEL, REQUIREMENTS, ENVIRONMENT, EXAMPLE, SERVED_EXAMPLE)
LOADED = "registered_model_meta"
"""Written by MLflow into a local registered model's folder when it loads the model."""
WHEELS = "wheels"
"""The folder with the library's wheel, the only folder within a run's artifacts."""

_PINNED = ("mlflow", "numpy", "pandas", "polars", "safetensors", "torch")
_LAST = datetime(2025, 1, 1, tzinfo=UTC)
"""Open time of the example's last candle: closed long ago in any timeframe."""


def add_flavour(
    store: Store, run: "Run", source: str, folder: Path, timeframe: str, kept: Path | None = None
) -> dict[str, str]:
    """Write missing or damaged files beside a model, and return the digests of all files by name.

    A folder with an unreadable model, or with an `MLmodel` not written by cpb, is skipped: then the result is empty.
    A kill in between is safe: the names are recorded first, and the next call writes the files.

    Args:
        source: the URI of the model's folder among the run's artifacts.
        folder: that folder on this machine, or a copy of it.
        timeframe: of the series for which it is registered.
        kept: if a server stores the artifacts, a fresh copy of them, which is checked. Without it, files uploaded
            before are assumed to exist.
    """
    digests = digests_of(run.data.tags, MLFLOW_FILES)
    here = local_path(source)
    written = here or kept
    if digests and (written is None or not damaged(written, digests)):
        return digests
    if damage_of(folder, {}) or (not digests and (folder / ML_MODEL).exists()):
        return {}
    shared = _common_files(timeframe, read_config(folder).context or 0)
    own = {ML_MODEL: _ml_model(run)}
    found = {name: sha256(data).hexdigest() for name, data in sorted({**own, **shared}.items())}
    store.client.set_tag(run.info.run_id, MLFLOW_FILES, json.dumps(found))
    if here is None:
        _upload(store, run, source, {**own, **shared})
        return found
    for name in digests.keys() - found.keys():
        if Path(name).parent == Path(WHEELS):  # of another release
            (here / name).unlink(missing_ok=True)
    for name, data in {**shared, **own}.items():  # `MLmodel` last: it makes the folder a model
        write_bytes(here / name, data)
    return found


def damaged(folder: Path, digests: Mapping[str, str]) -> list[str]:
    """Return the names of recorded files that are missing or damaged in a folder."""
    return [n for n, d in digests.items() if not (folder / n).is_file() or file_digest(folder / n) != d]


def _upload(store: Store, run: "Run", source: str, files: Mapping[str, bytes]) -> None:
    """Log the files as artifacts of a run whose artifacts are on a tracking server."""
    below = source.removeprefix(run.info.artifact_uri).strip("/")
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            path = Path(folder, name)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
        store.client.log_artifacts(run.info.run_id, folder, below or None)


def _ml_model(run: "Run") -> bytes:
    """Return the file `MLmodel`: the model's loader, signature and example path.

    The same run yields the same bytes, so a damaged file can be restored.
    """
    from mlflow.models import Model

    from cpbmodels.mlflow import signature

    ended = datetime.fromtimestamp((run.info.end_time or run.info.start_time) / 1000, UTC)
    model = Model(
        run_id=run.info.run_id,
        model_uuid=run.info.run_id,
        utc_time_created=str(ended.replace(tzinfo=None)),
        signature=signature(),
        saved_input_example_info={
            "artifact_path": EXAMPLE,
            "type": "dataframe",
            "pandas_orient": "split",
            "serving_input_path": SERVED_EXAMPLE,
        },
    )
    model.add_flavor(
        "python_function",
        loader_module="cpbmodels.mlflow",
        python_version=platform.python_version(),
        env={"virtualenv": ENVIRONMENT, "conda": ENVIRONMENT},  # MLflow reads the second, but does not use it
    )
    return model.to_yaml().encode()


@cache
def _common_files(timeframe: str, context: int) -> dict[str, bytes]:
    """Return the files common to all models of this timeframe and context."""
    from tasks.storage.wheel import light_wheel  # imports cpbmodels, which `cpb --help` does not need

    wheel = light_wheel()
    example = _example(timeframe, context)
    path = f"{WHEELS}/{wheel.name}"  # in the requirements, relative to the model folder
    # Without +cpu: an index may lack that build.
    pins = [f"{name}=={version(name).partition('+')[0]}" for name in _PINNED]
    return {
        path: wheel.data,
        REQUIREMENTS: "\n".join([*pins, path, ""]).encode(),
        ENVIRONMENT: _environment(wheel.sha256).encode(),
        EXAMPLE: json.dumps(example).encode(),
        SERVED_EXAMPLE: json.dumps({"dataframe_split": example}).encode(),
    }


def _environment(wheel_digest: str) -> str:
    """Return the environment file from which MLflow builds an environment.

    The comment is for MLflow, which caches environments by the text of this file: another build of the same library
    version must not reuse the environment of the first build.
    """
    python = platform.python_version()
    return f'python: {python}\ndependencies:\n- -r {REQUIREMENTS}\n- "# cpbmodels sha256 {wheel_digest}"\n'


def _example(timeframe: str, context: int) -> dict[str, Any]:
    """Return synthetic candles, enough to compute every column over a whole context, as pandas' `split` table."""
    import numpy as np

    from cpbmodels.data.figures import FEATURE_WARMUP, INTERVAL_SECONDS

    step, rows = timedelta(seconds=INTERVAL_SECONDS[timeframe]), context + 2 * FEATURE_WARMUP
    draw = np.random.default_rng(1)
    close = 100 * np.exp(np.cumsum(draw.normal(0, 0.005, rows)))
    opened = np.r_[100, close[:-1]]
    high, low = np.maximum(opened, close) * 1.002, np.minimum(opened, close) * 0.998
    volume = draw.lognormal(5, 0.5, rows)
    table = np.column_stack([opened, high, low, close, volume]).round(3).tolist()
    times = [(_LAST - i * step).strftime("%Y-%m-%dT%H:%M:%SZ") for i in reversed(range(rows))]
    return {
        "columns": ["open_time", "open", "high", "low", "close", "volume"],
        "data": [[time, *values] for time, values in zip(times, table, strict=True)],
    }
