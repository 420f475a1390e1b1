"""`config.json` of a model's folder: every field with its kind, checked before anything is allocated.

`FIELDS` and the options' own bounds (`options.RANGES`, `options.CHOICES`) are the file's only definition.
Evaluation results (`metrics`) are added after training, so the file's own digest leaves them out. No torch here.
"""

import hashlib
import json
import os
import re
import uuid
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from cpbmodels.arch.options import MAX_MEMBERS, Preset, check
from cpbmodels.data.extremes import CHANCES, CHANCES_OF_BEFORE, DISTANCE, FIRST, MAX_RATIO, TOUCH
from cpbmodels.data.student_t import QUANTILES
from cpbmodels.errors import DamagedModelError, ModelError, shown

FORMAT = 3
"""Version of the file; no other version is read."""
CONFIG, WEIGHTS = "config.json", "model.safetensors"
"""The files of a model's folder."""
DIGEST, WEIGHTS_DIGEST = "config_sha256", "weights_sha256"
PARTS, PART_FIELDS = "parts", ("architecture", "seed", "seeds")
"""Fields stored per member of an average, with its options; the rest belong to the average."""
JUDGED = ("metrics",)
"""Fields that judging adds to a trained model's file."""
MAX_BYTES = 16_000_000  # mostly history, about 120 bytes per epoch
MAX_TEXT = 1_000  # characters, and fields of an object
MAX_ITEMS = 100_000  # of a list; as many epochs as `options.RANGES` allows

MAX_WEIGHT = 1e6  # trained and fitted weights lie within a few hundred
MAX_INVERSE = (
    1e10  # a column's inverse standard deviation; `bank.fit_scaling` and `line` leave 1 for less than 1e-9
)
MAX_STANDARDISED = 1e4  # quantiles of the standardised error, in units of the forecast's scale
FIRST_YEAR, LAST_YEAR = 1800, 2199  # of any time: what lies between them can be converted and printed

OPTIONS = tuple(Preset().as_dict())
LATER_OPTIONS = ("location_share",)
"""Those that older files of this format lack: they have their default there."""

_ALWAYS = tuple(name for name in OPTIONS if name not in LATER_OPTIONS)
REQUIRED = ("format", "architecture", "dtype", "quantiles", "seed", *_ALWAYS, WEIGHTS_DIGEST, DIGEST)
"""Fields without which no model can be built."""


def _moment(value: Any) -> datetime | None:
    """An aware time of these centuries, None for anything else."""
    try:
        moment = datetime.fromisoformat(value) if fits(value, str) else None
    except ValueError:
        return None
    known = moment and moment.tzinfo is not None and FIRST_YEAR <= moment.year <= LAST_YEAR
    return moment if known else None


def _time(value: Any) -> bool:
    return _moment(value) is not None


def _span(value: Any) -> bool:
    """First and last time of a span, in order."""
    moments = [_moment(text) for text in value] if isinstance(value, list) and len(value) == 2 else [None]
    return None not in moments and moments == sorted(moments)  # type: ignore[type-var]


def _sha256(value: Any) -> bool:
    return isinstance(value, str) and bool(re.fullmatch(r"[0-9a-f]{64}", value))


def _parts(value: Any) -> bool:
    """Each member's own fields and all of its options; whether these are possible is checked with them."""
    needed = {"architecture", "seed", *_ALWAYS}
    return (
        isinstance(value, list)
        and 2 <= len(value) <= MAX_MEMBERS
        and all(isinstance(part, dict) and needed <= {*part} <= {*OPTIONS, *PART_FIELDS} for part in value)
    )


