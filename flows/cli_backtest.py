"""`cpb backtest`: what is a method worth, over several periods, and how sure are we?"""

from pathlib import Path
from typing import Annotated

import typer

from flows import options as o
from flows.cli_train import config_of
from flows.console import emit, quiet_libraries, say


def backtest(
    coins: o.Coins = "all",
    timeframes: o.Timeframes = "1h",
    architectures: o.Architectures = None,
    preset: o.Preset = "default",
    folds: Annotated[int, typer.Option("--folds", min=1, max=24, help="test periods, the newest last")] = 4,
    refit: Annotated[bool, typer.Option("--refit/--no-refit", help="train anew for every fold")] = True,
    expanding: Annotated[
        bool,
        typer.Option("--expanding/--sliding", help="train on all the past, or on a span of fixed length"),
    ] = True,
    baselines: Annotated[
        str, typer.Option("--baselines", help="random-walk, robust-har, garch-t, lightgbm")
    ] = "random-walk,robust-har",
    check_lookahead: Annotated[
        bool, typer.Option("--check-lookahead", help="compute everything again without the future")
    ] = False,
    report: Annotated[Path | None, typer.Option("--report", help="folder for report.html")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="folder for tables, verdicts, forecast rows and the report")
    ] = None,
    source: o.Source = None,
    since: o.Since = None,
    as_of: o.AsOf = None,
    market: o.Market = "spot",
    device: o.Device = "auto",
    seed: o.Seed = 1,
    seeds: o.Seeds = None,
    json: o.Json = False,
) -> None:
    """Judge architectures over rolling-origin folds against the random walk; trains nothing that is kept.

    Example: cpb backtest --source sim --coins BTC,ETH --preset smoke --folds 2 --report report
    """
    quiet_libraries()
    from flows.backtest import Options, in_prefect, parse_baselines, run
    from flows.prefect_server import server_in_use
    from flows.runner import Direct

    config = config_of(
        coins, timeframes, architectures, preset, source, since, as_of, market,
        device=device, seed=seed, seeds=seeds,
    )  # fmt: skip
    options = Options(
        folds=folds,
        refit=refit,
        kind="expanding" if expanding else "sliding",
        baselines=parse_baselines(baselines),
        check_lookahead=check_lookahead,
        out=out,
        report=report,
    )
    result = in_prefect(config, options) if server_in_use() else run(config, options, Direct(), say)
    for folder in (out, report):
        if folder:
            say(f"written to {folder}")
    if json:
        emit(result)
    raise typer.Exit(result["exit"])
