"""`train-all`: klines -> features -> fleets -> scores -> champions -> Hub folder -> forecasts.

`run_training` goes up to the scores, also for `cpb train`; `run_train_all` goes on. A member's failure never stops the
others: it is reported with its reason, its run is marked failed, and the flow ends partial. Every step finds its own
finished work by digest, so repeating the command after kill -9 only does the remaining work. The run in MLflow is found
again by a digest of its inputs, and is never left open.
"""

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows.console import echo
from flows.costs import accuracy, accuracy_text, cost_text, fleet_accuracy, fleet_cost, has_board, run_cost
from flows.runner import (
    Runner,
    Summary,
    decision_lines,
    fleet_warnings,
    flow_parameters,
    plain_failures,
    profile_lines,
    series_records,
)
from schemas.errors import BusyError, CpbError, MemberError, counted, log
from schemas.failure import Failure
from schemas.handover import FleetJudgement, FleetPlan, SeriesRecord, ShardJob, ShardResult, TrainingPlan
from schemas.identity import tree_of
from schemas.run import RunSpec
from tasks.evaluate import evaluate, run_skill
from tasks.hub.publish import hub_client
from tasks.hub.tree import check_replaceable
from tasks.judging.judges import Judges
from tasks.market.listing import with_listed_pairs
from tasks.notices import Outcome, tell_outcome
from tasks.running.parallel import run_each
from tasks.running.progress import PrintLine
from tasks.signals.splits import FROZEN, STILL
from tasks.steps import Engine, failed_shard, forecast, opened_engine, plan, promote, publish, train
from tasks.storage.records import value_digest
from tasks.storage.urls import public_url
from tasks.tracking.archive import Keeper
from tasks.tracking.prune import prune
from tasks.tracking.results import write_results
from tasks.tracking.runs import OpenRun, check_place, finish, kill, log_metrics, start_parent
from tasks.tracking.store import open_store
from tasks.tracking.store_errors import UNUSABLE, store_errors
from tasks.tracking.tags import (
    AS_OF,
    COMMAND,
    FAILED,
    NEWEST,
    REASON,
    WARNINGS,
    run_name,
    scope_tags,
    spec_params,
)
from tasks.tracking.wandb import check_usable, is_wanted, mirror
from tasks.training.plan import job_key, shards_of, training_code
from tasks.training.progress import FleetProgress, busy_share
from tasks.training.shard import TRAINED, Checkpoint, ShardsInUse, is_training, progress_so_far, shard_folder

ResumeMode = Literal["use", "expect", "forget"] | Checkpoint
"""How to use earlier training of the same command: continue it (`use`), continue it and report if there is none
(`expect`), discard it (`forget`), or discard it and start from a checkpoint at any path."""

_OF_MODELS = ("architectures", "preset", "overrides", "seeds", "dtype")
"""Options that say what is trained: of a run with `serving`, where nothing serves."""


@dataclass
class Training:
    """A run up to its scores.

    `results`: shard results, per fleet. `before`: names of the fleets that earlier runs have trained. Release `in_use`
    once the shards' folders are no longer needed.
    """

    summary: Summary
    results: list[list[ShardResult]]
    judged: list[FleetJudgement]
    stopped: Sequence[SeriesRecord]
    in_use: ShardsInUse
    before: Sequence[str] = ()


def run_train_all(spec: RunSpec, steps: Runner, report: PrintLine = echo) -> Summary:
    """Run the complete job and return its summary; errors as in `run_training`."""
    with tell_outcome("train-all") as outcome:
        keeper = Keeper(report)
        if spec.repo:
            hub_client()  # early: the token is needed hours later
        check_replaceable(tree_of(spec.scope.home, "hub", spec.market))
        spec = with_listed_pairs(spec, report)
        training = run_training(spec, steps, report, keeper=keeper)
        outcome.failures = training.summary.failures
        with run_of(training.summary.run_id):
            summary = _deliver(spec, training, steps, report, outcome)
        keeper.keep()
        return summary


