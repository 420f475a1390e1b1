"""Output of a command: progress on stderr, results on stdout."""

import json
import logging
import os
import sys
import warnings
from typing import Any, NoReturn


def say(text: str) -> None:
    """Print a line on stderr (stdout is for results), and log it to the Prefect run, if any."""
    _write(f"{text}\n")
    if "prefect.context" in sys.modules:  # not imported here: most commands do not need it
        from flows.prefect_page import log_to_run

        log_to_run(text)


def _write(text: str) -> None:
    try:
        print(text, end="", file=sys.stderr, flush=True)  # a single write: other threads print too
    except BrokenPipeError:
        _drop_output()


def _drop_output(_console: Any = None) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(null, descriptor)


def continue_without_reader() -> None:
    """Let this process continue if the reader of its output ends, as does a flow run whose worker is killed.

    A `rich` console, through which Prefect logs, would end the process (`Console.on_broken_pipe`).
    """
    from rich.console import Console

    Console.on_broken_pipe = _drop_output  # type: ignore[assignment, method-assign]


def emit(value: Any) -> None:
    """Print a JSON object as the last line of stdout; dates and paths become strings, NaN becomes null."""
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
    """Prints log records as `cpb: …`, like errors, on the current `sys.stderr`, which a progress bar may replace."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record; credentials in URLs are removed."""
        from tasks.storage.urls import without_credentials

        _write(without_credentials(f"cpb: {self.format(record)}\n"))


def log_to_console() -> None:
    """Print all warnings in the same format. Call this before importing Prefect, which keeps existing handlers."""
    root = logging.getLogger()
    if not any(isinstance(handler, ConsoleHandler) for handler in root.handlers):
        handler = ConsoleHandler(logging.WARNING)
        handler.setFormatter(logging.Formatter("%(message)s"))
        root.addHandler(handler)


def quiet_libraries() -> None:
    """Hide notices of libraries (migrations, deprecations)."""
    for name in ("alembic", "mlflow", "prefect", "httpx", "urllib3"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", category=FutureWarning, module="mlflow")


def exit_now(code: int) -> NoReturn:
    """End the process immediately with this exit code, after Ctrl-C.

    Called when all `finally` blocks have run. Python's own exit would wait for threads that still download or compute;
    ending them loses nothing because files are written atomically. Trainers end with the process that started them.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
