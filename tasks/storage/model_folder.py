"""A model's folder: `model.safetensors` and `config.json`, with scores, reference and pictures beside them.

All reading of a folder's `config.json`, and all checking of its files, is in this module.
"""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from safetensors import SafetensorError, safe_open

from cpbmodels.data.extremes import FIRST
from cpbmodels.errors import ModelError
from cpbmodels.files import read_regular
from cpbmodels.fleet.config import (
    CONFIG,
    MAX_BYTES,
    WEIGHTS,
    parse,
    sealed,
)
from schemas.errors import CpbError, DamagedError
from schemas.identity import SeriesId, is_series_name
from schemas.ledger import Reference
from tasks.storage.files import read_json_or_none, write_json
from tasks.storage.records import (
    NOT_WRITTEN,
    canonical,
    digest_fault,
    file_digest,
    record_in,
    write_record,
)
from tasks.storage.sealed import resealing, sealed_files, writing

METRICS = "metrics.json"
REFERENCE = "reference.json"
NEEDED = (WEIGHTS, CONFIG)
"""The files read by `cpbmodels.load`."""

FORECAST_PICTURE = "forecast.png"
LOSS_PICTURE = "loss.png"
PICTURES = (FORECAST_PICTURE, LOSS_PICTURE)
MODEL_FILES = (*NEEDED, METRICS, REFERENCE, *PICTURES)
"""Every file that a model folder may contain."""


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


def knows_first(folder: Path) -> bool:
    """Whether a model's table of extremes says which of two prices is reached first; False if it cannot be read."""
    try:
        with safe_open(folder / WEIGHTS, "numpy") as tensors:
            return FIRST in tensors.keys()  # noqa: SIM118  (it is no dict)
    except (OSError, SafetensorError):
        return False


def write_metrics(folder: Path, metrics: Mapping[str, float], verdict: str) -> None:
    """Write a member's scores: `metrics.json` with the verdict, and the field `metrics` of its `config.json`.

    Args:
        folder: the member's, which is sealed; files that hold these scores already stay as they are.
    """
    model = folder / "model"
    contents = {
        CONFIG: _config_values(model) | {"metrics": dict(metrics)},
        METRICS: {**metrics, "verdict": verdict},
    }
    with writing(folder):
        listed = sealed_files(folder)
        due = [
            name
            for name, values in contents.items()
            # Not listed: a kill came between the file and the seal. As text, since NaN is not equal to itself.
            if f"model/{name}" not in listed
            or canonical(read_json_or_none(model / name)) != canonical(values)
        ]
        if due:
            with resealing(folder, *(f"model/{name}" for name in due)):
                for name in due:
                    write_json(model / name, contents[name])


def write_reference(folder: Path, reference: Reference) -> None:
    """Write the reference of a model, as one line."""
    write_record(folder / REFERENCE, reference, compact=True)


def reference_in(folder: Path, content: bytes | OSError) -> Reference:
    """Return the reference in these bytes of its file, or raise `DamagedError`."""
    path = folder / REFERENCE
    if isinstance(content, OSError):
        raise DamagedError.of(path, f"it cannot be read ({content.strerror})") from content
    try:
        return record_in(content, Reference)
    except DamagedError as error:
        raise DamagedError.of(path, error) from error


def write_published_config(source: Path, target: Path, model_version: str, verdict: str) -> None:
    """Write `config.json` for publication, with the digests by which `cpbmodels.load` checks it and the weights.

    Args:
        model_version: registered model and version, `cpb-BTCUSDT-1h/3`.
        verdict: the version's comparison with the random walk.
    """
    # Sealed anew, since the version's fields are covered by the digest; the scores that judging added are kept.
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
    # Now, since from here on the logged copy counts: damage that is logged would be the version's own content.
    files = file_digests(folder)
    changed = [name for name, digest in expected.items() if files.get(name) != digest]
    if changed:
        remedy = f"remove {folder.parent} and run the same command again"
        raise DamagedError.of(folder / changed[0], NOT_WRITTEN, remedy)
    return files


def file_digests(folder: Path) -> dict[str, str]:
    """Return the sha256 of each file in a model folder."""
    return {file.name: file_digest(file) for file in sorted(folder.iterdir()) if file.is_file()}


def first_damage(folder: Path, digests: Mapping[str, str | None]) -> str:
    """Return the first of these files that is missing or not as recorded (None: any), with its fault; "" for none."""
    faults = ((folder / name, digest_fault(folder / name, digest)) for name, digest in digests.items())
    return next((f"{path}: {fault}" for path, fault in faults if fault), "")


def damage_of(folder: Path, digests: Mapping[str, str]) -> str:
    """Return the damage of the model in `folder`, or "".

    Args:
        digests: the recorded sha256 of each file. Without them, only the config is read.
    """
    # without pictures and scores a model forecasts all the same
    if damage := first_damage(folder, {name: digests.get(name) for name in NEEDED}):
        return damage
    if CONFIG not in digests:
        try:
            read_config(folder)
        except DamagedError as error:
            return str(error)
    return ""


def _config_values(folder: Path) -> dict[str, Any]:
    """Return all validated fields of `config.json`, unchanged and in order."""
    try:  # bounded: a config of any size would be parsed before its fields are checked
        content: bytes | OSError = read_regular(folder / CONFIG, MAX_BYTES)
    except OSError as error:
        content = error
    return config_in(folder, content)


def config_in(folder: Path, content: bytes | OSError) -> dict[str, Any]:
    """Return the fields in these bytes of `config.json`, or raise what is wrong with them (`damaged_model`)."""
    if isinstance(content, FileNotFoundError):
        raise damaged_model(folder, f"{CONFIG} is missing") from content
    if isinstance(content, OSError):
        raise damaged_model(folder, f"{CONFIG} cannot be read ({content.strerror})") from content
    try:
        values = parse(content, CONFIG)
    except ModelError as error:
        raise damaged_model(folder, f"{CONFIG} cannot be read ({error})") from error
    if "architecture" not in values:
        raise damaged_model(folder, f"{CONFIG} names no architecture")
    return values


def damaged_model(folder: Path, why: str) -> DamagedError:
    """Return the error of a damaged model folder, with the command that trains it again.

    The name of a packaged folder tells its series, which is then trained alone; that of any other folder tells none.
    """
    name = "-".join(folder.parts[-2:])
    options = f" {SeriesId.parse(name).options}" if is_series_name(name) else ""
    return DamagedError.of(
        folder, why, f"train it again with `cpb train-all{options}`", name=f"the model in {folder}"
    )
