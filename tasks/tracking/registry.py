"""The registry of champions: model `cpb-SYMBOL-IV`, alias `champion`, the reason as a tag of the version."""

import logging
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.errors import CpbError
from tasks.tracking.entries import text
from tasks.tracking.runs import local_artifacts
from tasks.tracking.store import Store, open_store

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion

ALIAS = "champion"
SIMULATOR = "sim"
"""The tag `source` of runs on simulated candles."""
_METRIC = "metric."
_WEIGHTS = "model.safetensors"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Champion:
    """The best model of one coin x timeframe: its version, its run and the folder `cpbmodels.load` reads."""

    symbol: str
    timeframe: str
    version: str
    run_id: str
    folder: Path
    metrics: dict[str, float] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The registered model's name."""
        return model_name(self.symbol, self.timeframe)

    @property
    def model_version(self) -> str:
        """The text that forecasts are stored under: registered model and version, `cpb-BTCUSDT-1h/3`."""
        return f"{self.name}/{self.version}"


def model_name(symbol: str, timeframe: str) -> str:
    """Return the registered model's name of one coin x timeframe."""
    return f"cpb-{symbol}-{timeframe}"


def register_champion(
    symbol: str,
    timeframe: str,
    run_id: str,
    folder_artifact_path: str = "",
    reason: str = "",
    metrics: dict[str, Any] | None = None,
    tags: dict[str, Any] | None = None,
    store: Store | None = None,
) -> str:
    """Make a member run the champion of a coin x timeframe and return the version.

    A run that already has a version keeps it (the alias moves, the reason is renewed): promoting twice
    changes nothing. `metrics` are this coin's, kept with the version: a universal member serves many coins.

    Args:
        folder_artifact_path: where in the run's artifacts the model folder lies; "" for their root.
    """
    store = store or open_store()
    name = model_name(symbol, timeframe)
    known = {k: text(v) for k, v in (tags or {}).items() if v is not None}
    known |= {"symbol": symbol, "timeframe": timeframe, "reason": text(reason)}
    known |= {f"{_METRIC}{k}": repr(float(v)) for k, v in (metrics or {}).items() if v is not None}
    versions = _versions(store, name, symbol, timeframe)
    mine = next((v for v in versions if v.run_id == run_id), None)
    if mine:
        _renew_tags(store, mine, known)
    else:
        mine = _new_version(store, name, run_id, folder_artifact_path, known)
    if ALIAS not in mine.aliases:
        store.client.set_registered_model_alias(name, ALIAS, str(mine.version))
    return str(mine.version)


def champions(
    symbols: Sequence[str] | None = None,
    timeframes: Sequence[str] | None = None,
    store: Store | None = None,
) -> list[Champion]:
    """Return the current champions, by timeframe and symbol, with their model folder on this machine.

    One whose files are gone is left out with a warning; the others are still good.
    """
    store = store or open_store(create=False)
    found = []
    for name in _champion_names(store):
        version = store.client.get_model_version_by_alias(name, ALIAS)
        symbol, timeframe = version.tags.get("symbol", ""), version.tags.get("timeframe", "")
        if (symbols and symbol not in symbols) or (timeframes and timeframe not in timeframes):
            continue
        champion = _champion(store, version, symbol, timeframe)
        if champion:
            found.append(champion)
    return sorted(found, key=lambda c: (c.timeframe, c.symbol))


def of_source(found: Sequence[Champion], source: str | None) -> list[Champion]:
    """Return the champions that learnt from the same kind of market: simulated, or real."""
    return [c for c in found if (c.tags.get("source") == SIMULATOR) == (source == SIMULATOR)]


def _champion(store: Store, version: "ModelVersion", symbol: str, timeframe: str) -> Champion | None:
    run_id = version.run_id or ""
    run = store.client.get_run(run_id)
    folder = _folder(store, version)
    if not (folder / _WEIGHTS).is_file():
        log.warning("champion %s version %s has no %s in %s: promote again", version.name, version.version,
                    _WEIGHTS, folder)  # fmt: skip
        return None
    own = {k.removeprefix(_METRIC): float(v) for k, v in version.tags.items() if k.startswith(_METRIC)}
    tags = {**run.data.tags, **{k: v for k, v in version.tags.items() if not k.startswith(_METRIC)}}
    return Champion(
        symbol=symbol,
        timeframe=timeframe,
        version=str(version.version),
        run_id=run_id,
        folder=folder,
        metrics={**run.data.metrics, **own},
        tags=tags,
    )


def _champion_names(store: Store) -> list[str]:
    names: list[str] = []
    token = None
    while True:
        page = store.client.search_registered_models("name LIKE 'cpb-%'", max_results=1000, page_token=token)
        names += [model.name for model in page if ALIAS in model.aliases]
        token = page.token
        if not token:
            return names


def _versions(store: Store, name: str, symbol: str, timeframe: str) -> "list[ModelVersion]":
    from mlflow.exceptions import MlflowException

    try:
        store.client.create_registered_model(name, {"symbol": symbol, "timeframe": timeframe})
        return []
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    return list(store.client.search_model_versions(f"name = '{name}'"))


def _new_version(
    store: Store, name: str, run_id: str, artifact_path: str, tags: dict[str, str]
) -> "ModelVersion":
    run: Run = store.client.get_run(run_id)
    if run.info.status != "FINISHED":
        raise CpbError(
            f"run {run_id} is {run.info.status}, not FINISHED; only a finished member can be {name}"
        )
    source = f"{run.info.artifact_uri}/{artifact_path}".rstrip("/")
    return store.client.create_model_version(name, source, run_id, tags=tags, await_creation_for=0)


def _renew_tags(store: Store, version: "ModelVersion", tags: dict[str, str]) -> None:
    for key, value in tags.items():
        if version.tags.get(key) != value:
            store.client.set_model_version_tag(version.name, str(version.version), key, value)


def _folder(store: Store, version: "ModelVersion") -> Path:
    local = local_artifacts(version.source or "")
    return local if local is not None else _download(store, version)


def _download(store: Store, version: "ModelVersion") -> Path:
    """Fetch a champion from a remote artifact store, once per version; complete or absent."""
    import mlflow

    cache = Path("mlruns/champions").absolute()
    # The run's id, because another server has another model under the same name and number.
    target = cache / f"{version.name}-{version.version}-{(version.run_id or '')[:12]}"
    if not target.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as part:
            got = mlflow.artifacts.download_artifacts(version.source, dst_path=part, tracking_uri=store.uri)
            _adopt(Path(got), target)
    return target


def _adopt(part: Path, target: Path) -> None:
    whole = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.rmtree(whole, ignore_errors=True)
    shutil.copytree(part, whole)
    if not target.exists():
        whole.rename(target)
