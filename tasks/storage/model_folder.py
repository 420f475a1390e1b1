"""A model's folder: `model.safetensors` and `config.json`, with scores and pictures beside them.

All reading of a folder's `config.json`, and all checking of its files, happens here.
"""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from schemas.errors import DamagedError
from tasks.storage.digests import file_digest
from tasks.storage.files import write_json

WEIGHTS, CONFIG, METRICS = "model.safetensors", "config.json", "metrics.json"
NEEDED = (WEIGHTS, CONFIG)
"""What `cpbmodels.load` reads."""
PICTURES = ("forecast.png", "confusion.png", "loss.png")
FILES = (*NEEDED, METRICS, *PICTURES)
"""Every file that a model's folder may hold."""

_MAX_HEADER_BYTES = 100_000_000  # safetensors' own limit


class ModelConfig(BaseModel):
    """A model folder's `config.json`: the fields that cpb reads; dimensions, options and the rest pass through.

    `rows`: candles of the series that it learnt. `warm_start`: the folder of the model that it continued.
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
    rows: int = 0
    warm_start: str | None = None
    flat_band: float | None = None


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
        raise _damaged(folder, f"{CONFIG} cannot be read ({type(error).__name__})") from error


def write_metrics(folder: Path, metrics: Mapping[str, float], verdict: str) -> None:
    """Write a model's scores: `metrics.json` with the verdict, and the field `metrics` of its `config.json`."""
    write_json(folder / METRICS, {**metrics, "verdict": verdict})
    config = _config_values(folder)
    if config.get("metrics") != dict(metrics):
        write_json(folder / CONFIG, config | {"metrics": dict(metrics)})


def write_published_config(source: Path, target: Path) -> None:
    """Copy `config.json` for publication: it may say that the model continued another, but not where that lies."""
    values = _config_values(source)
    if not values.get("warm_start"):
        (target / CONFIG).write_bytes((source / CONFIG).read_bytes())
        return
    write_json(target / CONFIG, values | {"warm_start": "champion"})


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
