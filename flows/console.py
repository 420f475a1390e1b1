"""What people and programs read from a command: progress on stderr, results on stdout."""

import json
import logging
import sys
import warnings
from typing import Any, NoReturn


def say(text: str) -> None:
    """Print a line for people, on stderr: stdout belongs to results."""
    print(text, file=sys.stderr, flush=True)


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


def fail_with(text: str) -> NoReturn:
    """End the command as a usage error with one sentence."""
    from schemas.errors import UsageError

    raise UsageError(text)


def quiet_libraries() -> None:
    """Keep the libraries' chatter off the terminal: their migrations and notices are not our results."""
    for name in ("alembic", "mlflow", "prefect", "httpx", "urllib3"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", category=FutureWarning, module="mlflow")
