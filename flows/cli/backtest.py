"""`cpb backtest`: what is a method worth, over several periods, and how sure are we?"""

import typer

from flows.cli.options import Json, Shown, takes
from flows.console import emit, quiet_libraries, say
from schemas.run import BacktestSpec


@takes(
    BacktestSpec,
    without=("repo", "tail", "warm_start", "force", "prune"),
    shown={"expanding": Shown(names=("--expanding/--sliding",))},
)
def backtest(spec: BacktestSpec, json: Json = False) -> None:
    """Judge architectures over rolling-origin folds against the random walk; the models are not kept.

    Example: cpb backtest --source sim --coins BTC,ETH --preset smoke --folds 2 --report report
    """
    quiet_libraries()
    from flows.backtest import in_prefect, run_backtest
    from flows.prefect_server import server_in_use
    from flows.progress import training_bars
    from flows.runner import Runner

    if server_in_use():
        result = in_prefect(spec)
    else:
        with training_bars() as bars:
            result = run_backtest(spec, Runner(), say, on_progress=bars)
    for folder in dict.fromkeys(filter(None, (spec.out, spec.report))):
        say(f"written to {folder}")
    if json:
        emit(result)
    raise typer.Exit(result["exit"])
