"""The commands and their errors. Only light modules are imported here; each command imports its own when it runs."""

import atexit
import gc
import os
import sys
from importlib import import_module
from typing import Annotated

import typer

from flows.cli.ending import end_expected
from flows.cli.options import Command
from flows.console import echo, log_to_console, show
from schemas import __version__
from schemas.errors import EXIT_COMPLETE, EXIT_INTERRUPTED
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
    except Exception as error:
        end_expected(error)
        raise
    if code == EXIT_INTERRUPTED:  # Typer converts Ctrl-C in a command to this code
        raise KeyboardInterrupt
    sys.exit(code or EXIT_COMPLETE)
