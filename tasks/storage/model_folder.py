"""A model's folder: `model.safetensors` and `config.json`, with scores, reference and pictures beside them.

All reading of a folder's `config.json`, and all checking of its files, happens here.

The recipe of a trained model, read from its folder: two models of one recipe differ in nothing but their candles.
"""

import hashlib
import json
import struct
import zlib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from cpbmodels.arch.options import Preset
from cpbmodels.errors import ModelError
from cpbmodels.fleet.config import JUDGED, parse, sealed
from schemas.errors import DamagedError
from schemas.identity import Recipe
from schemas.reference import Reference
from schemas.run import UNIVERSAL
from tasks.storage.digests import file_digest, value_digest
from tasks.storage.files import write_json
from tasks.storage.records import member_subject, parse_record, write_record

WEIGHTS, CONFIG, METRICS = "model.safetensors", "config.json", "metrics.json"
REFERENCE = "reference.json"
NEEDED = (WEIGHTS, CONFIG)
"""What `cpbmodels.load` reads."""
PICTURES = ("forecast.png", "confusion.png", "loss.png")
FILES = (*NEEDED, METRICS, REFERENCE, *PICTURES)
"""Every file that a model's folder may hold."""

PICTURE_SUBJECT = "Source"
"""Keyword of a picture's text that says what it is about (`member_subject`)."""

_PNG = b"\x89PNG\r\n\x1a\n"
_MAX_HEADER_BYTES = 100_000_000  # safetensors' own limit


class ModelConfig(BaseModel):
    """A model folder's `config.json`: the fields that cpb reads; dimensions, options and the rest pass through.

    `cpbmodels.fleet.config.FIELDS` says what each field can hold, and is checked first.
    `rows`: candles of the series that it learnt. `warm_start`: the folder of the model that it continued.
    `training_span`: open times of the first and last candle that the weights were fitted to; `bounds`: start and end
    of each split (ISO, UTC).
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
    warm_start: str | None = None
    flat_band: float | None = None

    def span(self, split: str) -> tuple[datetime, datetime] | tuple[None, None]:
        """Return start and end (UTC) of a split, Nones where the folder does not say."""
        ends = [datetime.fromisoformat(text) for text in self.bounds.get(split, ())]
        return (ends[0], ends[1]) if len(ends) == 2 else (None, None)

    @property
    def learnt_until(self) -> datetime | None:
        """The end (UTC) of the candles that it was fitted to, stopped by or chosen on; None where it does not say."""
        return self.span("validation")[1]


def read_config(folder: Path) -> ModelConfig:
    """Return the configuration of the model in `folder`.

    Raises:
        DamagedError: it is missing, or not what cpb writes.
    """
    return ModelConfig.model_validate(_config_values(folder))


def write_metrics(folder: Path, metrics: Mapping[str, float], verdict: str) -> None:
    """Write a model's scores: `metrics.json` with the verdict, and the field `metrics` of its `config.json`."""
    write_json(folder / METRICS, {**metrics, "verdict": verdict})
    config = _config_values(folder)
    if config.get("metrics") != dict(metrics):
        write_json(folder / CONFIG, config | {"metrics": dict(metrics)})


def trained_file_damage(path: Path, digest: str) -> str:
    """Return what is wrong with a file of a trained model, or "" where nothing is.

    Judging adds fields to `config.json` after its digest was taken (`JUDGED`): they are left out of the comparison.

    Args:
        digest: sha256 of the file as the trainer wrote it.
    """
    if not path.is_file():
        return "it is missing"
    try:
        if file_digest(path) == digest or (path.name == CONFIG and _digest_without_metrics(path) == digest):
            return ""
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    return "it is not the file that was trained (its sha256 differs)"


def _digest_without_metrics(config: Path) -> str:
    try:
        values = json.loads(config.read_bytes())
    except ValueError:
        return ""
    if isinstance(values, dict):
        values = {name: value for name, value in values.items() if name not in JUDGED}
    return hashlib.sha256(json.dumps(values, indent=2).encode()).hexdigest()


def metrics_damage(folder: Path) -> str:
    """Return what is wrong with `metrics.json`, which says the same as the field `metrics` of `config.json`.

    Where `config.json` is damaged itself, there is nothing to compare with: "" then.
    """
    try:
        expected = _config_values(folder).get("metrics")
    except DamagedError:
        return ""
    try:
        told = json.loads((folder / METRICS).read_bytes())
        told.pop("verdict")
    except OSError as error:
        return f"its scores cannot be read ({error.strerror})"
    except (ValueError, AttributeError, KeyError, TypeError):
        return "its scores cannot be read: it is not what cpb writes"
    # As texts, since NaN is not equal to itself.
    return "" if json.dumps(told) == json.dumps(expected) else f"its scores are not those in {CONFIG}"


def write_reference(folder: Path, reference: Reference) -> None:
    """Write the reference of a fleet's member, in one line."""
    path = folder / REFERENCE
    write_record(path, reference, of=member_subject(path), compact=True)


