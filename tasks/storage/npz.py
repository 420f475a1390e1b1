"""Arrays of a fleet's member in one uncompressed npz file: each is stored with its CRC-32, and so is what they are
about, so a damaged or exchanged file is always noticed.

The list of entries at the end of a zip file has none: a flipped bit there can hide an entry. So the entries must also
lie end to end.
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

_LOCAL_HEADER = struct.Struct("<26xHH")  # then the name and the extra field, whose lengths these are
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
"""What zipfile and numpy raise for bytes that are no npz file, or no whole one."""


_SUBJECT = "of"
"""Name of the entry that says what the arrays are about (`member_subject`)."""


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays of a member, atomically."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **{_SUBJECT: np.asarray(member_subject(path))}, **arrays)
    write_bytes(path, buffer.getbuffer())


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of an npz file by name; pickled ones are refused.

    Raises:
        FileNotFoundError: there is none.
        DamagedError: its bytes are not those that were written there.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content := path.read_bytes())) as file:
            _check_complete(file, content)
            # Whole entries, because zipfile compares the CRC-32 only when it reaches an entry's end.
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
    """Raise `BadZipFile` where bytes before the list of entries belong to none of them."""
    at = 0
    for entry in sorted(file.infolist(), key=lambda e: e.header_offset):
        if entry.header_offset != at:
            raise zipfile.BadZipFile("an entry is missing")
        at += _LOCAL_HEADER.size + sum(_LOCAL_HEADER.unpack_from(content, at)) + entry.compress_size
    if at != file.start_dir:
        raise zipfile.BadZipFile("the last entry is missing")
