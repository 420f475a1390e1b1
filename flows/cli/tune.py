"""`cpb tune`: search the options of an architecture, many trials in one fleet."""

import typer

from flows.cli.options import Json, Shown, takes
from flows.console import emit, quiet_libraries, say
from schemas.tuning import TuneSpec


@takes(
    TuneSpec,
    without=("repo", "tail", "warm_start", "prune", "wandb", "seeds", "train_timeout_s"),
    shown={"architectures": Shown(names=("--arch",))},
)
def tune(
    spec: TuneSpec,
    json: Json = False,
) -> None:
    """Search options with Optuna: fleets train a batch of trials at once, rolling folds before the test span choose.

    The winner is scored on the test span once and written as a preset. The same command goes on with its study.

    Example: cpb tune --arch gru --coins BTC,ETH --timeframes 1h --trials 256 --budget 10m
    """
    quiet_libraries()
    from flows.progress import shown_progress

    with shown_progress("tune"):
        from flows.runner import Runner
        from flows.tune import run_tune

        result = run_tune(spec, Runner(), say)
    if json:
        emit(result)
    else:
        say(f"preset: {result['preset']}\nreport: {result['report']}")
    raise typer.Exit(result["exit"])
