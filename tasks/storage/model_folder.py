"""A model's folder: `model.safetensors` and `config.json`, with scores, reference and pictures beside them.

All reading of a folder's `config.json`, and all checking of its files, happens here.
"""

import hashlib
import json
import struct
import zlib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from schemas.errors import DamagedError
from schemas.reference import Reference
from tasks.storage.digests import file_digest
from tasks.storage.files import write_json
from tasks.storage.records import EARLIER, parse_record, write_record

WEIGHTS, CONFIG, METRICS = "model.safetensors", "config.json", "metrics.json"
REFERENCE = "reference.json"
NEEDED = (WEIGHTS, CONFIG)
"""What `cpbmodels.load` reads."""
PICTURES = ("forecast.png", "confusion.png", "loss.png")
FILES = (*NEEDED, METRICS, REFERENCE, *PICTURES)
"""Every file that a model's folder may hold."""

_PNG = b"\x89PNG\r\n\x1a\n"
_MAX_HEADER_BYTES = 100_000_000  # safetensors' own limit


class ModelConfig(BaseModel):
    """A model folder's `config.json`: the fields that cpb reads; dimensions, options and the rest pass through.

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
    path = folder / CONFIG
    try:
        return ModelConfig.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise _damaged(folder, f"{CONFIG} is missing") from error
    except (OSError, ValidationError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not what cpb writes"
        raise _damaged(folder, f"{CONFIG} cannot be read ({why})") from error


def write_metrics(folder: Path, metrics: Mapping[str, float], verdict: str) -> None:
    """Write a model's scores: `metrics.json` with the verdict, and the field `metrics` of its `config.json`."""
    write_json(folder / METRICS, {**metrics, "verdict": verdict})
    config = _config_values(folder)
    if config.get("metrics") != dict(metrics):
        write_json(folder / CONFIG, config | {"metrics": dict(metrics)})


def trained_file_damage(path: Path, digest: str) -> str:
    """Return what is wrong with a file of a trained model, or "" where nothing is.

    Judging adds the field `metrics` to `config.json` after its digest was taken: it is left out of the comparison.

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
        values.pop("metrics", None)
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
    """Write a model's reference, in one line."""
    write_record(folder / REFERENCE, reference, compact=True)


def read_reference(folder: Path) -> Reference | None:
    """Return a model's reference; None where the folder is of a release that wrote none, or other ones.

    Raises:
        DamagedError: it is not what cpb wrote.
    """
    try:
        return parse_record(folder / REFERENCE, Reference)
    except FileNotFoundError:
        return None
    except DamagedError as error:
        if error.code == EARLIER:
            return None
        raise DamagedError(
            f"{folder / REFERENCE} is damaged: {error}", field=str(folder / REFERENCE)
        ) from error


def picture_damage(path: Path) -> str:
    """Return what is wrong with a PNG file, by the CRC-32 that each of its chunks carries."""
    data = path.read_bytes()
    if not data.startswith(_PNG):
        return "it is no PNG file"
    at, kind = len(_PNG), b""
    while at < len(data) and kind != b"IEND":
        (length,) = struct.unpack(">I", data[at : at + 4].ljust(4, b"\0"))
        kind, end = data[at + 4 : at + 8], at + 8 + length
        if data[end : end + 4] != struct.pack(">I", zlib.crc32(data[at + 4 : end])):
            return "its picture is damaged (a CRC-32 does not fit)"
        at = end + 4
    return "" if kind == b"IEND" and at == len(data) else "its picture is cut short"


def write_published_config(source: Path, target: Path) -> None:
    """Write `config.json` for publication: with the sha256 of the weights, by which `cpbmodels.load` checks them.

    It may say that the model continued another, but not where that lies.
    """
    values = _config_values(source)
    if values.get("warm_start"):
        values["warm_start"] = "champion"
    write_json(target / CONFIG, values | {"weights_sha256": file_digest(source / WEIGHTS)})


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
    read_config(folder)
    values: dict[str, Any] = json.loads((folder / CONFIG).read_bytes())
    return values


def _damaged(folder: Path, why: str) -> DamagedError:
    return DamagedError(
        f"the model in {folder} is damaged: {why}; train it again with `cpb train-all`", field=str(folder)
    )
