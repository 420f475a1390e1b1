"""A folder of published files as a mirror that `tasks.market.simulator.serve` can serve."""

import hashlib
from pathlib import Path


class FolderMirror:
    """The files of a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def keys(self, prefix: str) -> list[tuple[str, str, int]]:
        """Return the files under a prefix; the ETag is the MD5, as S3 has it."""
        folder = self.root / prefix
        paths = sorted(p for p in folder.rglob("*") if p.is_file()) if folder.is_dir() else []
        return [(str(p.relative_to(self.root)), _md5(p), p.stat().st_size) for p in paths]

    def read(self, key: str) -> bytes | None:
        """Return a file's bytes."""
        path = self.root / key
        return path.read_bytes() if path.is_file() and ".." not in key else None


def _md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
