"""`train-all`: klines -> features -> fleets -> scores -> champions -> Hub folder -> forecasts.

A member's failure never stops the others: it is reported with its reason, its run is marked failed, and the flow ends
partial. Every step finds its own finished work by digest, so repeating the command after kill -9 only does the
remaining work. The run in MLflow is found again by a digest of its inputs, and is never left open.
"""

from collections.abc import Sequence

from prefect import runtime
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows.console import echo
from flows.housekeeping import copy_registry, leave_results, prune_old, show_board
from flows.page import update_space
from flows.phases import (
    check_records,
    ingest_scope,
    note_forecasts,
    plan_training,
    publish_champions,
    train_and_evaluate,
    write_columns,
)
from flows.prefect import as_flow
from flows.run import Run, flow_run, until_reachable
from flows.sentences import accuracy_lines, decision_lines, end_lines
from schemas.errors import counted
from schemas.run import RunSpec
from tasks.market.listing import with_listed_pairs
from tasks.running.progress import PrintLine
from tasks.steps import check_publishable, forecast, opened_engine, promote
from tasks.tracking.archive import Archiver
from tasks.training.shard_retention import ShardsInUse

NIGHT_WAITS_S = (15 * 60, 30 * 60)
"""Before the second and the third attempt of a night: a restart of a store or a router takes minutes, not hours."""


def run_train_all(spec: RunSpec, report: PrintLine = echo, *, waits_s: Sequence[float] = ()) -> Run:
    """Run the complete job and return its run.

    Args:
        waits_s: where network or store alone ended the job, it is tried again after each of these times.

    Raises:
        CpbError: nothing could be ingested or trained; a started run is marked failed. Before any download: the device,
            MLflow's artifact folder or the folder to publish cannot be used, the Hub's token is missing, or wandb is
            not installed or has no key.
    """
    with flow_run("train-all", report, notify=True) as run:
        # What would fail at the end fails now, before hours of training: the archive, the Hub, MLflow, W&B, the device.
        archiver = Archiver(report)
        check_publishable(spec)
        until_reachable(run, lambda: _train_all(run, spec, archiver), waits_s)
    copy_registry()
    return run


def _train_all(run: Run, spec: RunSpec, archiver: Archiver) -> None:
    # A second attempt takes the pairs and, once the run is open, the data of the first: with newer candles, which an
    # hourly forecast may have fetched meanwhile, it would be another run in MLflow, and train everything anew.
    spec = run.listed = run.listed or with_listed_pairs(spec, run.report)
    check_records(run, spec)
    with opened_engine(spec) as engine:
        if not run.run_id:
            run.records = write_columns(run, spec, ingest_scope(run, spec))
        planned = plan_training(run, spec, run.records, engine)
        with ShardsInUse(spec.scope.root):
            _, judged = train_and_evaluate(run, spec, planned, engine, archiver)
            run.tell(accuracy_lines(run))
            run.decisions = promote(spec, judged, planned.stopped)
            run.tell(decision_lines(run.decisions, judged))
            leave_results(run, spec, judged)  # after the decisions: the models' versions are known
    published = publish_champions(run, spec)
    note_forecasts(run, spec, forecast.after(run.decisions, published)(spec.scope))
    run.tell(end_lines(run))
    run.end()  # the pruning waits for no run that is still open, and an archive is to hold one that has ended
    update_space(run, spec)  # whose board has the runs that have ended
    if spec.prune:
        prune_old(run, spec.scope.home)
    archiver.archive()


@as_flow("train-all", RunSpec, lambda spec: f"{spec.preset} {spec.scope.title}")
def train_all(spec: RunSpec) -> State:
    """Train, judge, promote and package the whole universe; parameters are the command line's."""
    # Somebody who typed the command sees the reason at once; a deployed run is a night, which nobody watches.
    run = run_train_all(spec, waits_s=NIGHT_WAITS_S if runtime.deployment.id else ())
    show_board(run)
    name = "Partial" if run.failures else "Completed"
    message = f"{counted(run.members, 'model')}, {len(run.failures)} failed"
    return Completed(name=name, message=message, data=run.as_json())