FIELDS: Mapping[str, Any] = {
    "format": int,
    "architecture": str,
    "dtype": ("float32", "float64"),
    "quantiles": QUANTILES.tolist().__eq__,
    "symbol": str,
    "timeframe": str,
    "symbols": [str],
    "seed": int,
    "seeds": [int],
    PARTS: _parts,
    "known_until": (_time, None),
    "versions": {"": str},
    "history": [{"": float}],
    "report": {"": (float, str, bool, [[int]])},
    # what the pipeline knows of a training
    "market": str,
    "scope": str,
    "preset": str,
    "recipe": str,
    "data_digest": str,
    "code_digest": str,
    "rows": int,
    "training_span": lambda value: value == [] or _span(value),  # empty: not known
    "bounds": {"": (str, _span)},
    "metrics": {"": float},
    # what a published model says of its registered version
    "model_version": str,
    "verdict": str,
    # what the files are checked by
    WEIGHTS_DIGEST: _sha256,
    DIGEST: _sha256,
}
"""The kind of each field, see `fits`."""


def fits(value: Any, kind: Any) -> bool:
    """Whether a value of JSON is of a kind.

    A kind is `str`, `int` (from 0), `float` (any number, also NaN and infinity, as a loss may be) or `bool`; a check; a
    constant; a tuple of alternatives; or, with the kind of what it holds, a list `[kind]` or an object `{"": kind}`.
    """
    if isinstance(kind, tuple):
        return any(fits(value, alternative) for alternative in kind)
    if kind is str:
        return isinstance(value, str) and len(value) <= MAX_TEXT
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and 0 <= value < 2**63
    if kind is float:
        return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)
    if isinstance(kind, list):
        return (
            isinstance(value, list) and len(value) <= MAX_ITEMS and all(fits(item, kind[0]) for item in value)
        )
    if isinstance(kind, dict):
        return (
            isinstance(value, dict)
            and len(value) <= MAX_TEXT
            and all(fits(name, str) and fits(item, kind[""]) for name, item in value.items())
        )
    return kind(value) is True if callable(kind) else bool(value == kind)


def parse(content: bytes, where: object) -> dict[str, Any]:
    """The fields of a `config.json`, each of its kind and within its bounds; some may be missing.

    Args:
        where: the file or folder, for messages.

    Raises:
        DamagedModelError: it is not a JSON object.
        ModelError: a field is unknown or impossible, or the file is of another version.
    """
    if len(content) > MAX_BYTES:
        raise ModelError(f"{where}: config.json has {len(content):,} bytes, more than {MAX_BYTES:,}.")
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise damaged(where, f"config.json is not JSON: {shown(str(error))}") from None
    if not isinstance(values, dict):
        raise damaged(where, "config.json is not an object")
    check_fields(values, where)
    return values


def check_fields(values: Mapping[str, Any], where: object) -> None:
    """Raise ModelError for a field that is unknown or impossible; errors as in `parse`."""
    version = values.get("format", FORMAT)
    if fits(version, int) and version != FORMAT:
        remedy = "update the package cpbmodels" if version > FORMAT else "train or fetch the model again"
        raise ModelError(f"{where} has model format {version}, this version reads {FORMAT}: {remedy}.")
    for name, value in values.items():
        if name not in OPTIONS and not fits(value, FIELDS.get(name, ())):
            what = f"cannot be {shown(value)}" if name in FIELDS else "is unknown"
            raise ModelError(
                f"{where}: the field {shown(name)} in config.json {what}: fetch or train the model again."
            )
    try:
        check(options_of(values))
    except ModelError as error:
        raise ModelError(f"{where}: config.json is invalid: {error}") from None
    for part in values.get(PARTS, ()):
        check_fields(part, where)


def check_whole(values: Mapping[str, Any], where: object) -> Preset:
    """The options of a file that has passed `check_fields`, if all required fields are present.

    Raises:
        ModelError: a field is missing.
        DamagedModelError: the file differs from what was saved: its digest is another.
    """
    if missing := [name for name in REQUIRED if name not in values]:
        raise ModelError(f"{where}: config.json lacks {', '.join(missing)}: fetch or train the model again.")
    if values[DIGEST] != digest(values):
        raise damaged(where, "config.json is not the file that was saved: its sha256 differs")
    return options_of(values)


def options_of(values: Mapping[str, Any]) -> Preset:
    """The options among the fields; those that are missing have their default."""
    options: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
        if name in OPTIONS
    }
    return Preset(**options)


