"""What people and programs read from a command: progress on stderr, results on stdout."""

import json
import logging
import os
import sys
import warnings
from typing import Any, NoReturn


def say(text: str) -> None:
    """Print a line for people on stderr (stdout is for results), and into the log of the Prefect run, if any."""
    print(f"{text}\n", end="", file=sys.stderr, flush=True)  # one write: other threads print too
    if "prefect.context" in sys.modules:  # not imported for this: most commands do without
        from flows.prefect_page import log_to_run

        log_to_run(text)


def emit(value: Any) -> None:
    """Print one JSON object as the last line of stdout; dates and paths become texts, NaN becomes null."""
    print(json.dumps(_plain(value), default=str), flush=True)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


class ConsoleHandler(logging.Handler):
    """Prints what is logged on the stderr of the moment, which a bar replaces, as `cpb: …` like errors."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record; the credentials of URLs in it are removed."""
        from tasks.storage.urls import without_credentials

        print(without_credentials(f"cpb: {self.format(record)}\n"), end="", file=sys.stderr, flush=True)


def log_to_console() -> None:
    """Print all warnings in one form. Before Prefect is imported, which leaves a handler with a formatter in place."""
    root = logging.getLogger()
    if not any(isinstance(handler, ConsoleHandler) for handler in root.handlers):
        handler = ConsoleHandler(logging.WARNING)
        handler.setFormatter(logging.Formatter("%(message)s"))
        root.addHandler(handler)


def quiet_libraries() -> None:
    """Keep notices of libraries (migrations, deprecations) off the terminal."""
    for name in ("alembic", "mlflow", "prefect", "httpx", "urllib3"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", category=FutureWarning, module="mlflow")


def exit_now(code: int) -> NoReturn:
    """End the process at once with this exit code, after Ctrl-C.

    For an interrupt that has passed every `finally`. Python's own exit would wait for threads that still download
    or compute; nothing of theirs is lost, because files appear whole or not at all. Trainers end with the process
    that started them.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
