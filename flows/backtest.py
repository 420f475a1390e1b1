"""`cpb backtest`: klines -> features -> folds -> fleets and baselines -> a judgement with its report.

Trains through the same steps as `train-all`, so slots, limits, checkpoints and resuming after a kill are the same.
Nothing is written to MLflow or promoted: a backtest evaluates a method, it does not choose a model to ship. With
`--gate` it decides on a recipe, whose models the next night trains and promotes.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows.console import echo
from flows.phases import ingest_scope, write_columns
from flows.prefect import as_flow
from flows.run import Run, flow_run
from flows.sentences import profile_lines
from schemas.backtesting import BacktestSpec
from schemas.errors import CpbError
from tasks.backtesting.backtest import BacktestPlan, check_backtest, finish_backtest, plan_backtest
from tasks.backtesting.results import Backtest
from tasks.backtesting.rolling import JUDGE
from tasks.judging.judges import Judges
from tasks.market.listing import with_listed_pairs
from tasks.promotion import by_backtest
from tasks.promotion.by_backtest import Contest
from tasks.promotion.submissions import counted_before
from tasks.running.progress import PrintLine
from tasks.steps import opened_engine, train
from tasks.training.cost import fleet_cost, run_cost
from tasks.training.plan import fleet_names
from tasks.training.queue import Engine, train_fleets
from tasks.training.shard_retention import ShardsInUse


def run_backtest(spec: BacktestSpec, report: PrintLine = echo) -> dict[str, Any]:
    """Run the backtest and return what `--json` prints: `pooled`, `members`, `failures`, `exit` and more.

    Raises:
        CpbError: no series can be used, or an output folder, the device or a baseline's package is not available.
    """
    check_backtest(spec)
    spec = with_listed_pairs(spec, report)
    # Before the device is opened: a recipe that may not be submitted costs nothing.
    contest = by_backtest.open_contest(spec) if spec.gate else None
    with (
        flow_run("backtest", report) as run,
        opened_engine(spec) as engine,
        Judges(engine.cores, JUDGE) as judges,
    ):
        plan = _plan(run, spec, engine, contest)
        # Before any training: who trains first and names the recipe afterwards could name the best of many.
        decide = _gate(spec, contest, plan, report) if contest else lambda _found: {}
        # The folds' predictions are read from the shards' folders, so these stay until the judgement is written.
        with ShardsInUse(spec.scope.root):
            results = train_fleets(engine, plan.fleets, partial(train, spec, engine))
            costs = [
                {"fleet": fleet.name} | fleet_cost(shards)
                for fleet, shards in zip(plan.fleets, results, strict=True)
            ]
            if cost := run_cost(costs):
                report(f"cost: {cost}")
            return finish_backtest(spec, plan, results, run.failures, judges, report, decide)


def _gate(
    spec: BacktestSpec, contest: Contest, plan: BacktestPlan, report: PrintLine
) -> Callable[[Backtest], dict[str, Any]]:
    """Name the recipes in the register, before anything is trained; return the decision to be made afterwards."""
    submission = by_backtest.submit(contest, spec, plan.folds)
    before = counted_before(spec.scope.home, submission)
    report(
        f"submitted to the gate as {submission.digest}: {', '.join(submission.recipes)} against "
        f"{submission.incumbent}; {before + submission.count} are submitted for this span"
    )

    return lambda backtest: {
        "gate": by_backtest.decide(contest, submission, spec.scope.home, backtest.members, report)
    }


def _plan(run: Run, spec: BacktestSpec, engine: Engine, contest: Contest | None) -> BacktestPlan:
    # The incumbent is trained in the same folds: a comparison is paired by origin.
    beside = (contest.name, contest.incumbent_fleet) if contest and contest.incumbent_fleet else None
    records = write_columns(run, spec, ingest_scope(run, spec))
    plan = plan_backtest(spec, records, gpus=engine.gpus, beside=beside)
    run.note(plan)
    if not plan.folds:
        raise CpbError(
            f"nothing to backtest ({run.reasons}); check coins, since, as_of and source", code="no-series"
        )
    run.report(
        f"{len(plan.folds):,} series (coins x timeframes x folds); training {', '.join(fleet_names(spec.fleets))}"
    )
    run.tell((*plan.incomplete, *profile_lines(spec, plan.fleets)))
    return plan


@as_flow("backtest", BacktestSpec, lambda spec: f"{spec.preset} {spec.scope.title}")
def backtest(spec: BacktestSpec) -> State:
    """Run a backtest as a Prefect flow run; its parameters are the options of the command line."""
    result = run_backtest(spec)
    return Completed(name="Partial" if result["exit"] else "Completed", data=result)
