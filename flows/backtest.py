"""`cpb backtest`: klines -> features -> folds -> fleets and baselines -> a judgement with its report.

Trains through the same steps as `train-all`, so slots, limits, checkpoints and resuming after a kill are the same.
Nothing is written to MLflow or promoted: a backtest evaluates a method, it does not choose a model to ship.
"""

from typing import Any

from prefect import flow
from prefect.states import Completed, State

from flows.console import say as say_to_people
from flows.deploy.liveness import claim_run
from flows.prefect_page import show_failures, show_table
from flows.runner import Runner, named_run, plain_failures, series_records, takes, with_pairs
from flows.summary import Say, Summary
from flows.training import train_fleets
from schemas.errors import CpbError
from schemas.run import BacktestSpec
from tasks.backtesting.backtest import BacktestPlan, check_backtest, finish_backtest, plan_backtest
from tasks.training.files import FleetsInUse
from tasks.training.runner import Engine, check_engine, opened_engine


def run_backtest(spec: BacktestSpec, steps: Runner, say: Say = say_to_people) -> dict[str, Any]:
    """Run the backtest and return what `--json` prints: `pooled`, `members`, `failures`, `exit` and more.

    Raises:
        CpbError: no series can be used, or an output folder, the device or a baseline's package is not available.
    """
    check_engine(spec)
    check_backtest(spec)
    spec = with_pairs(spec, say)
    with opened_engine(spec) as engine:
        summary, root = Summary(), spec.scope.root
        plan = _plan(spec, steps, engine, say, summary)
        in_use = FleetsInUse(root)
        try:
            results = train_fleets(spec, steps, engine, plan.fleets)
            return finish_backtest(spec, plan, results, summary.failures, say)
        finally:
            in_use.release()


def _plan(spec: BacktestSpec, steps: Runner, engine: Engine, say: Say, summary: Summary) -> BacktestPlan:
    plan = plan_backtest(spec, series_records(spec, steps, say, summary), gpus=engine.gpus)
    summary.add(plan.failures, say)
    if not plan.folds:
        reasons = "; ".join(f"{f.subject}: {f.reason}" for f in summary.failures[:3])
        raise CpbError(
            f"nothing to backtest ({reasons}); check coins, since, as_of and source", code="no-series"
        )
    say(f"{len(plan.folds):,} series (coins x timeframes x folds); training {', '.join(spec.names)}")
    for sentence in plan.incomplete:
        say(sentence)
    return plan


@flow(name="backtest", validate_parameters=False, flow_run_name=named_run, on_running=[claim_run])
@plain_failures
@takes(BacktestSpec)
def backtest(spec: BacktestSpec) -> State:
    """Run a backtest as a Prefect flow run; its parameters are the options of the command line."""
    result = run_backtest(spec, Runner(prefect=True))
    pooled = result["pooled"].items()
    show_table(
        "backtest",
        [{"timeframe": t, "architecture": a} | row for a, rows in pooled for t, row in rows.items()],
    )
    show_failures(
        "backtest",
        [f"{f['symbol']} {f['timeframe']} in {f['step']}: {f['reason']}" for f in result["failures"]],
    )
    return Completed(name="Partial" if result["exit"] else "Completed", data=result)