def _deliver(
    spec: RunSpec, training: Training, steps: Runner, report: PrintLine, outcome: Outcome
) -> Summary:
    """Promote and publish the trained models, and forecast."""
    summary, scope = training.summary, spec.scope
    for fleet in summary.fleets:
        if reached := accuracy(fleet):
            report(f"{fleet['fleet']}: {accuracy_text(reached)}")
    decisions = steps.one(promote, spec, training.judged, training.stopped)
    outcome.decisions = decisions
    for line in decision_lines(decisions):
        report(line)
    trained = set(scope.series)
    summary.champions = sum(d.outcome != "retired" and d.series in trained for d in decisions)
    _write_results(spec, training, report)  # after the decisions: the models' versions are known
    training.in_use.release()
    if summary.champions:  # without champions: only classifiers were trained, which do not forecast prices
        try:
            with store_errors():
                publication = steps.one(publish, scope.market, spec.repo)
            summary.published = publication.place
            summary.add(publication.failures, report)
        except CpbError as error:  # the Hub is unreachable: models, runs and forecasts are still valid
            summary.add([Failure.of(None, "publish", error)], report)
    issued = steps.one(forecast, scope)
    # Not only new rows: repeating a run that was killed after its forecasts gives the same count as an undisturbed run.
    summary.forecast_rows = issued.total_rows
    summary.add(issued.failures, report)
    packaged = f", packaged in {summary.published}" if summary.published else ""
    report(
        f"{counted(summary.champions, 'champion')}, {counted(summary.forecast_rows, 'forecast row')}{packaged}"
    )
    if cost := run_cost(summary.fleets, training.before):
        report(f"cost: {cost}")
    warnings = {WARNINGS: "; ".join(summary.warnings) or None}
    finish(summary.run_id, *summary.outcome(warnings))
    mirror_to_wandb(spec, summary.run_id, report)
    if spec.prune:
        _prune(spec, summary, report)
    return summary


def _write_results(spec: RunSpec, training: Training, report: PrintLine) -> None:
    """Write `results.json`; a failure does not affect the models of this run."""
    summary = training.summary
    try:
        with store_errors():
            path, number = write_results(spec.scope.home, spec.market, open_store(), training.judged)
        summary.results = str(path)
        report(f"results of {counted(number, 'model')} in {path}")
    except (CpbError, OSError) as error:
        summary.add([Failure.of(None, "evaluate", error)], report)


def _prune(spec: RunSpec, summary: Summary, report: PrintLine) -> None:
    """Delete old data; a failure does not affect the results of this run."""
    try:
        with store_errors():
            report(f"pruning: {prune(spec.scope.home, dry_run=False)}")
    except BusyError as error:  # the next nightly run prunes
        report(f"nothing was pruned: {error}")
    except (CpbError, OSError) as error:
        summary.add([Failure.of(None, "prune", error)], report)
        finish(summary.run_id, *summary.outcome())


@flow(name="train-all", validate_parameters=False, flow_run_name="train-all {preset}")
@plain_failures
@flow_parameters(RunSpec)
def train_all(spec: RunSpec) -> State:
    """Train, judge, promote and package the whole universe; parameters are the command line's."""
    summary = run_train_all(spec, Runner(prefect=True))
    name = "Partial" if summary.failures else "Completed"
    message = f"{counted(summary.members, 'member')}, {len(summary.failures)} failed"
    return Completed(name=name, message=message, data=summary.as_json())


def run_training(
    spec: RunSpec,
    steps: Runner,
    report: PrintLine,
    *,
    keeper: Keeper,
    resume: ResumeMode = "use",
    name: str = "train-all",
) -> Training:
    """Ingest, compute features, plan, train, judge and log; each judged fleet is archived by the keeper.

    Raises:
        CpbError: nothing could be ingested or trained; a started run is marked failed. Before any download: the device
            or MLflow's artifact folder cannot be used, or wandb is not installed or has
            no key.
    """
    check_place(open_store())
    if is_wanted(asked=spec.wandb):
        check_usable()
    with opened_engine(spec) as engine, Judges(engine.cores) as judges:
        return _run(spec, steps, engine, judges, keeper, report, resume, name)


