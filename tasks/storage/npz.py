"""Arrays of a fleet's member in one uncompressed npz file, each with a CRC-32, together with their subject, so that a
damaged or exchanged file is always detected.

The central directory of a zip file has no checksum: a flipped bit there can hide an entry. So the entries must also be
contiguous.
"""

import io
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.errors import DamagedError
from tasks.storage.files import write_bytes
from tasks.storage.records import member_subject

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


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays of a member, atomically."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **{_SUBJECT: np.asarray(member_subject(path))}, **arrays)
    write_bytes(path, buffer.getbuffer())


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of an npz file by name; pickled arrays are refused.

    Raises:
        FileNotFoundError: the file is missing.
        DamagedError: its bytes are not those written.
    """
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
        raise DamagedError(f"{path} is damaged ({error}); it is made again", field=str(path)) from error
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
