"""`train-all`: klines -> features -> fleets -> scores -> champions -> Hub folder -> forecasts.

A member's failure never stops the others: it is reported with its reason, its run is marked failed, and the flow ends
partial. Every step finds its own finished work by digest, so repeating the command after kill -9 only does the
remaining work.
"""

from prefect import flow
from prefect.states import Completed, State

from flows.console import say as say_to_people
from flows.runner import (
    Runner,
    Say,
    Summary,
    decision_lines,
    failure_line,
    flow_parameters,
    plain_failures,
    read_pairs,
    show_on_page,
)  # fmt: skip
from flows.training import Training, mirror_to_wandb, run_of, run_training
from schemas.errors import BusyError, CpbError, count
from schemas.handover import Failure
from schemas.identity import tree_of
from schemas.run import RunSpec
from tasks.forecast import forecast
from tasks.hub.publish import check_ready
from tasks.hub.tree import check_replaceable
from tasks.notices import Outcome, tell_outcome
from tasks.promote import promote
from tasks.publish import publish
from tasks.tracking.boards import leaderboard
from tasks.tracking.prune import prune
from tasks.tracking.runs import COMPLETE, PARTIAL, finish
from tasks.tracking.store import WARNINGS, store_errors


def run_train_all(spec: RunSpec, steps: Runner, say: Say = say_to_people) -> Summary:
    """Run the complete job and return its summary; errors as in `run_training`."""
    with tell_outcome("train-all", spec.scope.home) as outcome:
        if spec.repo:
            check_ready(spec.repo)  # early: the token is needed hours later
        check_replaceable(tree_of(spec.scope.home, "hub", spec.market))
        spec = read_pairs(spec, say)
        training = run_training(spec, steps, say)
        outcome.failures = training.summary.failures
        with run_of(training.summary.run_id):
            return _deliver(spec, training, steps, say, outcome)


def _deliver(spec: RunSpec, training: Training, steps: Runner, say: Say, outcome: Outcome) -> Summary:
    """Promote and publish the trained models, and forecast."""
    summary, scope = training.summary, spec.scope
    failed = summary.failures
    decisions = outcome.decisions = steps.one(promote, spec, training.judged, training.stopped, failed)
    for line in decision_lines(decisions):
        say(line)
    trained = set(scope.series)
    summary.champions = sum(d.outcome != "retired" and d.series in trained for d in decisions)
    training.in_use.release()
    if summary.champions:  # without champions: only classifiers were trained, which do not forecast prices
        try:
            with store_errors():
                publication = steps.one(publish, scope.home, scope.market, spec.repo)
            summary.published = publication.place
            summary.add(publication.failures, say)
        except CpbError as error:  # the Hub is unreachable: models, runs and forecasts are still valid
            summary.add([Failure.of(None, "publish", error)], say)
    issued = steps.one(forecast, scope)
    # Not only new rows: repeating a run that was killed after its forecasts gives the same count as an undisturbed run.
    summary.forecast_rows = issued.standing
    summary.add(issued.failures, say)
    packaged = f", packaged in {summary.published}" if summary.published else ""
    say(f"{count(summary.champions, 'champion')}, {count(summary.forecast_rows, 'forecast row')}{packaged}")
    warnings = {WARNINGS: "; ".join(summary.warnings) or None}
    finish(summary.run_id, PARTIAL if summary.failures else COMPLETE, warnings)
    mirror_to_wandb(spec, summary.run_id, say)
    if spec.prune:
        _prune(spec, summary, say)
    return summary


def _prune(spec: RunSpec, summary: Summary, say: Say) -> None:
    """Delete old data; a failure does not affect the results of this run."""
    try:
        with store_errors():
            report = prune(spec.scope.home, dry_run=False)
    except BusyError as error:  # the next nightly run prunes
        say(f"nothing was pruned: {error}")
    except (CpbError, OSError) as error:
        summary.add([Failure.of(None, "prune", error)], say)
        finish(summary.run_id, PARTIAL)
    else:
        say(f"pruning: {report}")


@flow(name="train-all", validate_parameters=False, flow_run_name="train-all {preset}")
@plain_failures
@flow_parameters(RunSpec)
def train_all(spec: RunSpec) -> State:
    """Train, judge, promote and package the whole universe; parameters are the command line's."""
    summary = run_train_all(spec, Runner(prefect=True))
    failures = [failure_line(failure) for failure in summary.failures]
    show_on_page("train-all", failures, leaderboard(summary.run_id), summary.warnings)
    name = "Partial" if summary.failures else "Completed"
    message = f"{count(summary.members, 'member')}, {len(summary.failures)} failed"
    return Completed(name=name, message=message, data=summary.as_json())
