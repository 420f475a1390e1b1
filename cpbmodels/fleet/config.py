"""`config.json` of a model's folder: every field with its type and bounds, checked before anything is allocated.

`FIELDS` and the options' own bounds (`options.RANGES`, `options.CHOICES`) are the file's only definition.
Evaluation results (`metrics`) are added after training, so the file's own digest leaves them out. No torch here.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cpbmodels.arch.options import MAX_MEMBERS, Preset, check
from cpbmodels.data.student_t import QUANTILES
from cpbmodels.errors import DamagedModelError, ModelError, shown

FORMAT = 2
"""Version of the file; no other version is read."""
CONFIG, WEIGHTS = "config.json", "model.safetensors"
"""The files of a model's folder."""
DIGEST, WEIGHTS_DIGEST = "config_sha256", "weights_sha256"
PARTS, PART_FIELDS = "parts", ("architecture", "seed", "seeds")
"""Fields stored per member of an average, with its options; the rest belong to the average."""
JUDGED = ("metrics",)
"""Fields that judging adds to a trained model's file."""
MAX_BYTES = 16_000_000  # mostly history, about 120 bytes per epoch
MAX_TEXT = 1_000  # characters
MAX_ITEMS = 100_000  # of a list; as many epochs as `options.RANGES` allows
MAX_ROWS = 1_000  # models in an ensemble

_HEX = re.compile(r"[0-9a-f]{64}")

Check = Callable[[Any], bool]


@dataclass(frozen=True)
class Field:
    """What a field holds, in words and as a check. `required`: no model can be built without it."""

    what: str
    check: Check
    required: bool = False


def _text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT


