"""The records that steps hand on, on disk: one JSON file each, with its kind, its version and a digest.

All reading and writing of records happens here. A file whose digest does not fit is set aside, never used. One that an
earlier version of cpb wrote is not used either, but it is no damage (code `EARLIER`).
"""

import json
import logging
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from schemas.errors import DamagedError
from schemas.handover import Record
from tasks.storage.digests import canonical, value_digest
from tasks.storage.files import write_bytes, write_json

log = logging.getLogger("cpb")

R = TypeVar("R", bound=Record)
ASIDE = ".damaged"
"""Ending of the name under which a damaged file is kept."""

EARLIER = "earlier-version"
"""Code of the error for a record that an earlier version of cpb wrote, with other fields."""

_HEAD = ("record", "version", "digest", "body")


def record_digest(record: Record) -> str:
    """Return the sha256 of a record's canonical JSON."""
    return value_digest(record.model_dump(mode="json"))


def write_record(path: Path, record: Record, *, compact: bool = False) -> str:
    """Write a record atomically and return its digest; `compact`: in one line, for those that pile up."""
    body = record.model_dump(mode="json")
    digest = value_digest(body)
    head = {"record": type(record).__name__, "version": record.version, "digest": digest}
    if compact:
        write_bytes(path, canonical(head | {"body": body}) + b"\n")
    else:
        write_json(path, head | {"body": body})
    return digest


def read_record(path: Path, kind: type[R]) -> R:
    """Return the record in `path`.

    Raises:
        FileNotFoundError: there is none.
        DamagedError: not what was written, or (code `EARLIER`) written by a version of cpb with other records.
    """
    try:
        return parse_record(path, kind)
    except DamagedError as error:
        state = str(error) if error.code == EARLIER else f"is damaged: {error}"
        raise DamagedError(
            f"{path} {state}; run the same command again to make it anew", code=error.code, field=str(path)
        ) from error


def parse_record(path: Path, kind: type[R]) -> R:
    """Return the record in `path`; errors as in `read_record`, but the message is the bare reason."""
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise DamagedError("it is not JSON") from error
    if not isinstance(found, dict):
        raise DamagedError("it is JSON, but not an object")
    if _is_headless(found, kind):
        raise _earlier()
    if missing := [key for key in _HEAD if key not in found]:
        raise DamagedError(f"it has no field {missing[0]}")
    name, version, digest, body = (found[key] for key in _HEAD)
    if name != kind.__name__:
        raise DamagedError(f"it holds the record {name}, not {kind.__name__}")
    if value_digest(body) != digest:
        raise DamagedError("its digest does not fit its content")
    if type(version) is int and 1 <= version < kind.version:
        raise _earlier()
    if version != kind.version:
        raise DamagedError(f"its version is {version}, and this cpb reads version {kind.version}")
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        place = ".".join(str(part) for part in error.errors()[0]["loc"]) or "body"
        raise DamagedError(f"its field {place} is not valid") from error


def find_record(path: Path, kind: type[R]) -> R | None:
    """Return the record in `path`, or None where there is none; a damaged one is set aside first."""
    try:
        return read_record(path, kind)
    except FileNotFoundError:
        return None
    except DamagedError as error:
        set_aside(path, str(error))
        return None


def set_aside(path: Path, reason: str) -> Path:
    """Rename a damaged file or folder so that no step reads it again, and say so; return where it lies now."""
    target = aside_name(path)
    path.rename(target)
    log.warning("%s is set aside as %s: %s", path, target.name, reason)
    return target


def aside_name(path: Path) -> Path:
    """Return the first name that is free for a damaged file or folder to lie under: `2024-01.parquet.damaged-1`."""
    number = 1
    while (target := path.with_name(f"{path.name}{ASIDE}-{number}")).exists():
        number += 1
    return target


def _is_headless(found: dict[str, Any], kind: type[Record]) -> bool:
    """Whether a JSON object is a record as it was written before records had a head: the bare fields, or most of them.

    No damage of a present record looks so: its fields lie one level deeper, below `body`.
    """
    needed = [name for name, field in kind.model_fields.items() if field.is_required()]
    return not found.keys() & {"record", "body"} and 2 * len(found.keys() & set(needed)) > len(needed) > 0


def _earlier() -> DamagedError:
    return DamagedError("was written by an earlier version of cpb", code=EARLIER)
