"""The command line. Only names are imported here; each command imports what it needs when it runs."""

import os
import sys
from importlib import import_module

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


def _app() -> typer.Typer:
    app = typer.Typer(
        name="cpb",
        help="Train, judge and publish forecasting models for a whole universe of coins.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
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
    from schemas.errors import CpbError

    try:
        _app()()
    except SystemExit as end:
        if end.code == 130:  # Typer has turned Ctrl-C into this
            print("cpb: interrupted; run the same command again to go on", file=sys.stderr)
        raise
    except CpbError as error:
        print(f"cpb: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
