"""A model's folder: `model.safetensors` and `config.json`, with scores, reference and pictures beside them.

All reading of a folder's `config.json`, and all checking of its files, is in this module.

The recipe of a trained model is read from its folder: models of the same recipe differ only in their candles.
"""

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from safetensors import SafetensorError
from safetensors.numpy import load

from cpbmodels.arch import architectures
from cpbmodels.arch.options import HOW_IT_RUNS, Preset
from cpbmodels.arch.presets import reads
from cpbmodels.data.touch import KEY
from cpbmodels.errors import ModelError
from cpbmodels.files import MAX_FILE, read_regular
from cpbmodels.fleet.config import (
    CONFIG,
    JUDGED,
    MAX_BYTES,
    PARTS,
    WEIGHTS,
    check_whole,
    parse,
    sealed,
    touch_fault,
)
from schemas.errors import CpbError, DamagedError
from schemas.identity import Recipe, SeriesId, is_series_name, tree_of
from schemas.ledger import Reference
from schemas.run import UNIVERSAL_SUFFIX
from tasks.storage.files import settled, write_json
from tasks.storage.records import (
    digest_fault,
    file_digest,
    member_subject,
    record_in,
    value_digest,
    write_record,
)

if TYPE_CHECKING:
    from cpbmodels.fleet.member import Member

METRICS = "metrics.json"
REFERENCE = "reference.json"
NEEDED = (WEIGHTS, CONFIG)
"""The files read by `cpbmodels.load`."""
FORECAST_PICTURE = "forecast.png"
PICTURES = (FORECAST_PICTURE, "loss.png")
FILES = (*NEEDED, METRICS, REFERENCE, *PICTURES)
"""Every file that a model folder may contain."""

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


class ModelConfig(BaseModel):
    """A model folder's `config.json`: the fields that cpb reads; dimensions, options and other fields are kept as is.

    `cpbmodels.fleet.config.FIELDS` defines the valid values of each field, and is checked first.
    `rows`: candles of the training series.
    `training_span`: open times of the first and last candle that the weights were fitted to; `bounds`: start and end
    of each split (ISO, UTC). `model_version` and `verdict`: of a published model, its registered version's.
    `weights_sha256`: of the weights that the file was written with.
    """

    model_config = ConfigDict(frozen=True, extra="allow", ser_json_inf_nan="constants")

    architecture: str
    preset: str = ""
    market: str = "spot"
    symbol: str = ""
    timeframe: str = ""
    context: int | None = None
    horizon: int | None = None
    features: tuple[str, ...] = ()
    data_digest: str = ""
    training_span: tuple[str, ...] = ()
    bounds: dict[str, Any] = Field(default_factory=dict)
    rows: int = 0
    flat_band: float | None = None
    model_version: str = ""
    verdict: str = ""
    weights_sha256: str = ""

    def span(self, split: str) -> tuple[datetime, datetime] | tuple[None, None]:
        """Return start and end (UTC) of a split, or Nones if not recorded."""
        ends = [datetime.fromisoformat(text) for text in self.bounds.get(split, ())]
        return (ends[0], ends[1]) if len(ends) == 2 else (None, None)

    @property
    def learnt_until(self) -> datetime | None:
        """The end (UTC) of the candles used to fit and stop the model: of its validation span; None if not recorded.

        The library's `Member.known_until` is later: it includes the test span.
        """
        return self.span("validation")[1]


def read_config(folder: Path) -> ModelConfig:
    """Return the configuration of the model in `folder`.

    Raises:
        DamagedError: it is missing or invalid.
    """
    return ModelConfig.model_validate(_config_values(folder))


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
        from cpbmodels.fleet.member import member_of

        return member_of(self.values, self.weights, self.folder)

    def touch_table(self) -> NDArray[np.float64] | None:
        """Return the table of extremes [2, H, 99] (`cpbmodels.data.touch`), None if it has none; torch is not loaded.

        Raises:
            DamagedError: the weights are not in the format of safetensors, or the table is none.
        """
        try:
            table = load(self.weights).get(KEY)
        except (SafetensorError, KeyError, TypeError) as error:  # the last two: a type that numpy lacks
            why = f"{WEIGHTS} cannot be read ({error})"
            raise _damaged(self.folder, why, self.series.options) from error
        if table is None:
            return None
        if fault := touch_fault(table, self.values["horizon"]):
            raise _damaged(self.folder, f"{KEY} {fault}", self.series.options)
        return table.astype(np.float64)


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
    options = _options_of(folder)
    try:
        # Its files are opened in the folder that has this name now, whatever is renamed to it afterwards.
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _damaged(folder, f"it cannot be read ({error.strerror})", options) from error
    try:
        values = _config_in(folder, _content(handle, CONFIG, MAX_BYTES), options)
        weights, reference = _content(handle, WEIGHTS), _content(handle, REFERENCE)
    finally:
        os.close(handle)
    if isinstance(weights, OSError):
        raise _damaged(folder, f"{WEIGHTS} cannot be read ({weights.strerror})", options) from weights
    try:
        check_whole(values, CONFIG)
    except ModelError as error:
        raise _damaged(folder, f"{CONFIG} cannot be used ({error})", options) from error
    config, fault = ModelConfig.model_validate(values), ""
    if hashlib.sha256(weights).hexdigest() != config.weights_sha256:
        raise _damaged(folder, f"the sha256 of {WEIGHTS} differs from {CONFIG}", options)
    try:
        found = None if isinstance(reference, FileNotFoundError) else _reference(folder, reference)
    except DamagedError as error:  # a model without its reference forecasts all the same
        found, fault = None, str(error)
    version = _VERSION.fullmatch(config.model_version)
    if not version or not is_series_name(version["name"]):
        raise _damaged(folder, f"{CONFIG} names no registered version", options)
    series = SeriesId.parse(version["name"])
    return ServedModel(folder, series, config, values, weights, found, fault)


