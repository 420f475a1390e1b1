"""Where refused files lie, each with the reason beside it."""

from pathlib import Path

from tasks.market.layout import SourceFile
from tasks.market.own import QUARANTINE
from tasks.storage.files import write_bytes


def quarantine(root: Path, file: SourceFile, payload: bytes, reason: str) -> None:
    """Store a refused file as `quarantine/spot/monthly/…/BTCUSDT-1h-2024-01.zip`, with `….reason.txt` beside it."""
    path = _place(root, file)
    write_bytes(path, payload)
    write_bytes(_reason(path), f"{file}: {reason}\nsource: {file.key}\n".encode())


def release(root: Path, file: SourceFile) -> None:
    """Remove a refused file once a good version of it is stored."""
    path = _place(root, file)
    path.unlink(missing_ok=True)
    _reason(path).unlink(missing_ok=True)


def _place(root: Path, file: SourceFile) -> Path:
    return root / QUARANTINE / file.key.removeprefix("data/")


def _reason(path: Path) -> Path:
    return path.with_name(f"{path.name}.reason.txt")
