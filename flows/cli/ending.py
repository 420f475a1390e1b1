"""How a command ends: with an answer, in lines for people or as one JSON object, or with an error in one sentence."""

import inspect
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import wraps
from typing import Annotated, Any, NoReturn

import typer

from flows.cli.options import OVERRIDES
from flows.console import echo, emit
from flows.typed import as_typed
from schemas.errors import EXIT_FATAL, EXIT_USAGE, CpbError
from tasks.storage.files import is_disk_full
from tasks.storage.urls import without_credentials

Json = Annotated[bool, typer.Option("--json", help="one JSON object on stdout, as the last line")]

_MORE_MEMORY = (
    "choose fewer coins or timeframes, lower batch_size, or add memory, then run the same command again"
)

_NO_MEMORY = re.compile(r"out of memory|(can't|cannot) allocate memory|unable to allocate", re.IGNORECASE)
"""Messages of libraries with their own out-of-memory errors: CUDA, torch on the host, numpy."""


@dataclass(frozen=True)
class Answer:
    """What a command has found or done.

    Args:
        data: the object that `--json` prints; its `exit` is the exit code, 0 without one.
        show: prints the same for people; not called with `--json`.
        notes: sentences for stderr, also with `--json`.
    """

    data: dict[str, Any]
    show: Callable[[], None] = lambda: None
    notes: Sequence[str] = ()


def answered(command: Callable[..., Answer]) -> Callable[..., None]:
    """Give a command the option `--json`, and end it with its answer and the exit code in it."""
    option = inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json)
    signature = inspect.signature(command)

    @wraps(command)
    def run(json: bool, **given: Any) -> None:
        answer = command(**given)
        if not json:
            answer.show()
        for sentence in answer.notes:
            echo(sentence)
        if json:  # after all else, so that it is the last line, whatever a library has printed
            emit(answer.data)
        raise typer.Exit(answer.data.get("exit", 0))

    # Typer reads both: the order of the options from the signature, their kinds from the annotations.
    parameters = [*signature.parameters.values(), option]
    run.__dict__["__signature__"] = signature.replace(parameters=parameters, return_annotation=None)
    run.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
    return run


def end_expected(error: Exception) -> None:
    """Print an expected error as one sentence and exit with its code; return for any other, which is a bug."""
    if isinstance(error, typer.TyperException):
        _end_usage(error)
    if isinstance(error, CpbError):
        _end(str(error), error.exit_code, error.code, error.field)
    if isinstance(error, OSError):  # a folder without write permission or a full disk, not a bug
        where = f"{error.filename}: " if error.filename else ""
        text = f"{where}{error.strerror or error}; check that its folder exists, its owner and the free space there"
        _end(text, EXIT_FATAL, "system", str(error.filename or ""))
    # Memory and disk space run out in libraries, too: numpy, torch, polars and SQLite raise different errors.
    if isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)):
        _end(f"out of memory; {_MORE_MEMORY}", EXIT_FATAL, "out-of-memory")
    if is_disk_full(error):
        _end(
            "no space left on the disk of CPB_HOME, of the MLflow store or of the temporary folder; free some, then "
            "run the same command again",
            EXIT_FATAL,
            "disk-full",
        )


def _end_usage(error: typer.TyperException) -> NoReturn:
    """Exit after an error of the command-line parser: an unknown option, a missing argument."""
    context = getattr(error, "ctx", None)
    text = error.format_message().replace("Value error, ", "")  # a prefix of pydantic's
    if context is not None and text.startswith("Missing command"):  # a command group without a command
        with redirect_stdout(sys.stderr):
            context.get_help()  # prints the help
        sys.exit(EXIT_USAGE)
    help_for = context.command_path if context is not None else "cpb"
    known = {param.name for param in getattr(getattr(context, "command", None), "params", ())}
    if hasattr(error, "possibilities") and OVERRIDES in known:  # an unknown option
        text += (
            "; options of a model are --NAME VALUE or --set NAME=VALUE, `cpb presets default` lists the names"
        )
    field = getattr(getattr(error, "param", None), "name", None) or getattr(error, "option_name", "")
    _end(
        f"{text[:1].lower()}{text[1:].rstrip('.')}; see `{help_for} --help`",
        error.exit_code,
        "usage",
        field or "",
    )


def _end(text: str, exit_code: int, code: str, field: str = "") -> NoReturn:
    """Print the error as a single sentence; with `--json` also as the JSON object that programs expect."""
    text = as_typed(without_credentials(text))
    echo(f"cpb: {text}")
    if "--json" in sys.argv:
        emit({"error": text, "code": code, "field": without_credentials(field), "exit": exit_code})
    sys.exit(exit_code)
