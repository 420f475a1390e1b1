"""A run's shards train in a single queue; beside it, each fleet is judged as its shards end.

A device trains the next fleet while the scores, pictures and records of the one before are made.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from schemas.errors import CpbError, counted, log
from schemas.failure import Failure
from schemas.handover import FleetPlan, ShardJob, ShardResult
from tasks.running.parallel import run_each
from tasks.running.progress import PrintLine
from tasks.training.checkpoint import TRAINED, Checkpoint, progress_so_far
from tasks.training.cost import cost_text, fleet_cost
from tasks.training.fleet_progress import FleetProgress
from tasks.training.local import LocalEngine
from tasks.training.plan import job_key, shards_of
from tasks.training.ray import RayEngine
from tasks.training.shard import is_training, shard_folder

T = TypeVar("T")

Engine = LocalEngine | RayEngine
"""The resources that a run plans for, and that train its shards."""

TrainShard = Callable[[ShardJob, FleetProgress], ShardResult]
"""Trains a shard and tells its fleet's progress: the step `train` of a run and its engine."""

Arrivals = Iterator[tuple[ShardJob, ShardResult]]
"""The shards of a fleet with their results, in the order in which they end."""

ResumeMode = Literal["use", "expect", "forget"] | Checkpoint
"""How to use earlier training of the same command: continue it (`use`), continue it and report if there is none
(`expect`), discard it (`forget`), or discard it and start from a checkpoint at any path."""


def resume_shards(
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


def is_trained(fleet: FleetPlan, before: Mapping[str, str]) -> bool:
    """Whether earlier runs have trained all of a fleet; `before` is what `resume_shards` returned."""
    return all(before[job_key(shard)] == TRAINED for shard in fleet.shards)


def _resumed(fleet: FleetPlan, before: Mapping[str, str]) -> str:
    """Return what of a fleet earlier runs have trained, in words; "" for nothing."""
    return ", ".join(
        text if times == len(fleet.shards) else f"{times} of {counted(len(fleet.shards), 'part')} {text}"
        for text, times in Counter(before[job_key(shard)] for shard in fleet.shards).items()
        if text
    )


def failed_shard(job: ShardJob, error: Exception) -> ShardResult:
    """Return the result of a shard that an error ended: a failure of each of its members."""
    failures = tuple(Failure.of(member.model, "train", error) for member in job.members)
    return ShardResult(key=job_key(job), architecture=job.architecture, failures=failures)


def train_fleets(
    engine: Engine,
    fleets: Sequence[FleetPlan],
    train: TrainShard,
    ended: Callable[[ShardJob, ShardResult], None] = lambda _shard, _result: None,
) -> list[list[ShardResult]]:
    """Train the planned fleets, their shards in a single queue, and leave the engine.

    Args:
        ended: called with a shard and its result, as soon as the shard has ended.

    Returns:
        Per fleet, the result of each shard, in order. An error of `train`, whatever its kind, becomes a failure of each
        member of its shard: the other shards go on.
    """
    # All fleets' shards in one queue: a device that is done with a small fleet takes the next one at once.
    queue = shards_of(fleets)
    # One for each fleet, shared by its shards, which may train on several devices.
    progress: dict[str, FleetProgress] = {}
    for fleet in fleets:
        progress |= dict.fromkeys(map(job_key, fleet.shards), FleetProgress(fleet))
    results: dict[str, ShardResult] = {}

    def trained(shard: ShardJob) -> None:
        of_fleet = progress[job_key(shard)]
        try:
            result = train(shard, of_fleet)
        except Exception as error:  # noqa: BLE001 - an error of one shard is a failure of its members alone
            if not isinstance(error, CpbError | OSError):  # a fault of the program: its place is needed
                log.warning("a part of %s was lost", of_fleet.name, exc_info=error)
            result = failed_shard(shard, error)
        # First, as `ended` may wake the judges of the fleet.
        results[job_key(shard)] = result
        ended(shard, result)

    # The engine says how many shards it takes at a time, once it knows how many there are.
    run_each([partial(trained, shard) for shard in queue], engine.plan(len(queue)))
    engine.close()
    return [[results[job_key(shard)] for shard in fleet.shards] for fleet in fleets]


def train_and_judge(
    engine: Engine,
    fleets: Sequence[FleetPlan],
    train: TrainShard,
    judge: Callable[[FleetPlan, Arrivals], T],
    before: Mapping[str, str],
    report: PrintLine,
) -> tuple[list[list[ShardResult]], list[T]]:
    """Train the fleets' shards in a single queue; concurrently, judge each fleet as its shards end.

    Args:
        judge: called once per fleet, in a thread of its own, with the fleet's shards as they end.
        before: the progress of each shard from before, by its key (`resume_shards`).

    Returns:
        Per fleet, the results of its shards, and what `judge` returned: also for a fleet without a trained member.
    """
    endings: dict[str, Future[ShardResult]] = {job_key(s): Future() for fleet in fleets for s in fleet.shards}

    def train_queue() -> list[list[ShardResult]]:
        try:
            return train_fleets(
                engine, fleets, train, lambda shard, result: endings[job_key(shard)].set_result(result)
            )
        finally:
            for ending in endings.values():  # otherwise the judging threads would wait forever
                if not ending.done():
                    ending.set_exception(CpbError("the training was stopped"))

    def arrivals(fleet: FleetPlan) -> Arrivals:
        shards = {endings[job_key(shard)]: shard for shard in fleet.shards}
        for ending in as_completed(shards):
            yield shards[ending], ending.result()
        results = [ending.result() for ending in shards]
        facts = "; ".join(filter(None, [cost_text(fleet_cost(results)), _resumed(fleet, before)]))
        models = counted(sum(len(result.members) for result in results), "model")
        report(f"trained {fleet.name}: {models}{f' ({facts})' if facts else ''}")

    # A thread for the queue and one a fleet; these wait, and their work is done by processes.
    calls: list[Callable[[], Any]] = [
        train_queue,
        *(partial(judge, fleet, arrivals(fleet)) for fleet in fleets),
    ]
    outcomes: list[Any] = run_each(calls, len(calls))
    # The training's error first: those of the judges follow from it.
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    results, *judged = outcomes
    return results, judged