def _run(
    spec: RunSpec,
    steps: Runner,
    engine: Engine,
    judges: Judges,
    keeper: Keeper,
    report: PrintLine,
    resume: ResumeMode,
    name: str,
) -> Training:
    summary, root = Summary(), spec.scope.root
    planned: TrainingPlan = steps.one(plan, spec, series_records(spec, steps, report, summary), engine.gpus)
    summary.add(planned.failures, report)
    for record in planned.stopped:
        summary.stopped.append(record.series.name)
        last = datetime.fromtimestamp(record.last_us / 1e6, UTC)
        report(f"{record.series} has stopped trading (last candle {last:%Y-%m-%d}) and is left out")
    if planned.series and not planned.fleets:  # `--serving`: what serves cannot be made again
        raise CpbError(f"nothing is trained ({summary.reasons})", code=planned.failures[-1].code)
    if not planned.fleets:
        idle = all(
            failure.code in (FROZEN, STILL) for failure in summary.failures
        )  # nothing went wrong: exit 3
        raise (MemberError if summary.failures and idle else CpbError)(
            f"no series can be trained ({summary.reasons}); check coins, since, as_of and source",
            code="no-series",
        )
    for sentence in (*_set_aside(spec, planned.fleets), *profile_lines(spec, planned.fleets)):
        report(sentence)
    summary.series = len(planned.series)
    trained = {record.series for record in planned.series}  # among them series whose price level leaps
    # failed series, and therefore a failed member of every fleet
    left_out = tuple(failure for failure in summary.failures if failure.series not in trained)
    summary.run_id = start_run(spec, planned.series, planned.fleets, name).run_id
    in_use = ShardsInUse(root)
    with run_of(summary.run_id):
        before = _begun_before(root, planned.fleets, resume, report)
        began = time.time()

        def judge(fleet: FleetPlan, arrivals: Iterator[tuple[ShardJob, ShardResult]]) -> FleetJudgement:
            judged: FleetJudgement = steps.one(
                evaluate, spec, summary.run_id, fleet, arrivals, root, judges, _lacked(spec, fleet, left_out)
            )
            keeper.keep()
            return judged

        train_with = partial(train_fleets, spec, steps, engine, planned.fleets)
        results, judged = _train_and_judge(train_with, planned.fleets, judge, before, report)
        for fleet, shards in zip(planned.fleets, results, strict=True):
            summary.add([failure for shard in shards for failure in shard.failures], report)
            for sentence in fleet_warnings(shards):
                summary.warnings.append(f"{fleet.name}: {sentence}")
        for judgement in judged:
            summary.add(judgement.failures, report)
        for fleet, shards, judgement in zip(planned.fleets, results, judged, strict=True):
            about = {"fleet": fleet.name, "architecture": fleet.architecture, "preset": fleet.label}
            summary.fleets.append(about | fleet_cost(shards) | fleet_accuracy(judgement))
        for sentence in summary.warnings:
            report(sentence)
        if isinstance(resume, Checkpoint) and not any(shard.members for shard in results[0]):
            resume.take_out_of(shard_folder(root, planned.fleets[0].shards[0]))
        summary.members = sum(len(fleet.judgements) for fleet in judged)
        work = [
            shard.work for shards in results for shard in shards if shard.work and shard.work.begin >= began
        ]
        busy = busy_share(work, engine.cores.number) if work else {}
        skill, best = run_skill(judged)
        counts = {"members": summary.members, "failed": len(summary.failures)}
        log_metrics(summary.run_id, counts | busy | skill, tags=best)
        if not summary.members:
            first = next(failure for failure in summary.failures if failure.model)
            raise CpbError(
                f"no model could be trained; the first reason: {first.line}",
                code="no-model",
            )
    board = f" (`cpb leaderboard --run {summary.run_id[:8]}`)" if has_board(summary.fleets) else ""
    report(f"judged {counted(summary.members, 'member')} against {_references(summary)}{board}")
    trained_before = [
        fleet.name
        for fleet in planned.fleets
        if all(before[job_key(shard)] == TRAINED for shard in fleet.shards)
    ]
    return Training(summary, results, judged, planned.stopped, in_use, trained_before)


def _set_aside(spec: RunSpec, fleets: Sequence[FleetPlan]) -> Iterator[str]:
    """Yield which options count for nothing in a run with `serving`, if any."""
    if spec.serving and not any(fleet.spec in spec.fleets for fleet in fleets):
        values = RunSpec.model_fields
        given = [
            n for n in _OF_MODELS if getattr(spec, n) != values[n].get_default(call_default_factory=True)
        ]
        if given:
            yield (
                f"--serving trains what serves, as it was trained, and something serves in each timeframe: "
                f"{', '.join(given)} {'counts' if len(given) == 1 else 'count'} for nothing here"
            )


def _lacked(spec: RunSpec, fleet: FleetPlan, left_out: Sequence[Failure]) -> tuple[Failure, ...]:
    """Return the failures of series on which a fleet would have been trained: with `serving`, where its recipe is."""
    timeframes = {member.model.series.timeframe for member in fleet.members}
    return tuple(f for f in left_out if not (spec.serving and f.series) or f.series.timeframe in timeframes)


