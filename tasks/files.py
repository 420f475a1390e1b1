"""Writing files so that a reader, or the next run after a kill, never meets half of one."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to a temporary file beside `path`, sync it, then rename it over `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically. Paths and dates become texts."""
    write_bytes(path, (json.dumps(value, indent=2, default=str) + "\n").encode())


def read_json(path: Path) -> Any:
    """Return the JSON value in `path`."""
    return json.loads(path.read_text())


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `path` when the block ends well, and vanishes when it does not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        yield draft
        if path.exists():
            shutil.rmtree(path)
        draft.rename(path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
