"""The packaged models, from which a market's series are forecast: each read as one version of it."""

import hashlib
import os
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.numpy import load

from cpbmodels.data.extremes import TENSORS, Extremes
from cpbmodels.errors import ModelError
from cpbmodels.files import MAX_FILE, read_regular
from cpbmodels.fleet.config import CONFIG, MAX_BYTES, WEIGHTS, check_whole, extremes_fault
from schemas.errors import DamagedError
from schemas.identity import SeriesId, is_series_name, tree_of
from schemas.ledger import Reference
from tasks.storage.folders import settled
from tasks.storage.model_folder import (
    NEEDED,
    REFERENCE,
    ModelConfig,
    config_in,
    damaged_model,
    read_config,
    reference_in,
)

if TYPE_CHECKING:
    from cpbmodels.fleet.member import Member


_VERSION = re.compile(r"(?P<name>cpb-[\w-]+)/[0-9]+")


@dataclass(frozen=True)
class PackagedModel:
    """A champion in the packaged folder, from which it forecasts; `cpbmodels.load` checks its files.

    `model_version`: registered model and version, `cpb-BTCUSDT-1h/3`; `weights_sha256`: of the weights that
    `config.json` was published with, which may not be those in the folder. Both are "" if `config.json` is damaged.
    """

    series: SeriesId
    model_version: str
    verdict: str
    folder: Path
    weights_sha256: str


@dataclass(frozen=True)
class ServedModel:
    """A packaged model as one reading of its folder found it: whatever is taken of it is of the same version.

    `config.json` has the digest of its fields and that of `weights`; the reference was read from the same folder.

    Attributes
    ----------
    weights: the bytes of `model.safetensors`.
    reference: None without a usable one; `reference_fault` says why ("" where the folder has none).
    """

    folder: Path
    series: SeriesId
    config: ModelConfig
    values: Mapping[str, Any]
    weights: bytes
    reference: Reference | None
    reference_fault: str

    @property
    def model_version(self) -> str:
        """Registered model and version, `cpb-BTCUSDT-1h/3`."""
        return self.config.model_version

    @property
    def weights_sha256(self) -> str:
        """Of `weights`."""
        return self.config.weights_sha256

    def member(self) -> "Member":
        """Return the model, which forecasts; errors as in `cpbmodels.load`."""
        from cpbmodels.fleet.load import member_of

        return member_of(self.values, self.weights, self.folder)

    def extremes(self) -> Extremes | None:
        """Return the table of extremes, None if it has none; torch is not loaded.

        Raises:
            DamagedError: the weights are not in the format of safetensors, or the table is none.
        """
        try:
            tensors = load(self.weights)
        except (SafetensorError, KeyError, TypeError) as error:  # the last two: a type that numpy lacks
            why = f"{WEIGHTS} cannot be read ({error})"
            raise damaged_model(self.folder, why) from error
        table = {name: tensors[name] for name in TENSORS if name in tensors}
        if table and (fault := extremes_fault(table, self.values["horizon"])):
            raise damaged_model(self.folder, fault)
        return Extremes.of_tensors(table)


def packaged_series(folder: Path, model_version: str) -> SeriesId:
    """Return the series of a packaged model: that of its version, so that exchanged folders forecast nothing else.

    Args:
        model_version: where it names no series, as of a damaged `config.json`, the folder's name tells.
    """
    name = model_version.partition("/")[0]
    return SeriesId.parse(name if is_series_name(name) else "-".join(folder.parts[-2:]))


def read_packaged(folder: Path) -> ServedModel:
    """Return the model in a folder that may be replaced meanwhile, as by a nightly training: the old or the new model.

    Raises:
        DamagedError: a file is missing or damaged, or config and weights do not belong together.
    """
    return settled(folder, _read_packaged, (*NEEDED, REFERENCE))


def _read_packaged(folder: Path) -> ServedModel:
    try:
        # Its files are opened in the folder that has this name now, whatever is renamed to it afterwards.
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise damaged_model(folder, f"it cannot be read ({error.strerror})") from error
    try:
        # All three are read before any is judged: an error must not leave one to be read of a newer folder.
        values = config_in(folder, _content(handle, CONFIG, MAX_BYTES))
        weights, reference = _content(handle, WEIGHTS), _content(handle, REFERENCE)
    finally:
        os.close(handle)
    if isinstance(weights, OSError):
        raise damaged_model(folder, f"{WEIGHTS} cannot be read ({weights.strerror})") from weights
    try:
        check_whole(values, CONFIG)
    except ModelError as error:
        raise damaged_model(folder, f"{CONFIG} cannot be used ({error})") from error
    config, fault = ModelConfig.model_validate(values), ""
    if hashlib.sha256(weights).hexdigest() != config.weights_sha256:
        raise damaged_model(folder, f"the sha256 of {WEIGHTS} differs from {CONFIG}")
    try:
        found = None if isinstance(reference, FileNotFoundError) else reference_in(folder, reference)
    except DamagedError as error:  # a model without its reference forecasts all the same
        found, fault = None, str(error)
    # The version, not the folder's name, tells the series: rows are stored under it.
    version = _VERSION.fullmatch(config.model_version)
    if not version or not is_series_name(version["name"]):
        raise damaged_model(folder, f"{CONFIG} names no registered version")
    series = SeriesId.parse(version["name"])
    return ServedModel(folder, series, config, values, weights, found, fault)


def _content(handle: int, name: str, max_bytes: int = MAX_FILE) -> bytes | OSError:
    """Return the bytes of a file of an open folder, or the error: whether one may be missing, its reader knows."""
    try:
        return read_regular(name, max_bytes, folder=handle)
    except OSError as error:
        return error


def packaged_models(
    home: Path, market: str, series: Collection[SeriesId] | None = None
) -> list[PackagedModel]:
    """Return the models in a market's packaged folder, in order of their paths; `series`: default all.

    A model is of the series that its `config.json` names: exchanged folders forecast nothing else. The folder may be
    replaced meanwhile: the list is of the old or of the new one, and what is in a model's folder later is for
    `read_packaged` to say.
    """
    models = settled(tree_of(home, "hub", market), _models_in)
    return [model for model in models if series is None or model.series in series]


def _models_in(tree: Path) -> list[PackagedModel]:
    models = []
    # Only the configs: a list of what is there must not read gigabytes of weights.
    for path in sorted(tree.glob(f"*/*/{CONFIG}")):
        name = "-".join(path.parts[-3:-1])
        if not is_series_name(name):  # of a person
            continue
        version = verdict = weights = ""
        with suppress(DamagedError):  # reported when it is loaded
            config = read_config(path.parent)
            version, verdict, weights = config.model_version, config.verdict, config.weights_sha256
        of = packaged_series(path.parent, version)
        models.append(PackagedModel(of, version, verdict, path.parent, weights))
    return models
