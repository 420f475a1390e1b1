"""Arrays in npz files, without pickle, and the lock under which Python source is parsed."""

import io
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.storage.files import write_bytes
from tasks.storage.sealed import read_sealed

if TYPE_CHECKING:  # numpy takes a tenth of a second, and `cpb --help` imports this module
    from numpy.typing import NDArray

PARSING = threading.Lock()
"""Python 3.11's `ast.parse` counts its depth once for all threads: if garbage collection runs Python code during a
parse, another thread's parse makes it end in a SystemError. numpy parses the header of every array that it reads."""


def write_npz(path: Path, arrays: "Mapping[str, NDArray[Any]]") -> None:
    """Write arrays, atomically; the folder is sealed by the caller."""
    import numpy as np

    buffer = io.BytesIO()  # numpy writes in many small pieces, and seeks: a full disk would leave any of them
    np.savez(buffer, allow_pickle=False, **arrays)
    write_bytes(path, buffer.getbuffer())


def read_npz(path: Path) -> "dict[str, NDArray[Any]]":
    """Return the arrays of an npz file by name; its folder is sealed, and errors are those of `read_sealed`."""
    import numpy as np

    content = io.BytesIO(read_sealed(path.parent, path.name))
    with PARSING, np.load(content, allow_pickle=False) as arrays:
        return dict(arrays)
