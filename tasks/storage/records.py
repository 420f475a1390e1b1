"""The records that steps hand on, on disk: one JSON file each, with its kind, its version and a digest.

All reading and writing of records happens here. A file whose digest does not fit is set aside, never used.
"""

import json
import logging
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from schemas.errors import DamagedError
from schemas.handover import Record
from tasks.storage.digests import canonical, value_digest
from tasks.storage.files import write_bytes, write_json

log = logging.getLogger("cpb")

R = TypeVar("R", bound=Record)
ASIDE = ".damaged"
"""Ending of the name under which a damaged file is kept."""


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
        DamagedError: not the bytes that were written, or written by a version of cpb with other records.
    """
    try:
        found = json.loads(path.read_bytes())
        name, version, digest, body = (found[key] for key in ("record", "version", "digest", "body"))
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path, f"no record of cpb can be read from it ({type(error).__name__})") from error
    if (name, version) != (kind.__name__, kind.version):
        raise _damaged(path, f"it holds {name} version {version}, not {kind.__name__} version {kind.version}")
    if value_digest(body) != digest:
        raise _damaged(path, "its digest does not fit its content")
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise _damaged(path, f"{error.errors()[0]['loc']} is not valid") from error


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
    number = 1
    while (target := path.with_name(f"{path.name}{ASIDE}-{number}")).exists():
        number += 1
    path.rename(target)
    log.warning("%s is set aside as %s: %s", path, target.name, reason)
    return target


def _damaged(path: Path, why: str) -> DamagedError:
    return DamagedError(
        f"{path} is damaged: {why}; run the same command again to make it anew", field=str(path)
    )