def read_reference(folder: Path, *, of: str | None = None) -> Reference | None:
    """Return a model's reference; None where the folder holds none.

    Args:
        of: what it must be about (`member_subject`); None for a copy, whose files are known by their sha256.

    Raises:
        DamagedError: it is not what cpb wrote.
    """
    try:
        return parse_record(folder / REFERENCE, Reference, of=of)
    except FileNotFoundError:
        return None
    except DamagedError as error:
        raise DamagedError(
            f"{folder / REFERENCE} is damaged: {error}", field=str(folder / REFERENCE)
        ) from error


def picture_damage(path: Path) -> str:
    """Return what is wrong with a picture of a fleet's member, by the CRC-32 of its chunks and what it is about."""
    data = path.read_bytes()
    subject = f"{PICTURE_SUBJECT}\0{member_subject(path)}".encode()
    if not data.startswith(_PNG):
        return "it is no PNG file"
    at, kind, is_own = len(_PNG), b"", False
    while at < len(data) and kind != b"IEND":
        (length,) = struct.unpack(">I", data[at : at + 4].ljust(4, b"\0"))
        kind, end = data[at + 4 : at + 8], at + 8 + length
        if data[end : end + 4] != struct.pack(">I", zlib.crc32(data[at + 4 : end])):
            return "its picture is damaged (a CRC-32 does not fit)"
        is_own |= kind == b"tEXt" and data[at + 8 : end] == subject
        at = end + 4
    if kind != b"IEND" or at != len(data):
        return "its picture is cut short"
    return "" if is_own else "it is another model's picture"


def write_published_config(source: Path, target: Path) -> None:
    """Write `config.json` for publication, with the digests by which `cpbmodels.load` checks it and the weights.

    It may say that the model continued another, but not where that lies.
    """
    values = _config_values(source)
    if values.get("warm_start"):
        values["warm_start"] = "champion"
    write_json(target / CONFIG, sealed(values, file_digest(source / WEIGHTS)))


def file_digests(folder: Path) -> dict[str, str]:
    """Return the sha256 of each file in a model's folder."""
    return {file.name: file_digest(file) for file in sorted(folder.iterdir()) if file.is_file()}


def damage_of(folder: Path, digests: Mapping[str, str]) -> str:
    """Return what is wrong with the model in `folder`, or "" where nothing is.

    Args:
        digests: the recorded sha256 of each file. Without one a file is only checked for being readable.
    """
    for name in NEEDED:
        path = folder / name
        if not path.is_file():
            return f"{name} is missing in {folder}"
        if name in digests and file_digest(path) != digests[name]:
            return f"{path} is not the file that was recorded (its sha256 differs)"
    if WEIGHTS not in digests and (reason := _unreadable_weights(folder / WEIGHTS)):
        return reason
    if CONFIG not in digests:
        try:
            read_config(folder)
        except DamagedError as error:
            return str(error)
    return ""


def _unreadable_weights(path: Path) -> str:
    """Compare a safetensors file's header (8 bytes of length, then JSON) with the file's size; "" where they fit."""
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > min(size, _MAX_HEADER_BYTES):
                return f"{path} is cut short: its header alone takes {length} bytes, the file has {size}"
            header = json.loads(file.read(length))
        ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, IndexError):
        return f"{path} is no safetensors file"
    wanted = 8 + length + max(ends, default=0)
    return "" if size == wanted else f"{path} has {size} bytes, its header asks for {wanted}"


def _config_values(folder: Path) -> dict[str, Any]:
    """Return all fields of `config.json` as they stand there, in their order, once they are known to be valid."""
    path = folder / CONFIG
    try:
        values = parse(path.read_bytes(), CONFIG)
    except FileNotFoundError as error:
        raise _damaged(folder, f"{CONFIG} is missing") from error
    except (OSError, ModelError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise _damaged(folder, f"{CONFIG} cannot be read ({why})") from error
    if "architecture" not in values:
        raise _damaged(folder, f"{CONFIG} names no architecture")
    return values


def _damaged(folder: Path, why: str) -> DamagedError:
    return DamagedError(
        f"the model in {folder} is damaged: {why}; train it again with `cpb train-all`", field=str(folder)
    )


_HOW_IT_RUNS = (
    "accumulate",
    "checkpoint_gradients",
    "cuda_graph",
    "fleet_size",
    "mixed_precision",
    "workers",
)
"""Options that follow from the machine: the same preset trained on a GPU and on a CPU is one recipe."""

_DIGITS = 12


def recipe_of(config: ModelConfig) -> Recipe:
    """Return the recipe of the model that a `config.json` describes.

    The digest is of what differs from the options' own defaults: an option that a later release adds, at its default,
    leaves every recipe what it was. How many copies were averaged, and weights of another type, are part of it.
    """
    values: dict[str, Any] = config.model_dump(mode="json")
    standard = Preset().as_dict()
    changed = {
        name: values[name]
        for name, default in standard.items()
        if name not in _HOW_IT_RUNS and name in values and _plain(values[name]) != _plain(default)
    }
    copies = len(values.get("seeds") or [1])
    changed |= {"copies": copies} if copies > 1 else {}
    changed |= {"dtype": values["dtype"]} if values.get("dtype", "float32") != "float32" else {}
    digest = value_digest(changed)[:_DIGITS]
    scope = UNIVERSAL if values.get("scope") == "universal" else ""
    return Recipe(f"{config.architecture}{scope}", config.preset, digest)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