def _references(summary: Summary) -> str:
    """Return what the models of a run were judged against: classifiers have a reference of their own."""
    classifies = {bool(accuracy(fleet)) for fleet in summary.fleets if "seconds" in fleet}
    return " and ".join(
        "the class frequencies" if classes else "the random walk" for classes in sorted(classifies)
    )


def _begun_before(
    root: Path, fleets: Sequence[FleetPlan], resume: ResumeMode, report: PrintLine
) -> dict[str, str]:
    """Apply `resume` to each shard's folder; report and return the progress from before, by the shard's key."""
    folders = {job_key(shard): shard_folder(root, shard) for fleet in fleets for shard in fleet.shards}
    if resume not in ("use", "expect"):
        for folder in folders.values():
            if not is_training(folder):  # another process is training it now: keep it
                shutil.rmtree(folder, ignore_errors=True)
    if isinstance(resume, Checkpoint):
        resume.put_into(shard_folder(root, fleets[0].shards[0]))
    before = {key: progress_so_far(folder) for key, folder in folders.items()}
    if resume == "expect" and not any(before.values()):
        report("nothing to resume: no such training on these candles has begun; starting from scratch")
    for fleet in fleets:
        if resumed := _resumed(fleet, before):
            report(f"resuming {fleet.name}: {resumed}")
    return before


def _resumed(fleet: FleetPlan, before: Mapping[str, str]) -> str:
    """Return what of a fleet earlier runs have trained, in words; "" for nothing."""
    return ", ".join(
        text if times == len(fleet.shards) else f"{times} of {counted(len(fleet.shards), 'shard')} {text}"
        for text, times in Counter(before[job_key(shard)] for shard in fleet.shards).items()
        if text
    )


Ended = Callable[[ShardJob, ShardResult], None]
"""Called with a shard and its result, as soon as the shard has ended."""


def _train_and_judge(
    train_with: Callable[[Ended], list[list[ShardResult]]],
    fleets: Sequence[FleetPlan],
    judge: Callable[[FleetPlan, Iterator[tuple[ShardJob, ShardResult]]], FleetJudgement],
    before: Mapping[str, str],
    report: PrintLine,
) -> tuple[list[list[ShardResult]], list[FleetJudgement]]:
    """Train the fleets' shards in a single queue; concurrently, judge and log each fleet as its shards finish.

    Returns:
        The shards' results per fleet, and the judgement of each fleet: one without a trained member has no judgements,
        but is logged as well, with its failures.
    """
    futures: dict[str, Future[ShardResult]] = {job_key(shard): Future() for f in fleets for shard in f.shards}

    def ended(shard: ShardJob, result: ShardResult) -> None:
        futures[job_key(shard)].set_result(result)

    def train_all_shards() -> list[list[ShardResult]]:
        try:
            return train_with(ended)
        finally:
            for future in futures.values():  # otherwise the judging threads would wait forever
                if not future.done():
                    future.set_exception(CpbError("the training was stopped"))

    def arrivals(fleet: FleetPlan) -> Iterator[tuple[ShardJob, ShardResult]]:
        shards = {futures[job_key(shard)]: shard for shard in fleet.shards}
        for future in as_completed(shards):
            yield shards[future], future.result()

    def reported(fleet: FleetPlan) -> Iterator[tuple[ShardJob, ShardResult]]:
        yield from arrivals(fleet)
        members = sum(len(futures[job_key(shard)].result().members) for shard in fleet.shards)
        resumed = _resumed(fleet, before)
        cost = cost_text(fleet_cost([futures[job_key(shard)].result() for shard in fleet.shards]))
        facts = "; ".join(filter(None, [cost, resumed]))
        report(f"trained {fleet.name}: {counted(members, 'member')}{f' ({facts})' if facts else ''}")

    calls: list[Callable[[], Any]] = [
        train_all_shards,
        *(partial(judge, fleet, reported(fleet)) for fleet in fleets),
    ]
    judgements: list[Any]
    results: Any
    results, *judgements = outcomes = run_each(calls, len(calls))
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return results, judgements