def digest(values: Mapping[str, Any]) -> str:
    """sha256 of all fields but the digest itself and what judging adds, independent of their order."""
    covered = {name: value for name, value in values.items() if name not in (DIGEST, *JUDGED)}
    return hashlib.sha256(json.dumps(covered, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def sealed(values: Mapping[str, Any], weights_sha256: str) -> dict[str, Any]:
    """The fields with the digests by which `cpbmodels.load` checks both files, last."""
    fields = {name: value for name, value in values.items() if name not in (DIGEST, WEIGHTS_DIGEST)}
    text = json.dumps({**fields, WEIGHTS_DIGEST: weights_sha256}, default=str)
    fields = json.loads(text)  # as it will be read back
    return {**fields, DIGEST: digest(fields)}


def damaged(where: object, why: str) -> DamagedModelError:
    """The error of a folder whose files are not those that were saved."""
    return DamagedModelError(f"{where} is damaged ({why}): fetch or train the model again.")


def write_whole(path: Path, content: bytes) -> None:
    """Write a file by way of a temporary file beside it: flushed to disk, then renamed over the old file."""
    # Not tempfile's, which are for their owner alone: a model's mode follows the umask, as that of any other file.
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
    try:
        with draft.open("xb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def tensor_fault(name: str, values: np.ndarray) -> str:
    """Why a tensor of `model.safetensors` cannot be what a training leaves, "" if it can: its values and their order.

    Finite numbers are not enough: a table that falls gives quantiles that cross and stops on the wrong side of the
    close, and a huge weight a band that no coin's price can fill.

    Args:
        name: its name without the place of an average's member, as `Member.tensors` gives it.
        values: floats of any shape; of a table the last axis is its levels.
    """
    if not np.isfinite(values).all():
        return "holds NaN or infinity"
    is_table = name in (DISTANCE, TOUCH) or name.endswith("head.table")
    low, high = _limits(name, is_table=is_table)
    if values.size and not (low <= values.min() and values.max() <= high):
        return f"holds values beyond {low:g} .. {high:g}"
    # Levels that are equal in exact arithmetic may differ by the rounding of the interpolation between them.
    if is_table and (np.diff(values) < -4 * np.finfo(values.dtype).eps * np.abs(values[..., 1:])).any():
        return "falls between two of its levels"
    return ""


def _limits(name: str, *, is_table: bool) -> tuple[float, float]:
    if name in (DISTANCE, TOUCH):
        return 0.0, MAX_RATIO
    if name == FIRST:
        return 0.0, 1.0
    if is_table:
        return -MAX_STANDARDISED, MAX_STANDARDISED
    return (0.0, MAX_INVERSE) if name.endswith(".inverse") else (-MAX_WEIGHT, MAX_WEIGHT)


def extremes_fault(tensors: Mapping[str, np.ndarray], horizon: int) -> str:
    """Why tensors are no table of extremes of a model with this horizon (`Extremes.tensors`), "" if they are one."""
    levels, dtype = len(CHANCES), "float16"
    shapes: dict[str, tuple[int, ...]] = {
        DISTANCE: (2, horizon, levels),
        FIRST: (3, horizon, levels + 1, levels + 1),
    }
    if TOUCH in tensors:
        shapes, dtype = {TOUCH: (2, horizon, len(CHANCES_OF_BEFORE))}, "float32"
    if odd := shapes.keys() ^ tensors.keys():
        return f"{min(odd)} is not of the same table as the other tensors"
    for name, shape in shapes.items():
        if tensors[name].dtype != dtype or tensors[name].shape != shape:
            return f"{name} is not a table of {horizon} steps"
        if fault := tensor_fault(name, tensors[name]):
            return f"{name} {fault}"
    return ""


def part_configs(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The configuration of each member, from an average's; of any other model its own alone."""
    if PARTS not in config:
        return [dict(config)]
    common = {
        name: value
        for name, value in config.items()
        if name not in (PARTS, "history", "report", "seeds", *OPTIONS)
    }
    return [{**common, **part} for part in config[PARTS]]
