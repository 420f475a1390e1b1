"""The phases of flows: what is known of the series, the plan of the fleets, training beside judging, publishing,
and what a run forecasts."""

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import count

from flows.run import Run
from flows.sentences import fleet_warnings, judged_line, profile_lines, set_aside_lines
from schemas.errors import CpbError, MemberError, counted
from schemas.failure import Failure
from schemas.handover import (
    FleetJudgement,
    FleetPlan,
    ForecastBatch,
    Publication,
    SeriesRecord,
    ShardResult,
    TrainingPlan,
)
from schemas.identity import SeriesId
from schemas.run import RunSpec
from schemas.scope import Scope, ScopeSpec
from tasks.forecasting.outlook import outlook
from tasks.forecasting.staleness import find_stale, stale_sentence
from tasks.judging.accuracy import fleet_accuracy
from tasks.judging.judges import Judges
from tasks.running.parallel import run_each
from tasks.running.progress import report_progress, reporting
from tasks.signals.splits import FROZEN, STILL
from tasks.steps import evaluate, features, ingest, plan, publish, train
from tasks.tracking.archive import Archiver
from tasks.tracking.flow_log import run_skill, start_flow
from tasks.tracking.runs import check_place, log_metrics
from tasks.tracking.store import open_store
from tasks.tracking.wandb import check_usable, is_wanted
from tasks.training.checkpoint import Checkpoint
from tasks.training.cost import busy_share, fleet_cost
from tasks.training.queue import Arrivals, Engine, ResumeMode, is_trained, resume_shards, train_and_judge
from tasks.training.shard import shard_folder


def check_records(run: Run, spec: RunSpec) -> None:
    """Raise what would keep MLflow or Weights & Biases from recording the run: before any download, not hours later."""
    check_place(open_store())
    if is_wanted(asked=spec.wandb):
        check_usable()
        run.wandb_folder = spec.scope.root


def ingest_scope(run: Run, spec: ScopeSpec) -> tuple[SeriesId, ...]:
    """Bring the scope's candles up to date; failures and leaps of a price level are added to the run.

    A series that leaps is returned too: it is trained on in segments, but makes the run partial.
    """
    fetched = ingest(spec.scope, spec.tail)
    if fetched.series:
        run.add((*fetched.failures, *fetched.leaps))
    else:  # the error that ends the run says why
        run.failures += fetched.failures
    run.report(
        f"ingested {counted(len(fetched.series), 'series')} ({counted(fetched.requests, 'request')}, "
        f"{fetched.seconds:.1f} s)"
    )
    return fetched.series


def write_columns(run: Run, spec: ScopeSpec, series: Sequence[SeriesId]) -> list[SeriesRecord]:
    """Write the features of each series, as many at a time as the step allows; failures are added to the run."""
    total, done = len(series), count(1)
    with reporting("features", total, "series"):
        calls = [partial(_features, series, spec.scope, one, total, done) for one in series]
        outcomes = run_each(calls, features.workers)
    run.add(outcome for outcome in outcomes if isinstance(outcome, Failure))
    return [outcome for outcome in outcomes if isinstance(outcome, SeriesRecord)]


def _features(
    fetched: Sequence[SeriesId], scope: Scope, series: SeriesId, total: int, done: Iterator[int]
) -> SeriesRecord | Failure:
    try:
        return features.after(fetched)(scope, series)
    except Exception as error:  # noqa: BLE001 - whatever fails one series, the others go on
        return Failure.of(series, "features", error)
    finally:
        report_progress("features", next(done), total, "series")


def plan_training(run: Run, spec: RunSpec, records: Sequence[SeriesRecord], engine: Engine) -> TrainingPlan:
    """Plan the fleets, and open the run in MLflow.

    Raises:
        CpbError: nothing can be trained.
    """
    # Asked of the engine, not of the specification: a cluster may have GPUs where this machine has none.
    planned = run.note(plan(spec, records, engine.gpus))
    for record in planned.stopped:
        run.stopped.append(record.series.name)
        last = datetime.fromtimestamp(record.last_us / 1e6, UTC)
        run.report(f"{record.series} has stopped trading (last candle {last:%Y-%m-%d}) and is left out")
    if not planned.fleets:
        raise _nothing_planned(run, planned)
    run.tell((*set_aside_lines(spec, planned.fleets), *profile_lines(spec, planned.fleets)))
    run.series = len(planned.series)
    # Only now: a run that is refused for its data or options has left nothing in MLflow, and its key holds the data.
    run.run_id = start_flow(spec, planned.series, planned.fleets, run.name)
    return planned


def _nothing_planned(run: Run, planned: TrainingPlan) -> CpbError:
    if planned.series:  # `--serving`: what serves cannot be made again
        return CpbError(f"nothing is trained ({run.reasons})", code=planned.failures[-1].code)
    # Series that only stand still: nothing went wrong, hence exit 3.
    idle = run.failures and all(failure.code in (FROZEN, STILL) for failure in run.failures)
    return (MemberError if idle else CpbError)(
        f"no series can be trained ({run.reasons}); check coins, since, as_of and source", code="no-series"
    )


