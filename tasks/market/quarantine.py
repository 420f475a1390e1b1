"""Where refused files go, each with the reason beside it."""

from pathlib import Path

from tasks.market.layout import SourceFile
from tasks.market.store import replacing


def quarantine(home: Path, file: SourceFile, payload: bytes, reason: str) -> None:
    """Keep a refused file as `quarantine/SYMBOL-IV-PERIOD.zip` with `….reason.txt` beside it."""
    path = home / "quarantine" / file.key.removeprefix("data/")
    with replacing(path) as temp:
        temp.write_bytes(payload)
    with replacing(path.with_name(f"{path.name}.reason.txt")) as temp:
        temp.write_text(f"{file}: {reason}\nsource: {file.key}\n", encoding="utf-8")


def release(home: Path, file: SourceFile) -> None:
    """Remove a file that has since been published in good order."""
    path = home / "quarantine" / file.key.removeprefix("data/")
    for name in (path, path.with_name(f"{path.name}.reason.txt")):
        name.unlink(missing_ok=True)
