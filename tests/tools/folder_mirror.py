"""A folder of published files as a mirror that `tasks.market.simulator.serve` can serve, and REST beside it."""

import hashlib
import json
from pathlib import Path

import polars as pl

from tasks.market.simulator import to_csv


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


def rest_of(rows):
    """A hook that answers REST questions from a frame of 1h candles."""

    def hook(_handler, path, query):
        if path != "api/v3/klines":
            return None
        times = pl.col("open_time").dt.epoch("ms")
        part = rows.filter(times.is_between(int(query["startTime"]), int(query["endTime"])))
        cells = [line.split(",") for line in to_csv(part, "1h").decode().splitlines()]
        body = [[int(c[0]), *c[1:6], int(c[6]), c[7], int(c[8]), *c[9:]] for c in cells]
        return 200, {}, json.dumps(body).encode()

    return hook