def _options_of(folder: Path) -> str:
    """Return the options that train a packaged model again, "" where the folder's name tells no series."""
    name = "-".join(folder.parts[-2:])
    return SeriesId.parse(name).options if is_series_name(name) else ""


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


def write_metrics(folder: Path, metrics: Mapping[str, float], verdict: str) -> None:
    """Write a model's scores: `metrics.json` with the verdict, and the field `metrics` of its `config.json`."""
    write_json(folder / METRICS, {**metrics, "verdict": verdict})
    config = _config_values(folder)
    if config.get("metrics") != dict(metrics):
        write_json(folder / CONFIG, config | {"metrics": dict(metrics)})


def trained_file_damage(path: Path, digest: str) -> str:
    """Return the damage of a file of a trained model, or "".

    Judging adds fields to `config.json` after its digest was taken (`JUDGED`): they are not compared.

    Args:
        digest: sha256 of the file as the trainer wrote it.
    """
    fault = digest_fault(path, digest)
    is_judged = fault and path.name == CONFIG and path.is_file() and _digest_without_metrics(path) == digest
    return "" if is_judged else fault


def _digest_without_metrics(config: Path) -> str:
    try:
        values = json.loads(read_regular(config, MAX_BYTES))
    except ValueError:
        return ""
    if isinstance(values, dict):
        values = {name: value for name, value in values.items() if name not in JUDGED}
    return hashlib.sha256(json.dumps(values, indent=2).encode()).hexdigest()


def write_reference(folder: Path, reference: Reference) -> None:
    """Write the reference of a fleet's member, as one line."""
    path = folder / REFERENCE
    write_record(path, reference, of=member_subject(path), compact=True)


def read_reference(folder: Path, *, of: str) -> Reference | None:
    """Return the reference of a fleet's member; None if missing.

    Args:
        of: required subject (`member_subject`).

    Raises:
        DamagedError: it is not the file that cpb wrote.
    """
    try:
        return _reference(folder, read_regular(folder / REFERENCE), of=of)
    except FileNotFoundError:
        return None


def _reference(folder: Path, content: bytes | OSError, *, of: str | None = None) -> Reference:
    """Return the reference in these bytes; `of`: None for a copy, which has another path; errors as above."""
    path = folder / REFERENCE
    if isinstance(content, OSError):
        raise DamagedError(f"{path} cannot be read ({content.strerror})", field=str(path)) from content
    try:
        return record_in(content, Reference, of=of)
    except DamagedError as error:
        raise DamagedError(f"{path} is damaged: {error}", field=str(path)) from error


def write_published_config(source: Path, target: Path, model_version: str, verdict: str) -> None:
    """Write `config.json` for publication, with the digests by which `cpbmodels.load` checks it and the weights.

    Args:
        model_version: registered model and version, `cpb-BTCUSDT-1h/3`.
        verdict: the version's comparison with the random walk.
    """
    values = _config_values(source) | {"model_version": model_version, "verdict": verdict}
    write_json(target / CONFIG, sealed(values, file_digest(source / WEIGHTS)))


