"""Keys and listing of a tree in the shared store: `PREFIX/NAME.DIGEST` for its files, `PREFIX/tree-DIGEST.json`."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath

from tasks.storage.digests import file_digest, value_digest

Files = Mapping[str, tuple[str, int]]
"""sha256 and bytes of each file of a tree, by its name."""


def part_key(prefix: str, name: str, digest: str) -> str:
    """Return the key of a file that lies under its name and the first 16 hex digits of its sha256."""
    return f"{prefix}/{name}.{digest[:16]}".lstrip("/")


def listing_key(prefix: str, last_digest: str) -> str:
    """Return the key of a tree's listing; `last_digest`: sha256 of the tree's last file."""
    return f"{prefix}/tree-{last_digest[:16]}.json"


def listing_text(files: Files) -> str:
    """Return the listing of a tree as JSON."""
    return json.dumps({"files": files, "digest": value_digest(files)})


def read_listing(path: Path) -> Files:
    """Return the files of a listing that `listing_damage` has found to be whole."""
    files: Files = json.loads(path.read_bytes())["files"]
    return files


def listing_damage(path: Path, allowed: Callable[[str], bool]) -> str:
    """Return what is wrong with a listing, or ""; a name that leads out of the folder, or is not `allowed`, is wrong.

    Whoever may write to the store could name any file of this machine.
    """
    try:
        found = json.loads(path.read_bytes())
        files = found["files"]
        if value_digest(files) != found["digest"]:
            return "its digest does not fit its content"
        for name, (digest, size) in files.items():
            if not (isinstance(digest, str) and len(digest) == 64 and isinstance(size, int)):
                return "it is not what cpb writes"
            if not is_plain(name) or not allowed(name):
                return f"it names a file {name!r}, which no tree of cpb holds"
    except (ValueError, TypeError, KeyError, AttributeError):
        return "it is not what cpb writes"
    return ""


def is_plain(name: str) -> bool:
    """Whether a name stays below the folder that it is relative to, and means the same on every system."""
    path = PurePosixPath(name)
    parts = name.split("/")
    return not path.is_absolute() and not any(
        part in ("", ".", "..") or "\\" in part or "\0" in part for part in parts
    )


def by_digest(digest: str) -> Callable[[Path], str]:
    """Return a check that a file has this sha256."""
    return lambda path: "" if file_digest(path) == digest else "its sha256 differs"
