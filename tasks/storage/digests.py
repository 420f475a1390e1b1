"""Digests: of files, of values, and of the source code that decides a result."""

import hashlib
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def file_digest(path: Path) -> str:
    """Return the sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def value_digest(value: Any) -> str:
    """Return the sha256 of a JSON value in canonical form (sorted keys, no spaces)."""
    return hashlib.sha256(canonical(value)).hexdigest()


def canonical(value: Any) -> bytes:
    """Return the canonical JSON of a value; dates and paths become texts."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode()


@cache
def code_digest(*places: str) -> str:
    """Return a digest (16 hex digits) of Python sources: files or folders, relative to the project's root.

    A stored result that was made by other code is not used.
    """
    digest = hashlib.sha256()
    for file in _sources(places):
        digest.update(file.relative_to(ROOT).as_posix().encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _sources(places: Iterable[str]) -> list[Path]:
    found = [ROOT / place for place in places]
    if missing := [path for path in found if not path.exists()]:
        raise FileNotFoundError(f"no source at {missing[0]}: the list of what decides a result is out of date")
    return sorted(file for path in found for file in (path.rglob("*.py") if path.is_dir() else [path]))