def digests_to_log(folder: Path, expected: Mapping[str, str]) -> dict[str, str]:
    """Return the sha256 of each file of a model folder before it is logged.

    Args:
        expected: digests recorded when the files were written, which the files must match.

    Raises:
        CpbError: the folder is missing.
        DamagedError: a file does not match its recorded digest.
    """
    if not folder.is_dir():
        raise CpbError(
            f"the model folder {folder} does not exist; run the same command again to train it",
            code="no-model",
        )
    files = file_digests(folder)
    changed = [name for name, digest in expected.items() if files.get(name) != digest]
    if changed:
        raise DamagedError(
            f"{folder / changed[0]} is not the file that was trained (its sha256 differs); "
            f"remove {folder.parent} and run the same command again",
            field=str(folder / changed[0]),
        )
    return files


def file_digests(folder: Path) -> dict[str, str]:
    """Return the sha256 of each file in a model folder."""
    return {file.name: file_digest(file) for file in sorted(folder.iterdir()) if file.is_file()}


def damaged(folder: Path, digests: Mapping[str, str]) -> list[str]:
    """Return the names of recorded files that are missing or damaged in a folder."""
    return [n for n, d in digests.items() if not (folder / n).is_file() or file_digest(folder / n) != d]


def damage_of(folder: Path, digests: Mapping[str, str]) -> str:
    """Return the damage of the model in `folder`, or "".

    Args:
        digests: the recorded sha256 of each file. Without them, only the config is read.
    """
    for name in NEEDED:
        path = folder / name
        if fault := digest_fault(path, digests.get(name)):
            return f"{path}: {fault}"
    if CONFIG not in digests:
        try:
            read_config(folder)
        except DamagedError as error:
            return str(error)
    return ""


def _config_values(folder: Path) -> dict[str, Any]:
    """Return all validated fields of `config.json`, unchanged and in order."""
    try:
        content: bytes | OSError = read_regular(folder / CONFIG, MAX_BYTES)
    except OSError as error:
        content = error
    return _config_in(folder, content)


def _config_in(folder: Path, content: bytes | OSError, options: str = "") -> dict[str, Any]:
    """Return the fields in these bytes of `config.json`, or raise what is wrong with them (`_damaged`)."""
    if isinstance(content, FileNotFoundError):
        raise _damaged(folder, f"{CONFIG} is missing", options) from content
    if isinstance(content, OSError):
        raise _damaged(folder, f"{CONFIG} cannot be read ({content.strerror})", options) from content
    try:
        values = parse(content, CONFIG)
    except ModelError as error:
        raise _damaged(folder, f"{CONFIG} cannot be read ({error})", options) from error
    if "architecture" not in values:
        raise _damaged(folder, f"{CONFIG} names no architecture", options)
    return values


def _damaged(folder: Path, why: str, options: str = "") -> DamagedError:
    """Return the error of a damaged folder; `options`: those that train its series alone."""
    command = f"cpb train-all {options}".rstrip()
    return DamagedError(
        f"the model in {folder} is damaged: {why}; train it again with `{command}`", field=str(folder)
    )


def options_read(config: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the options among `names` that the architecture of a configuration reads.

    An average trains the architectures that it averages, each with options of its own (`parts` of its configuration),
    so an option has the value, or the several values, of those that read it. What an architecture of another program
    reads is not known: all that it has.
    """
    known = set(architectures())
    options: dict[str, Any] = {}
    parts = config.get(PARTS) or [config]
    for name in names:
        values = [
            part[name]
            for part in parts
            if name in part and (part["architecture"] not in known or reads(part["architecture"], name))
        ]
        if values:
            options[name] = values[0] if all(value == values[0] for value in values) else values
    return options


def recipe_of(config: ModelConfig) -> Recipe:
    """Return the recipe of the model described by a `config.json`.

    The digest covers only differences from the options' defaults: an option added by a later release, at its default,
    leaves all recipes unchanged. The number of averaged copies, and a weight type other than float32, are included.
    """
    values: dict[str, Any] = config.model_dump(mode="json")
    standard = Preset().as_dict()
    changed = _changed(values, standard)
    if PARTS in values:
        changed[PARTS] = [
            {"architecture": part["architecture"], **_changed(part, standard)} for part in values[PARTS]
        ]
    copies = len(values.get("seeds") or [1])
    changed |= {"copies": copies} if copies > 1 else {}
    changed |= {"dtype": values["dtype"]} if values.get("dtype", "float32") != "float32" else {}
    digest = value_digest(changed)[:12]
    scope = UNIVERSAL_SUFFIX if values.get("scope") == "universal" else ""
    return Recipe(f"{config.architecture}{scope}", config.preset, digest)


def _changed(values: Mapping[str, Any], standard: Mapping[str, Any]) -> dict[str, Any]:
    """The options that decide a model and differ from their defaults."""
    return {
        name: values[name]
        for name, default in standard.items()
        if name not in HOW_IT_RUNS and name in values and _plain(values[name]) != _plain(default)
    }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
