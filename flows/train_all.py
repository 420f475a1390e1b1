"""`train-all`: klines -> features -> fleets -> scores -> champions -> Hub folder -> forecasts.

One member's failure never stops the others: it is reported with its reason, its run is marked failed, and
the flow ends partial. Every step finds its own finished work by digest, so the same command after kill -9
does only what is left.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from prefect import flow
from prefect.states import Completed, State

from flows.console import count
from flows.console import say as say_to_people
from flows.parameters import takes
from flows.prefect_server import check_server
from flows.runner import Runner, plain_failures
from flows.summary import Say, Summary
from flows.training_warnings import of_fleet
from schemas.errors import CpbError
from schemas.handover import Failure, FleetJob, FleetJudgement, FleetResult, SeriesRecord
from schemas.run import RunSpec
from tasks.evaluate import evaluate
from tasks.features import features
from tasks.forecast import forecast
from tasks.hub.publish import check_ready
from tasks.ingest import ingest
from tasks.plan import Plan, plan
from tasks.promote import promote
from tasks.publish import publish
from tasks.storage.digests import value_digest
from tasks.storage.urls import public_url
from tasks.tracking.runs import COMPLETE, FAILED, PARTIAL, REASON, finish, start_parent
from tasks.train import train
from tasks.training.fleet_files import fleet_folder, is_training, progress_so_far
from tasks.training.planning import training_code
from tasks.training.retention import FleetsInUse
from tasks.training.slots import check_device, plan_slots

Progress = Callable[[dict[str, Any]], None]


@dataclass
class Training:
    """A run up to its scores. `fleets` is to be released once nothing in the fleets' folders is needed any more."""

    summary: Summary
    results: list[FleetResult]
    judged: list[FleetJudgement]
    fleets: FleetsInUse


def run_train_all(
    spec: RunSpec, steps: Runner, say: Say = say_to_people, *, on_progress: Progress | None = None
) -> Summary:
    """Run the whole job and return its summary; errors as in `run_training`."""
    if spec.repo:
        check_ready(spec.repo)  # hours before the token is needed
    training = run_training(spec, steps, say, on_progress=on_progress)
    with run_of(training.summary.run_id):
        return _deliver(spec, training, steps, say)


def run_training(
    spec: RunSpec,
    steps: Runner,
    say: Say = say_to_people,
    *,
    fresh: bool = False,
    name: str = "train-all",
    on_progress: Progress | None = None,
) -> Training:
    """Ingest, compute features, plan, train, judge and log; `fresh` forgets what earlier runs trained.

    Raises:
        CpbError: nothing could be ingested, or nothing trained; a run that was begun is marked failed.
    """
    check_device(spec.device)
    summary, root = Summary(), spec.scope.root
    planned: Plan = steps.one(plan, spec, series_records(spec, steps, say, summary))
    summary.add(planned.failures, say)
    if not planned.jobs:
        reasons = "; ".join(f"{f.subject}: {f.reason}" for f in summary.failures[:3])
        raise CpbError(
            f"no series can be trained ({reasons}); check coins, since, as_of and source", code="no-series"
        )
    summary.series = len(planned.series)
    earlier = tuple(summary.failures)  # they belong to series, and so to a model of every fleet
    run = start_parent(_run_key(spec, planned.series), _params(spec), _tags(spec), name)
    summary.run_id = run.run_id
    in_use = FleetsInUse(root)
    with run_of(run.run_id):
        results = _train(spec, steps, say, planned.jobs, summary, fresh, on_progress)
        judged = []
        for job, result in zip(planned.jobs, results, strict=True):
            if result.members:
                judged.append(steps.one(evaluate, spec, run.run_id, job, result, root, earlier))
                summary.add(judged[-1].failures, say)
        summary.members = sum(len(fleet.judgements) for fleet in judged)
        if not summary.members:
            raise CpbError(f"no model could be trained; the first reason: {summary.failures[-1].reason}", code="no-model")
    say(f"judged {count(summary.members, 'member')} against the random walk")
    return Training(summary, results, judged, in_use)


def series_records(spec: RunSpec, steps: Runner, say: Say, summary: Summary) -> list[SeriesRecord]:
    """Ingest the scope and compute its features; what fails is added to the summary."""
    found = steps.one(ingest, spec.scope, spec.tail)
    summary.add(found.failures, say)
    say(f"ingested {len(found.series)} series ({found.requests} requests, {found.seconds:.1f} s)")
    outcomes = steps.each(features, [(spec.scope, series) for series in found.series])
    records = [one for one in outcomes if isinstance(one, SeriesRecord)]
    for series, one in zip(found.series, outcomes, strict=True):
        if not isinstance(one, SeriesRecord):
            summary.add([one if isinstance(one, Failure) else Failure.of(series, "features", one)], say)
    return records


