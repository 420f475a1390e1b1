"""`cpb backtest` and `cpb tune`: evaluate methods over several periods, and search their options."""

from typing import Any

import typer

from flows.cli.options import Json, Shown, cli_options
from flows.console import emit, quiet_libraries, say, shown_progress
from flows.prefect_server import server_in_use
from flows.tables import Column, finding, print_table
from schemas.errors import p_value
from schemas.run import BacktestSpec
from schemas.tuning import TuneSpec

_COLUMNS = (
    Column("", text=True, stays=True), Column("model", text=True, stays=True), Column("CRPS ratio", stays=True),
    Column("95 % interval", stays=True), Column("verdict", text=True, stays=True), Column("p", stays=True),
    Column("coins"), Column("coins < 1"), Column("MAE ratio"), Column("direction"), Column("80 % band"),
    Column("90 % band"), Column("tails"), Column("forecasts"),
)  # fmt: skip


@cli_options(
    BacktestSpec,
    without=("repo", "tail", "force", "prune", "wandb", "serving"),
)
def backtest(spec: BacktestSpec, json: Json = False) -> None:
    """Judge architectures over rolling-origin folds against the random walk; the models are not kept.

    Example: cpb backtest --source sim --coins BTC,ETH --preset smoke --folds 2 --out report
    """
    quiet_libraries()
    with shown_progress("backtest"):
        from flows import backtest as job
        from flows.runner import Runner, in_prefect

        result = in_prefect(job.backtest, spec) if server_in_use() else job.run_backtest(spec, Runner(), say)
    if json:
        emit(result)
    else:
        _print_board(result["pooled"])
    if spec.out:
        say(f"written to {spec.out}")
    raise typer.Exit(result["exit"])


def _print_board(pooled: dict[str, dict[str, dict[str, Any]]]) -> None:
    """Print a row per model and timeframe, the lowest ratio of a timeframe first."""
    found = [(timeframe, name, row) for name, rows in pooled.items() for timeframe, row in rows.items()]
    if not found:
        say("no model was judged")
        return
    found.sort(key=lambda row: (row[0], row[2]["crps_ratio"]))
    print_table(
        "Against the random walk with EWMA volatility, over all folds: ratios below 1 are better",
        _COLUMNS,
        [_cells(timeframe, name, row) for timeframe, name, row in found],
    )


def _cells(timeframe: str, name: str, row: dict[str, Any]) -> list[str]:
    low, high = row["interval"]
    return [
        timeframe, name, f"{row['crps_ratio']:.4f}", f"[{low:.4f}, {high:.4f}]", finding(row["verdict"]),
        p_value(row["p"]), f"{row['coins']:,}", f"{row['coins_below_one']:.0%}", f"{row['mae_ratio']:.4f}",
        f"{row['directional_accuracy']:.3f}", f"{row['coverage_80']:.3f}", f"{row['coverage_90']:.3f}",
        f"{row['tail_pinball_ratio']:.4f}", f"{row['n']:,}",
    ]  # fmt: skip


@cli_options(
    TuneSpec,
    without=("repo", "tail", "prune", "wandb", "serving", "seeds", "train_timeout_s"),
    shown={"architectures": Shown(names=("--arch",))},
)  # fmt: skip
def tune(
    spec: TuneSpec,
    json: Json = False,
) -> None:
    """Search options with Optuna: a fleet trains a batch of trials, rolling folds before the test span choose one.

    The winner is scored on the test span once and written as a preset. The same command continues its study.

    Example: cpb tune --arch gru --coins BTC,ETH --timeframes 1h --trials 256 --budget 10m
    """
    quiet_libraries()
    with shown_progress("tune"):
        from flows.runner import Runner
        from flows.tune import run_tune

        result = run_tune(spec, Runner(), say)
    if json:
        emit(result)
    else:
        say(f"preset: {result['preset']}\nreport: {result['report']}")
    raise typer.Exit(result["exit"])
