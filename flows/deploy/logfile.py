"""Log files that do not grow for ever.

A process and all its children write to the same open file. So the file is not renamed, which would need each of
them to open it again, but copied and cut: they append, and go on at the new end. A pump between process and file
would block or kill the process when the pump dies. What is written between copy and cut is lost.
"""

import contextlib
import shutil
import threading
import time
from pathlib import Path

MAX_BYTES = 5_000_000
MAX_OLD_FILES = 3
CHECK_EVERY_S = 10.0


def cap_log(path: Path) -> None:
    """Keep a log of this process below about `MAX_BYTES`, from a thread, as long as the process lives."""
    threading.Thread(target=_watch, args=(path,), daemon=True, name="log-cap").start()


def rotate(path: Path, max_bytes: int = MAX_BYTES) -> bool:
    """Move the content of a log that is too long to `NAME.1`, older ones to `.2` …; return whether it was."""
    if not path.exists() or path.stat().st_size <= max_bytes:
        return False
    for number in range(MAX_OLD_FILES, 1, -1):
        with contextlib.suppress(FileNotFoundError):
            _old(path, number - 1).replace(_old(path, number))
    shutil.copyfile(path, _old(path, 1))
    with path.open("r+b") as file:
        file.truncate(0)
    return True


def last_lines(path: Path, count: int = 3) -> str:
    """Return the last lines of a log as one text, for an error message."""
    if not path.exists():
        return "it wrote nothing"
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4096))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return " / ".join(line.strip() for line in lines[-count:]) or "it wrote nothing"


def _old(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _watch(path: Path) -> None:
    while True:
        time.sleep(CHECK_EVERY_S)
        with contextlib.suppress(OSError):  # a full disk must not end the thread: there may be room later
            rotate(path)