def train_fleets(
    spec: RunSpec,
    steps: Runner,
    engine: Engine,
    fleets: Sequence[FleetPlan],
    ended: Ended = lambda _shard, _result: None,
) -> list[list[ShardResult]]:
    """Train the planned fleets, their shards in a single queue, and leave the engine.

    Returns:
        Per fleet, the result of each shard, in order. An error of a step, whatever its kind, becomes a failure of each
        member of its shard: the other shards go on.
    """
    queue = shards_of(fleets)
    progress: dict[str, FleetProgress] = {}
    for fleet in fleets:
        progress |= dict.fromkeys(map(job_key, fleet.shards), FleetProgress(fleet))
    at_once = engine.plan(len(queue))
    root, timeout_s = spec.scope.root, spec.train_timeout_s
    calls = [(shard, root, engine, timeout_s, progress[job_key(shard)]) for shard in queue]
    results: dict[str, ShardResult] = {}

    def taken(index: int, outcome: ShardResult | Exception) -> None:
        shard = queue[index]
        if isinstance(outcome, Exception):
            if not isinstance(outcome, CpbError | OSError):  # a fault of the program: its place is needed
                log.warning("a shard of %s was lost", progress[job_key(shard)].name, exc_info=outcome)
            outcome = failed_shard(shard, outcome)
        results[job_key(shard)] = outcome
        ended(shard, outcome)

    steps.each(train, calls, workers=at_once, then=taken)
    engine.close()
    return [[results[job_key(shard)] for shard in fleet.shards] for fleet in fleets]


def start_run(
    spec: RunSpec, records: Sequence[SeriesRecord], fleets: Sequence[FleetPlan], name: str
) -> OpenRun:
    """Open the run of planned fleets: the same command on the same data continues the same run.

    Args:
        name: name of the command.
    """
    presets = ", ".join(dict.fromkeys(fleet.spec.preset for fleet in fleets))
    as_of = spec.scope.as_of.isoformat() if spec.scope.as_of else NEWEST
    about = {"preset": presets, "market": spec.market, AS_OF: as_of, COMMAND: name}
    tags = scope_tags(spec, records) | about
    params = spec_params(spec) | {"architectures": [fleet.name for fleet in fleets]}
    params["source"] = public_url(spec.source) if spec.source else None
    key, title = _run_key(spec, records, fleets), run_name(name, presets, spec, records)
    return start_parent(key, params, tags, title)


@contextmanager
def run_of(run_id: str) -> Iterator[None]:
    """Mark the flow's run as failed with the reason if an error ends the block, as killed if an interrupt does.

    If the store itself is unavailable, the run stays open; the next cpb process that writes to the store marks it as
    killed. Interrupts (Ctrl-C, the signal with which Prefect cancels a run) are not subclasses of `Exception`.
    """
    try:
        with store_errors():
            yield
    except Exception as error:
        # otherwise this would wait for the unavailable store again
        if getattr(error, "code", "") != UNUSABLE:
            finish(run_id, FAILED, {REASON: str(error) or type(error).__name__})
        raise
    except BaseException as interrupt:
        kill(run_id, f"interrupted ({type(interrupt).__name__})")
        raise


def mirror_to_wandb(spec: RunSpec, run_id: str, report: PrintLine) -> None:
    """Copy a finished run to Weights & Biases if requested; errors are only printed."""
    if is_wanted(asked=spec.wandb) and (problem := mirror(run_id, spec.scope.root)):
        report(f"cpb: {problem}")


def _run_key(spec: RunSpec, records: Sequence[SeriesRecord], fleets: Sequence[FleetPlan]) -> str:
    """Return a digest of the options and the data, so that the same command on the same data is the same run."""
    # What the records of the series and the scope contain, and what changes the way of training but not its result.
    aside = {
        "coins",
        "timeframes",
        "source",
        "since",
        "as_of",
        "train_timeout_s",
        "tail",
        "offline",
        "prune",
        "wandb",
        "engine",
        "columns",
        "decimal",
        # What the fleets contain: neither a preset file's name nor its place decides anything.
        "architectures",
        "preset",
        "preset_files",
        "seeds",
        "overrides",
        "dtype",
    }
    options = spec.model_dump(mode="json", exclude=aside) | spec.scope.model_dump(
        mode="json", exclude={"home", "source", "offline", "reading"}
    )
    data = [(r.series.name, r.digest) for r in records]
    planned = [fleet.spec.model_dump(mode="json") for fleet in fleets]
    return value_digest([options, planned, data, training_code()])[:16]
