"""Arrays in one uncompressed npz file: each is stored with its CRC-32, so a damaged file is always noticed."""

import io
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.errors import DamagedError

_NO_NPZ = (OSError, ValueError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What zipfile and numpy raise for bytes that are no npz file, or no whole one."""


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of an npz file by name; pickled ones are refused.

    Raises:
        FileNotFoundError: there is none.
        DamagedError: its bytes are not those that were written.
    """
    try:
        with zipfile.ZipFile(path) as file:
            # Whole entries, because zipfile compares the CRC-32 only when it reaches an entry's end.
            entries = {name.removesuffix(".npy"): file.read(name) for name in file.namelist()}
        return {
            name: np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
            for name, data in entries.items()
        }
    except FileNotFoundError:
        raise
    except _NO_NPZ as error:
        raise DamagedError(f"{path} is damaged ({error}); it is made again", field=str(path)) from error
