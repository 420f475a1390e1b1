"""The records passed between steps, on disk: one JSON file each, with its kind, version, subject and digest.

All reading and writing of records is in this module. The digest covers all of these: a file whose digest does not
match, or whose subject does not match its path, is never used.

Also a member's arrays: one uncompressed npz file, each array with a CRC-32, together with their subject, so that a
damaged or exchanged file is always detected. The central directory of a zip file has no checksum: a flipped bit there
can hide an entry. So the entries must also be contiguous.
"""

import io
import json
import logging
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from schemas.errors import DamagedError
from schemas.handover import Record
from tasks.storage.digests import canonical, value_digest
from tasks.storage.files import write_bytes, write_json

if TYPE_CHECKING:  # numpy takes a tenth of a second, and `cpb --help` imports this module
    from numpy.typing import NDArray

log = logging.getLogger("cpb")

R = TypeVar("R", bound=Record)
_HEAD = ("record", "version", "of", "digest", "body")


def write_record(path: Path, record: Record, *, of: str = "", compact: bool = False) -> str:
    """Write a record atomically and return its digest.

    Args:
        of: its subject (a series, a key), which readers check: exchanged files are detected.
        compact: on one line, for records of which there are many.
    """
    content = {
        "record": type(record).__name__, "version": record.version, "of": of,
        "body": record.model_dump(mode="json"),
    }  # fmt: skip
    digest = value_digest(content)
    body = content.pop("body")
    whole = content | {"digest": digest, "body": body}
    if compact:
        write_bytes(path, canonical(whole) + b"\n")
    else:
        write_json(path, whole)
    return digest


def read_record(path: Path, kind: type[R], *, of: str | None = "") -> R:
    """Return the record in `path`.

    Args:
        of: required subject; None: any, for a copy that is verified by its own sha256.

    Raises:
        FileNotFoundError: the file is missing.
        DamagedError: it is not the file that was written.
    """
    try:
        return parse_record(path, kind, of=of)
    except DamagedError as error:
        raise DamagedError(
            f"{path} is damaged: {error}; run the same command again to recreate it", field=str(path)
        ) from error


def parse_record(path: Path, kind: type[R], *, of: str | None = "") -> R:
    """Return the record in `path`; errors as in `read_record`, but the message is only the reason."""
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise DamagedError("it is not JSON") from error
    if not isinstance(found, dict):
        raise DamagedError("it is JSON, but not an object")
    if missing := [key for key in _HEAD if key not in found]:
        raise DamagedError(f"it has no field {missing[0]}")
    name, version, subject, digest, body = (found[key] for key in _HEAD)
    if name != kind.__name__:
        raise DamagedError(f"it contains the record {name}, not {kind.__name__}")
    if value_digest({key: found[key] for key in _HEAD if key != "digest"}) != digest:
        raise DamagedError("its digest does not match its content")
    if of is not None and subject != of:
        raise DamagedError(f"it is the record of {subject or 'nothing'}, not of {of or 'nothing'}")
    if version != kind.version:
        raise DamagedError(f"its version is {version}, and this cpb reads version {kind.version}")
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        place = ".".join(str(part) for part in error.errors()[0]["loc"]) or "body"
        raise DamagedError(f"its field {place} is not valid") from error


def find_record(path: Path, kind: type[R], *, of: str = "") -> R | None:
    """Return the record in `path`, or None if missing or damaged, which is logged: its writer makes it anew."""
    try:
        return read_record(path, kind, of=of)
    except FileNotFoundError:
        return None
    except DamagedError as error:
        log.warning("%s", error)
        return None


def member_subject(path: Path) -> str:
    """Return the subject of a file of a fleet's member, `KEY/BTCUSDT-1h/loss.png`, also within a draft.

    Args:
        path: `KEY/members/BTCUSDT-1h/FILE` or `KEY/members/BTCUSDT-1h/model/FILE`, below `fleets`.
    """
    member = path.parent.parent if path.parent.name == "model" else path.parent
    return f"{member.parent.parent.name}/{member.name}/{path.name}"


_LOCAL_HEADER = struct.Struct("<26xHH")  # followed by the name and extra field of these lengths
_NO_NPZ = (
    OSError,
    ValueError,
    EOFError,
    KeyError,
    RuntimeError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
"""Errors of zipfile and numpy for bytes that are not a complete npz file."""


_SUBJECT = "of"
"""Name of the entry with the arrays' subject (`member_subject`)."""


def write_npz(path: Path, arrays: "Mapping[str, NDArray[Any]]") -> None:
    """Write arrays of a member, atomically."""
    import numpy as np

    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **{_SUBJECT: np.asarray(member_subject(path))}, **arrays)
    write_bytes(path, buffer.getbuffer())


def read_npz(path: Path) -> "dict[str, NDArray[Any]]":
    """Return the arrays of an npz file by name; pickled arrays are refused.

    Raises:
        FileNotFoundError: the file is missing.
        DamagedError: its bytes are not those written.
    """
    import numpy as np

    try:
        with zipfile.ZipFile(io.BytesIO(content := path.read_bytes())) as file:
            _check_complete(file, content)
            # Read entries completely: zipfile checks the CRC-32 only at an entry's end.
            entries = {name.removesuffix(".npy"): file.read(name) for name in file.namelist()}
        arrays = {
            name: np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
            for name, data in entries.items()
        }
        if str(arrays.pop(_SUBJECT)) != member_subject(path):
            raise ValueError("it is another member's")
    except FileNotFoundError:
        raise
    except _NO_NPZ as error:
        raise DamagedError(f"{path} is damaged ({error}); it will be recreated", field=str(path)) from error
    return arrays


def _check_complete(file: zipfile.ZipFile, content: bytes) -> None:
    """Raise `BadZipFile` if bytes before the central directory belong to no entry."""
    at = 0
    for entry in sorted(file.infolist(), key=lambda e: e.header_offset):
        if entry.header_offset != at:
            raise zipfile.BadZipFile("an entry is missing")
        at += _LOCAL_HEADER.size + sum(_LOCAL_HEADER.unpack_from(content, at)) + entry.compress_size
    if at != file.start_dir:
        raise zipfile.BadZipFile("the last entry is missing")