def train_and_evaluate(
    run: Run,
    spec: RunSpec,
    planned: TrainingPlan,
    engine: Engine,
    archiver: Archiver,
    resume: ResumeMode = "use",
) -> tuple[list[list[ShardResult]], list[FleetJudgement]]:
    """Train the planned fleets, judge each as its shards end, log it, and archive it.

    Returns:
        Per fleet, the results of its shards, and its judgement: without a trained member it has no judgements, but is
        logged as well, with its failures.

    Raises:
        CpbError: no model could be trained.
    """
    # Before any shard begins: `work.begin` is the wall clock of the process, or the node, that trained it.
    root, began = spec.scope.root, time.time()
    trained = {record.series for record in planned.series}  # among them series whose price level leaps
    # a failed series is a failed member of every fleet
    left_out = tuple(failure for failure in run.failures if failure.series not in trained)
    before = resume_shards(root, planned.fleets, resume, run.report)
    run.trained_before = [fleet.name for fleet in planned.fleets if is_trained(fleet, before)]
    with Judges(engine.cores) as judges:
        # Trainers on a CPU and judges share the cores: together they never hold more than there are.
        judge = partial(_judge, run, spec, judges, archiver, left_out)
        results, judged = train_and_judge(
            engine, planned.fleets, partial(train.after(planned), spec, engine), judge, before, run.report
        )
    _note_fleets(run, planned.fleets, results, judged)
    # The command that follows must not continue from a checkpoint with which nothing could be trained.
    if isinstance(resume, Checkpoint) and not any(shard.members for shard in results[0]):
        resume.take_out_of(shard_folder(root, planned.fleets[0].shards[0]))
    # The shards that this run has trained: of others, the time is that of an earlier run.
    work = [s.work for shards in results for s in shards if s.work and s.work.begin >= began]
    busy = busy_share(work, engine.cores.number) if work else {}
    skill, best = run_skill(judged)
    # Logged before the error below: the run of a night without a model says how many failed.
    counts = {"members": run.members, "failed": len(run.failures)}
    log_metrics(run.run_id, counts | busy | skill, tags=best)
    if not run.members:
        first = next(failure for failure in run.failures if failure.model)
        raise CpbError(f"no model could be trained; the first reason: {first.line}", code="no-model")
    run.report(judged_line(run))
    return results, judged


def _judge(
    run: Run,
    spec: RunSpec,
    judges: Judges,
    archiver: Archiver,
    left_out: tuple[Failure, ...],
    fleet: FleetPlan,
    arrivals: Arrivals,
) -> FleetJudgement:
    judged = evaluate(spec, run.run_id, fleet, arrivals, judges, left_out)
    # After its record: an archive has the models of whole fleets, and MLflow's runs of them.
    archiver.archive()
    return judged


def _note_fleets(
    run: Run,
    fleets: Sequence[FleetPlan],
    results: Sequence[Sequence[ShardResult]],
    judged: Sequence[FleetJudgement],
) -> None:
    """Add what became of the fleets: failures of the training, then of the judging; warnings, costs, accuracy."""
    # Of all fleets together: a full disk is one reason for all of them.
    run.add(failure for shards in results for shard in shards for failure in shard.failures)
    # Trainings first, of all fleets, so that the order of lines does not depend on which fleet was judged first.
    for judgement in judged:
        run.add(judgement.failures)
    for fleet, shards, judgement in zip(fleets, results, judged, strict=True):
        run.warnings += [f"{fleet.name}: {sentence}" for sentence in fleet_warnings(shards)]
        about = {"fleet": fleet.name, "architecture": fleet.architecture, "preset": fleet.label}
        run.fleets.append(about | fleet_cost(shards) | fleet_accuracy(judgement))
    run.members = sum(len(judgement.judgements) for judgement in judged)
    run.tell(run.warnings)


def publish_champions(run: Run, spec: RunSpec) -> Publication | None:
    """Publish the champions; None where there is none, or the Hub refuses: models, runs and forecasts stay valid."""
    trained = set(spec.scope.series)
    run.champions = sum(d.outcome != "retired" and d.series in trained for d in run.decisions)
    if run.champions:  # without champions: only classifiers were trained, which do not forecast prices
        with run.attempt("publish", (CpbError,)):
            publication = run.note(publish.after(run.decisions)(spec.market, spec.repo, private=spec.private))
            run.published = publication.place
            return publication
    return None


def note_forecasts(run: Run, spec: RunSpec, issued: ForecastBatch) -> None:
    """Note the forecasts of a run: their rows, what each champion's newest says, and which are too old."""
    # Not only new rows: repeating a run that was killed after its forecasts gives the same count as an undisturbed run.
    run.forecast_rows = run.note(issued).total_rows
    with run.attempt("forecast"):
        home, now = spec.scope.home, spec.scope.as_of
        run.forecasts = outlook(home, issued.issued, now)
        run.stale = stale_sentence(home, find_stale(home, issued.series, now), spec.source)
