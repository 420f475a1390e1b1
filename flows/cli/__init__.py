"""The command line. Only names are imported here; each command imports what it needs when it runs."""

import os
import sys
from importlib import import_module
from typing import Annotated, NoReturn

import typer

COMMANDS = {
    "demo": ("flows.cli_train", "demo"),
    "ingest": ("flows.cli_ingest", "ingest"),
    "train": ("flows.cli_train", "train"),
    "train-all": ("flows.cli_train", "train_all"),
    "backtest": ("flows.cli_backtest", "backtest"),
    "leaderboard": ("flows.cli_models", "leaderboard"),
    "forecast": ("flows.cli_models", "forecast"),
    "publish": ("flows.cli_models", "publish"),
    "doctor": ("flows.cli_doctor", "doctor"),
    "serve": ("flows.cli_serve", "serve"),
    "ui": ("flows.cli_serve", "ui"),
}
"""Command -> (module, function), in the order in which help shows them."""


HELP = "Train, judge and publish forecasting models for a whole universe of coins."


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"cpb {version('cpb')}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and end"),
    ] = False,
) -> None:
    """Options of `cpb` itself."""


def _app() -> typer.Typer:
    app = typer.Typer(
        name="cpb",
        help=HELP,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback(help=HELP)(_options)
    for name, (module, function) in COMMANDS.items():
        app.command(name)(getattr(import_module(module), function))
    app.add_typer(import_module("flows.cli_deploy").app, name="deploy")
    return app


def main() -> None:
    """Run `cpb`; every expected error ends in one sentence on stderr and its exit code."""
    # A local tool: nothing is reported to anyone unless the user asks for it.
    os.environ.setdefault("DO_NOT_TRACK", "1")
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from schemas.errors import FATAL, USAGE, CpbError

    try:
        _app()()
    except SystemExit as end:
        if end.code == 130:  # Typer has turned Ctrl-C into this
            print("cpb: interrupted; run the same command again to go on", file=sys.stderr)
        if (
            end.code == USAGE and "--json" in sys.argv
        ):  # the parser's own; it has said on stderr what is wrong
            _as_json("the command line is wrong: see stderr, or --help", USAGE)
        raise
    except CpbError as error:
        _end(str(error), error.exit_code)
    except (
        OSError
    ) as error:  # a folder one may not write in, a full disk: the user's to mend, not a fault here
        where = f"{error.filename}: " if error.filename else ""
        _end(f"{where}{error.strerror or error}; check its owner and the free space there", FATAL)


def _end(text: str, code: int) -> NoReturn:
    """Say in one sentence why the command ends; with `--json` also as the object that programs wait for."""
    print(f"cpb: {text}", file=sys.stderr)
    if "--json" in sys.argv:
        _as_json(text, code)
    sys.exit(code)


def _as_json(text: str, code: int) -> None:
    from flows.console import emit

    emit({"error": text, "exit": code})


if __name__ == "__main__":
    main()
