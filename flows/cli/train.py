"""`cpb demo`, `train` and `train-all`; `backtest` and `tune`: methods over several periods, and their options."""

from typing import Annotated, Any

import typer

from flows.cli import end_interrupted, tell_at_sigterm
from flows.cli.closing import print_forecasts, print_next
from flows.cli.ending import Answer, answered
from flows.cli.models import RATIO, SCORES, print_board
from flows.cli.options import cli_options, command_line
from flows.cli.presets import listed, print_presets
from flows.console import Column, echo, finding, interval, print_table, quiet_libraries
from flows.progress import shown_progress
from flows.typed import typed_command
from schemas.backtesting import BacktestSpec
from schemas.chances import SCORED
from schemas.errors import p_value
from schemas.identity import stored_option
from schemas.run import RunSpec, TrainSpec
from schemas.tuning import TuneSpec
from tasks.storage.urls import public_url

_COLUMNS = (
    Column("", "timeframe", stays=True),
    Column("model", "model", stays=True),
    *RATIO,
    Column("verdict", "finding", stays=True),
    Column("p", "p", ">", stays=True),
    Column("coins", "coins", ","),
    Column("coins < 1", "coins_below_one", ".0%"),
    *SCORES,
    Column("90 % band", "coverage_90", ".3f"),
    Column("tails", "tail_pinball_ratio", ".4f"),
    *(Column(name, f"{name}_brier_ratio", ".4f") for name in SCORED),
    Column("forecasts", "n", ","),
)

_RUNS = ("cpb ui", "every run with its curves, in MLflow")
_REAL = ("cpb train-all --coins BTC,ETH --timeframes 1h", "the same on real candles, fetched from Binance")
"""Commands that come next, each with what it is for."""

_OF_TRAIN_ALL = ("repo", "space", "private", "tail", "force", "prune", "serving")
"""Options that no other command of this file takes."""


@answered
def demo() -> Answer:
    """Train, judge and package 2 coins x {15m, 1h} x 5 architectures on simulated klines; needs no network.

    Example: cpb demo
    """
    with shown_progress("demo", "reading the options"):
        spec = RunSpec(coins="BTC,ETH", timeframes="15m,1h", preset="smoke", source="sim")
    # Directly: a first look must not depend on a server that happens to be configured.
    result = _train_all(spec, "demo", direct=True)

    def shown() -> None:
        from tasks.tracking.home_store import tracking_uri

        _show_results(result, spec)
        echo(f"\nMLflow store: {public_url(tracking_uri())}")
        print_next(result, spec, [_RUNS, _REAL])

    return Answer(result, shown)


def _list_presets(wanted: bool) -> None:
    if wanted:
        print_presets(listed())
        raise typer.Exit


@answered
@cli_options(RunSpec)
def train_all(
    spec: RunSpec,
    presets: Annotated[  # noqa: ARG001 - its callback reads it
        bool,
        typer.Option("--presets", callback=_list_presets, is_eager=True, help="list the presets and exit"),
    ] = False,
) -> Answer:
    """Ingest, train, judge, promote, package and forecast the whole universe.

    Example: cpb train-all --source sim --coins BTC,ETH --preset smoke
    """
    result = _train_all(spec, "train-all")

    def shown() -> None:
        _show_results(result, spec)
        why = (f"cpb champions --why{stored_option(spec.market)}", "why each of them serves")
        print_next(result, spec, [why, _RUNS] if result["champions"] else [_RUNS])

    return Answer(result, shown)


@answered
@cli_options(TrainSpec, without=_OF_TRAIN_ALL)
def train(
    spec: TrainSpec,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            metavar="latest|PATH",
            help="latest (or models/checkpoint-latest.pt): from the same command's last checkpoint; PATH: from a "
            "checkpoint or fleet's folder",
        ),
    ] = None,
) -> Answer:
    """Train and judge a single model.

    Example: cpb train BTCUSDT 1h --arch lstm --source sim --epochs 5
    """
    quiet_libraries()
    try:
        with shown_progress("train"):
            from flows.train_one import result_lines, train_one

            result = train_one(spec, resume=resume, report=echo)
    # Other words than elsewhere: without --resume this command begins anew.
    except KeyboardInterrupt:
        end_interrupted("add --resume latest to continue from the last checkpoint instead of starting over")
    again = typed_command(command_line("train-all", spec, RunSpec))
    return Answer(result, lambda: echo("\n".join(result_lines(result, again))))


def _train_all(spec: RunSpec, command: str, *, direct: bool = False) -> dict[str, Any]:
    tell_at_sigterm()
    quiet_libraries()
    with shown_progress(command):
        from flows.prefect import in_prefect, server_in_use
        from flows.train_all import run_train_all, train_all

        in_server = server_in_use() and not direct
        return in_prefect(train_all, spec) if in_server else run_train_all(spec, echo).as_json()


def _show_results(result: dict[str, Any], spec: RunSpec) -> None:
    from tasks.judging.accuracy import has_board
    from tasks.tracking.leaderboard import read_board

    # The run's own rows, finished or not: of another night's models the figures are others.
    if has_board(result["fleets"]):
        print_board(read_board(result["run_id"]))
    print_forecasts(result, spec)


@answered
@cli_options(BacktestSpec, without=(*_OF_TRAIN_ALL, "wandb"))
def backtest(spec: BacktestSpec) -> Answer:
    """Judge architectures over rolling-origin folds against the random walk; the models are not kept.

    Example: cpb backtest --source sim --coins BTC,ETH --preset smoke --folds 2 --out report
    """
    quiet_libraries()
    with shown_progress("backtest"):
        from flows.backtest import backtest, run_backtest
        from flows.prefect import in_prefect, server_in_use

        result = in_prefect(backtest, spec) if server_in_use() else run_backtest(spec, echo)
    notes = [f"written to {spec.out}"] if spec.out else []
    return Answer(result, lambda: _print_board(result["pooled"]), notes)


def _print_board(pooled: dict[str, dict[str, dict[str, Any]]]) -> None:
    """Print a row per model and timeframe, the lowest ratio of a timeframe first."""
    board = [
        row
        | {"timeframe": timeframe, "model": model, "interval": interval(*row["interval"])}
        | {"finding": finding(row["verdict"]), "p": p_value(row["p"])}
        for model, rows in pooled.items()
        for timeframe, row in rows.items()
    ]
    # By timeframe first: ratios of different timeframes are not comparable.
    board.sort(key=lambda row: (row["timeframe"], row["crps_ratio"]))
    title = "Against the random walk with EWMA volatility, over all folds: ratios below 1 are better"
    print_table(title, _COLUMNS, board)


@answered
@cli_options(TuneSpec, without=(*_OF_TRAIN_ALL, "wandb", "seeds", "train_timeout_s"))
def tune(spec: TuneSpec) -> Answer:
    """Search options with Optuna: a fleet trains a batch of trials, rolling folds before the test span choose one.

    The winner is scored on the test span once and written as a preset. The same command continues its study.

    Example: cpb tune --arch gru --coins BTC,ETH --timeframes 1h --trials 256 --budget 10m
    """
    quiet_libraries()
    with shown_progress("tune"):
        from flows.tune import run_tune

        result = run_tune(spec, echo)
    return Answer(result, lambda: echo(f"preset: {result['preset']}\nreport: {result['report']}"))