def _whole(value: Any, low: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value < 2**63


def _number(value: Any) -> bool:
    """NaN and infinity are numbers here: a loss may be."""
    return isinstance(value, float) or _whole(value, -(2**63))


def _time(value: Any) -> bool:
    try:
        return _text(value) and datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


def _maybe(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _list(item: Check, most: int = MAX_ITEMS, least: int = 0) -> Check:
    return lambda value: isinstance(value, list) and least <= len(value) <= most and all(map(item, value))


def _map(item: Check) -> Check:
    return lambda value: (
        isinstance(value, dict)
        and len(value) <= MAX_TEXT
        and all(map(_text, value))
        and all(map(item, value.values()))
    )


def _plain(value: Any) -> bool:
    return isinstance(value, bool) or _text(value) or _number(value)


def _report(value: Any) -> bool:
    """Numbers, texts and flags, and a classifier's table of counts."""
    if not isinstance(value, dict):
        return False
    rest = {name: one for name, one in value.items() if name != "confusion"}
    counts = _list(_list(_whole, 3, 3), 3, 3)
    return _map(_plain)(rest) and isinstance(rest.get("stopped", ""), str) and (
        "confusion" not in value or counts(value["confusion"])
    )  # fmt: skip


def _sha256(value: Any) -> bool:
    return _text(value) and bool(_HEX.fullmatch(value))


def _bounds(value: Any) -> bool:
    """Start and end of each split, and the timeframe that they hold for."""
    if not isinstance(value, dict):
        return False
    rest = {name: one for name, one in value.items() if name != "timeframe"}
    return _text(value.get("timeframe", "")) and _map(_list(_time, 2, 2))(rest)


def _parts(value: Any) -> bool:
    """Each member's own fields and all of its options; whether these are possible is checked with them."""
    wanted = {"architecture", "seed", *OPTIONS}
    return _list(
        lambda one: isinstance(one, dict) and wanted <= {*one} <= wanted | {*PART_FIELDS}, MAX_MEMBERS, 2
    )(value)


OPTIONS = tuple(Preset().as_dict())
FIELDS: Mapping[str, Field] = {
    "format": Field(f"{FORMAT}", lambda value: _whole(value) and value == FORMAT, required=True),
    "architecture": Field("a name", lambda value: _text(value) and bool(value), required=True),
    "dtype": Field("float32 or float64", lambda value: value in ("float32", "float64"), required=True),
    "quantiles": Field("the levels 0.05, 0.1 .. 0.95", lambda value: value == QUANTILES.tolist(), required=True),
    "symbol": Field("a text", _text),
    "timeframe": Field("a text", _text),
    "symbols": Field("a list of texts", _list(_text)),
    "seed": Field("a whole number", _whole, required=True),
    "seeds": Field("a list of whole numbers", _list(_whole, MAX_ROWS, 1)),
    PARTS: Field("the options of each member of an average", _parts),
    "known_until": Field("a time with its zone, or null", _maybe(_time)),
    "versions": Field("texts by name", _map(_text)),
    "history": Field("a list of numbers by name", _list(_map(_number))),
    "report": Field("numbers and texts by name", _report),
    # what the pipeline knows of a training
    "market": Field("a text", _text),
    "scope": Field("a text", _text),
    "preset": Field("a text", _text),
    "recipe": Field("a text", _text),
    "data_digest": Field("a text", _text),
    "code_digest": Field("a text", _text),
    "rows": Field("a whole number", _whole),
    "warm_start": Field("a text, or null", _maybe(_text)),
    "training_span": Field("two times, or none", lambda value: _list(_time, 2)(value) and len(value) != 1),
    "bounds": Field("two times by split", _bounds),
    "metrics": Field("numbers by name", _map(_number)),
    # what a published model says of its registered version
    "model_version": Field("a text", _text),
    "verdict": Field("a text", _text),
    # what the files are checked by
    WEIGHTS_DIGEST: Field("a sha256", _sha256, required=True),
    DIGEST: Field("a sha256", _sha256, required=True),
}  # fmt: skip


def parse(content: bytes, where: object) -> dict[str, Any]:
    """The fields of a `config.json`, each of its type and within its bounds; some may be missing.

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
    except (ValueError, RecursionError) as broken:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise damaged(where, f"config.json is not JSON: {shown(str(broken))}") from None
    if not isinstance(values, dict):
        raise damaged(where, "config.json is not an object")
    check_fields(values, where)
    return values


def check_fields(values: Mapping[str, Any], where: object) -> None:
    """Raise ModelError for a field that is unknown or impossible; errors as in `parse`."""
    version = values.get("format", FORMAT)
    if _whole(version) and version != FORMAT:
        remedy = "update the package cpbmodels" if version > FORMAT else "train or fetch the model again"
        raise ModelError(f"{where} has model format {version}, this version reads {FORMAT}: {remedy}.")
    for name, value in values.items():
        if name in FIELDS and not FIELDS[name].check(value):
            raise ModelError(
                f"{where}: {name} in config.json must be {FIELDS[name].what}, not {shown(value)}."
            )
        if name not in FIELDS and name not in OPTIONS:
            raise ModelError(
                f"{where}: config.json has the unknown field {shown(name)}: fetch or train the model again."
            )
    try:
        check(options_of(values))
    except ModelError as wrong:
        raise ModelError(f"{where}: config.json is invalid: {wrong}") from None
    for part in values.get(PARTS, ()):
        check_fields(part, where)


def check_whole(values: Mapping[str, Any], where: object) -> Preset:
    """The options of a file that has passed `check_fields`, if all required fields are present.

    Raises:
        ModelError: a field is missing.
        DamagedModelError: the file differs from what was saved: its digest is another.
    """
    required = {name for name, field in FIELDS.items() if field.required}
    missing = [name for name in (*FIELDS, *OPTIONS) if name in required | set(OPTIONS) and name not in values]
    if missing:
        raise ModelError(f"{where}: config.json lacks {', '.join(missing)}: fetch or train the model again.")
    if values.get(DIGEST) != digest(values):
        raise damaged(where, "config.json is not the file that was saved: its sha256 differs")
    return options_of(values)


def options_of(values: Mapping[str, Any]) -> Preset:
    """The options among the fields; those that are missing have their default."""
    found = {name: values[name] for name in OPTIONS if name in values}
    given: dict[str, Any] = {
        name: tuple(one) if isinstance(one, list) else one for name, one in found.items()
    }
    return Preset(**given)


def digest(values: Mapping[str, Any]) -> str:
    """sha256 of all fields but the digest itself and what judging adds, independent of their order."""
    own = {name: value for name, value in values.items() if name not in (DIGEST, *JUDGED)}
    return hashlib.sha256(json.dumps(own, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def sealed(values: Mapping[str, Any], weights_sha256: str) -> dict[str, Any]:
    """The fields with the digests by which `cpbmodels.load` checks both files, last."""
    own = {name: value for name, value in values.items() if name not in (DIGEST, WEIGHTS_DIGEST)}
    own = json.loads(
        json.dumps({**own, WEIGHTS_DIGEST: weights_sha256}, default=str)
    )  # as it will be read back
    return {**own, DIGEST: digest(own)}


def damaged(where: object, why: str) -> DamagedModelError:
    """The error of a folder whose files are not those that were saved."""
    return DamagedModelError(f"{where} is damaged ({why}): fetch or train the model again.")
