"""Records passed between steps, on disk, and digests of files and of values.

A record is a JSON file with its kind, version and digest; all reading and writing of records is in this module. The
digest covers all of the file: one whose digest does not match is never used.
"""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from cpbmodels.files import open_regular, read_regular
from schemas.base import Record
from schemas.errors import DamagedError, log
from tasks.storage.files import write_bytes, write_json

NOT_WRITTEN = "it is not the file that was written (its sha256 differs)"
AGAIN = "run the same command again to recreate it"
"""The remedy for what a run makes anew as soon as it finds it damaged."""

R = TypeVar("R", bound=Record)
_FIELDS = ("record", "version", "digest", "body")


def file_digest(path: Path) -> str:
    """Return the sha256 of a file's bytes."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_fault(path: Path, digest: str | None) -> str:
    """Return the fault of a file with a recorded sha256, "" for none."""
    try:
        is_same = file_digest(path) == digest
    except FileNotFoundError:
        return "it is missing"
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    return "" if is_same or digest is None else NOT_WRITTEN


def value_digest(value: Any) -> str:
    """Return the sha256 of a JSON value in canonical form (sorted keys, no spaces)."""
    return hashlib.sha256(canonical(value)).hexdigest()


def canonical(value: Any) -> bytes:
    """Return the canonical JSON of a value; dates and paths become strings."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode()


def write_record(path: Path, record: Record, *, compact: bool = False) -> str:
    """Write a record atomically and return its digest.

    Args:
        compact: on one line, for records of which there are many.
    """
    body = record.model_dump(mode="json")
    # The digest covers the head as well: a flipped bit there would make it another kind's record.
    head = {"record": type(record).__name__, "version": record.version}
    digest = value_digest(head | {"body": body})
    content = head | {"digest": digest, "body": body}
    if compact:
        write_bytes(path, canonical(content) + b"\n")
    else:
        write_json(path, content)
    return digest


def read_record(path: Path, kind: type[R]) -> R:
    """Return the record in `path`.

    Raises:
        FileNotFoundError: the file is missing.
        DamagedError: it is not the file that was written.
    """
    try:
        return parse_record(path, kind)
    except DamagedError as error:
        raise DamagedError.of(path, error, AGAIN) from error


def parse_record(path: Path, kind: type[R]) -> R:
    """Return the record in `path`; errors as in `read_record`, but the message is only the reason."""
    return record_in(read_regular(path), kind)


def record_in(data: bytes, kind: type[R]) -> R:
    """Return the record in the bytes of its file; errors as in `parse_record`."""
    try:
        # As parsed, not byte for byte: white space is layout, which a person's editor may change.
        content = json.loads(data)
        name, version, digest, body = (content[key] for key in _FIELDS)
        # Of all fields: published ones of before have one more (`of`), and are kept forever.
        is_whole = value_digest({key: value for key, value in content.items() if key != "digest"}) == digest
    except (ValueError, TypeError, KeyError):
        is_whole = False
    # Its digest first: of a damaged file neither kind nor version can be believed.
    if not is_whole or name != kind.__name__:
        raise DamagedError(f"it is no {kind.__name__} as cpb writes it")
    if version != kind.version:
        raise DamagedError(f"its version is {version}, and this cpb reads version {kind.version}")
    try:
        return kind.model_validate(body)
    except ValidationError as error:  # whole, but of a cpb that forgot to raise the kind's version
        place = ".".join(str(part) for part in error.errors()[0]["loc"]) or "body"
        raise DamagedError(f"its field {place} is not valid") from error


def find_record(path: Path, kind: type[R]) -> R | None:
    """Return the record in `path`, or None if missing or damaged, which is logged: its writer makes it anew."""
    try:
        return read_record(path, kind)
    except FileNotFoundError:
        return None
    except DamagedError as error:
        warn_once(str(error))
        return None


@cache
def warn_once(text: str) -> None:
    """Log a warning once per process: page reloads must not fill the log."""
    log.warning("%s", text)
