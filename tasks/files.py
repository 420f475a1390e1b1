"""Writing files so that a reader, or the next run after a kill, never meets half of one."""

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to a temporary file beside `path`, sync it, then rename it over `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft_name(path)
    try:
        with draft.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
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
    draft = _draft_name(path)
    draft.mkdir()
    try:
        yield draft
        if path.exists():
            shutil.rmtree(path)
        draft.rename(path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _draft_name(path: Path) -> Path:
    # Not tempfile's: its files are for their owner alone, ours follow the umask like any other file.
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