def _train(
    spec: RunSpec,
    steps: Runner,
    say: Say,
    jobs: Sequence[FleetJob],
    summary: Summary,
    fresh: bool,
    on_progress: Progress | None,
) -> list[FleetResult]:
    """Train one fleet per architecture, side by side."""
    root, slots = spec.scope.root, plan_slots(spec.device, len(jobs))
    folders = [fleet_folder(root, job) for job in jobs]
    if fresh:
        for folder in folders:
            if not is_training(folder):  # another process's training of the same job is fresh enough
                shutil.rmtree(folder, ignore_errors=True)
    before = [progress_so_far(folder) for folder in folders]
    calls = [(job, root, slots, spec.train_timeout_s, on_progress) for job in jobs]
    results = []
    for job, known, found in zip(jobs, before, steps.each(train, calls), strict=True):
        if isinstance(found, Exception):
            raise found
        summary.add(found.failures, say)
        results.append(found)
        if found.members:
            say(f"trained {job.architecture}: {count(len(found.members), 'member')}" + (f" ({known})" if known else ""))
        for sentence in of_fleet(found):
            say(f"{job.architecture}: {sentence}")
    return results


def _deliver(spec: RunSpec, training: Training, steps: Runner, say: Say) -> Summary:
    """Promote, publish and forecast what was trained."""
    summary, scope = training.summary, spec.scope
    summary.champions = len(steps.one(promote, training.judged))
    training.fleets.release()
    if summary.champions:  # none: classifiers forecast no price
        try:
            summary.published = steps.one(publish, scope.home, scope.market, spec.repo)
        except CpbError as error:  # the Hub is away: models, runs and forecasts are good all the same
            summary.add([Failure.of(None, "publish", error)], say)
    issued = steps.one(forecast, scope, spec.tail)
    # Standing, not new: a run that was killed after its forecasts and repeated ends like an undisturbed one.
    summary.forecast_rows = issued.standing
    summary.add(issued.failures, say)
    packaged = f", packaged in {summary.published}" if summary.published else ""
    say(f"{count(summary.champions, 'champion')}, {count(summary.forecast_rows, 'forecast row')}{packaged}")
    finish(summary.run_id, PARTIAL if summary.failures else COMPLETE)
    return summary


@contextmanager
def run_of(run_id: str) -> Iterator[None]:
    """Mark the flow's run as failed, with the reason, whatever ends the block early."""
    try:
        yield
    except BaseException as error:
        finish(run_id, FAILED, {REASON: str(error) or type(error).__name__})
        raise


def _run_key(spec: RunSpec, records: Sequence[SeriesRecord]) -> str:
    """Digest of what was asked and of the data it met: the same command on the same data is the same run."""
    aside = {"coins", "timeframes", "source", "since", "as_of", "train_timeout_s", "tail"}
    asked = spec.model_dump(mode="json", exclude=aside) | spec.scope.model_dump(mode="json", exclude={"home", "source"})
    data = [(r.series.name, r.digest) for r in records]
    return value_digest([asked, data, training_code()])[:16]


def _params(spec: RunSpec) -> dict[str, Any]:
    source = public_url(spec.source) if spec.source else None
    return spec.model_dump(mode="json") | {"source": source, "architectures": list(spec.names)}


def _tags(spec: RunSpec) -> dict[str, str]:
    as_of = spec.scope.as_of
    return {"preset": spec.preset, "market": spec.market, "as_of": as_of.isoformat() if as_of else "newest"}


@flow(name="train-all", validate_parameters=False)
@takes(RunSpec)
@plain_failures
def train_all(spec: RunSpec) -> State:
    """Train, judge, promote and package the whole universe; parameters are the command line's."""
    summary = run_train_all(spec, Runner(prefect=True))
    name = "Partial" if summary.failures else "Completed"
    message = f"{count(summary.members, 'member')}, {len(summary.failures)} failed"
    return Completed(name=name, message=message, data=summary.as_json())


def in_prefect(spec: RunSpec) -> dict[str, Any]:
    """Run the same job as a Prefect flow run on the server in use; returns what `--json` prints."""
    check_server()
    # Called directly, a flow gives the data of the state that it returned.
    result: Any = train_all(**spec.model_dump())
    return dict(result)
