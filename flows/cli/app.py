"""The commands and their errors. Only light modules are imported here; each command imports its own when it runs."""

import atexit
import gc
import os
import re
import sys
from contextlib import redirect_stdout
from importlib import import_module
from typing import Annotated, NoReturn

import typer

from flows.cli.options import OVERRIDES, Command
from flows.console import echo, emit, log_to_console, show
from schemas import __version__
from schemas.errors import EXIT_COMPLETE, EXIT_FATAL, EXIT_INTERRUPTED, EXIT_USAGE, CpbError
from tasks.storage.urls import without_credentials
from tasks.storage.wheel import second_library
from tasks.tracking.store_errors import store_errors

COMMANDS = {
    "Train and judge": {
        "demo": ("flows.cli.train", "demo"),
        "train": ("flows.cli.train", "train"),
        "train-all": ("flows.cli.train", "train_all"),
        "backtest": ("flows.cli.train", "backtest"),
        "tune": ("flows.cli.train", "tune"),
        "presets": ("flows.cli.presets", "presets"),
    },
    "Forecast and see": {
        "forecast": ("flows.cli.forecast", "forecast"),
        "ledger": ("flows.cli.models", "ledger"),
        "leaderboard": ("flows.cli.models", "leaderboard"),
        "serve": ("flows.cli.serve", "serve"),
        "ui": ("flows.cli.serve", "ui"),
    },
    "Champions and publishing": {
        "champions": ("flows.cli.models", "champions"),
        "promote": ("flows.cli.models", "promote"),
        "publish": ("flows.cli.models", "publish"),
        "restore": ("flows.cli.models", "restore"),
    },
    "Data and machine": {
        "ingest": ("flows.cli.data", "ingest"),
        "verify": ("flows.cli.data", "verify"),
        "prune": ("flows.cli.data", "prune"),
        "store": ("flows.cli.data", "store"),
        "doctor": ("flows.cli.doctor", "doctor"),
    },
    "Run every night": {},
}
"""Panel of the help -> command -> (module, function), in the order of the help."""


HELP = "Train, judge and publish forecasting models for a whole universe of coins."

_MORE_MEMORY = (
    "choose fewer coins or timeframes, lower batch_size, or add memory, then run the same command again"
)

_NO_MEMORY = re.compile(r"out of memory|(can't|cannot) allocate memory|unable to allocate", re.IGNORECASE)
"""Messages of libraries with their own out-of-memory errors: CUDA, torch on the host, numpy."""


def _print_version(wanted: bool) -> None:
    if wanted:
        show(f"cpb {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and exit"),
    ] = False,
) -> None:
    """Options of `cpb` itself."""


def _app() -> typer.Typer:
    app = typer.Typer(
        name="cpb",
        help=HELP,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(help=HELP)(_options)
    for panel, commands in COMMANDS.items():
        for name, (module, function) in commands.items():
            command = app.command(name, cls=Command, rich_help_panel=panel)
            command(getattr(import_module(module), function))
    app.add_typer(import_module("flows.cli.serve").app, name="deploy", rich_help_panel="Run every night")
    return app


def run() -> None:
    """Run `cpb`; every expected error is printed on stderr as a single sentence and sets the exit code.

    Raises:
        KeyboardInterrupt: Ctrl-C, which `flows.cli.main` handles.
    """
    # A local tool: no telemetry unless the user enables it.
    os.environ.setdefault("DO_NOT_TRACK", "1")
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    # Freeing every object of MLflow, torch and polars at exit takes a second; the operating system frees them
    # immediately. Registered first, so that it is called after all other exit handlers.
    atexit.register(gc.freeze)
    # Imports create half a million objects; with Python's threshold of 700, garbage collection is a fifth of the time.
    gc.set_threshold(5000)
    log_to_console()
    if found := second_library():
        echo(f"warning: {'; '.join(found)}")
    try:
        # Not standalone, so that errors of the command line are raised here and all are printed in the same place.
        with store_errors():
            code = _app()(prog_name="cpb", standalone_mode=False)
    except typer.TyperException as error:
        _end_usage(error)
    except CpbError as error:
        _end(str(error), error.exit_code, error.code, error.field)
    except OSError as error:  # a folder without write permission or a full disk, not a bug
        where = f"{error.filename}: " if error.filename else ""
        text = f"{where}{error.strerror or error}; check that its folder exists, its owner and the free space there"
        _end(text, EXIT_FATAL, "system", str(error.filename or ""))
    except Exception as error:
        _end_exhausted(error)
        raise
    if code == EXIT_INTERRUPTED:  # Typer converts Ctrl-C in a command to this code
        raise KeyboardInterrupt
    sys.exit(code or EXIT_COMPLETE)


def _end_exhausted(error: Exception) -> None:
    """Exit with a message if memory or disk space ran out; numpy, torch, polars and SQLite raise different errors."""
    from tasks.storage.files import is_disk_full

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
    text = error.format_message()
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
    text = without_credentials(text)
    echo(f"cpb: {text}")
    if "--json" in sys.argv:
        emit({"error": text, "code": code, "field": without_credentials(field), "exit": exit_code})
    sys.exit(exit_code)
