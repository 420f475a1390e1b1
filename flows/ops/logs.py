"""Logs of servers: bounded, whatever strangers send: one line a minute of each kind, and files that are rotated."""

import logging
import os
import re
import threading
import time
from pathlib import Path

from schemas.retention import LOG_BYTES

INTERVAL_S = 60.0
"""Seconds in which a message is logged once."""

_CHECK_S = 1.0
_MAX_KINDS = 200
_NUMBER = re.compile(r"0x[0-9a-f]+|[0-9]+", re.IGNORECASE)


class OncePerMinute(logging.Filter):
    """Lets a record of each kind pass once a minute: of a logger, message (`_text_of_kind`) and type of exception.

    The next record of the kind says how many were left out.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._kinds: dict[
            tuple[str, str, str], tuple[float, int]
        ] = {}  # time of the last line, records since

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is logged; its message then has the number of those that were not."""
        error = record.exc_info[0] if record.exc_info else None
        kind = record.name, _text_of_kind(record), getattr(error, "__name__", "")
        now = time.monotonic()
        with self._lock:
            last, left_out = self._kinds.pop(kind, (-INTERVAL_S, 0))
            passes = now - last >= INTERVAL_S
            self._kinds[kind] = (now, 0) if passes else (last, left_out + 1)
            while len(self._kinds) > _MAX_KINDS:
                del self._kinds[next(iter(self._kinds))]
        if passes and left_out:
            record.msg, record.args = f"{record.getMessage()} ({left_out} more like it before)", ()
        return passes


def _text_of_kind(record: logging.LogRecord) -> str:
    """Return a record's message without its values, which strangers make up, and numbers, such as a task's.

    A message that is one value, as in `warning("%s", sentence)`, is a kind of its own: else one warning of a damaged
    file would hide those of all others.
    """
    template = str(record.msg)
    if template == "%s":
        return record.getMessage()[:200]
    return _NUMBER.sub("#", template)[:200]


def log_once_per_minute() -> None:
    """Let every handler of this process log each kind of record once a minute: anybody can send what a server warns of.

    That is uvicorn's, asyncio's below it, and the application's own.
    """
    names = logging.root.manager.loggerDict
    for logger in (logging.root, *(logging.getLogger(name) for name in list(names))):
        for handler in logger.handlers:
            if not any(isinstance(known, OncePerMinute) for known in handler.filters):
                handler.addFilter(OncePerMinute())


def keep_bounded(path: Path, max_bytes: int = LOG_BYTES) -> None:
    """Rotate the log file to which this process writes, in a thread, as long as the process runs.

    By copying and truncating (as logrotate's `copytruncate`): a process and its children go on writing to the same open
    file, at its new end, because it was opened for appending. Does nothing if stderr is not this file.
    """
    try:
        if not os.path.samestat(os.fstat(2), path.stat()):
            return
    except OSError:  # it is not there
        return

    def watch() -> None:
        while True:
            time.sleep(_CHECK_S)
            rotate(path, max_bytes)

    threading.Thread(target=watch, daemon=True, name="log").start()


def rotate(path: Path, max_bytes: int = LOG_BYTES) -> None:
    """Move the content of a log file that is too large to `NAME.log.1`; of that at most `max_bytes`, the newest."""
    try:
        size = path.stat().st_size
        if size <= max_bytes:
            return
        with path.open("rb") as log, path.with_name(f"{path.name}.1").open("wb") as before:
            log.seek(max(0, size - max_bytes))
            before.write(log.read()[-max_bytes:])  # with what was written meanwhile
        os.truncate(path, 0)
    except OSError:  # the disk is full, or the file was taken away: tried again
        return
