"""A run up to its scores, as `train` and `train-all` share it: candles, features, plan, train, evaluate."""

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from flows.console import say as say_to_people
from flows.data import series_records
from flows.fleets import train_fleets
from flows.runner import Runner
from flows.summary import Say, Summary
from flows.tracked_run import run_of, start_run
from flows.training_warnings import fleet_warnings
from schemas.errors import CpbError
from schemas.handover import FleetJudgement, FleetPlan, FleetResult, SeriesRecord
from schemas.presets import profile_sizes
from schemas.run import RunSpec
from schemas.wording import count
from tasks.evaluate import evaluate
from tasks.market.sources import check_source
from tasks.plan import Plan, plan
from tasks.tracking.artifacts import check_place
from tasks.tracking.run_ids import short_id
from tasks.tracking.runs import log_metrics
from tasks.tracking.store import open_store
from tasks.tracking.wandb_mirror import check_installed, is_wanted
from tasks.training.engine import Engine, check_engine, opened_engine
from tasks.training.fleet_files import fleet_folder, is_training, progress_so_far
from tasks.training.planning import job_key
from tasks.training.resume import Checkpoint
from tasks.training.retention import FleetsInUse
from tasks.training.shared_shards import check_shared_store

Earlier = Literal["use", "expect", "forget"] | Checkpoint
"""What becomes of what the same command has trained before: gone on from, the same and said where there is nothing,
trained anew, or anew from a checkpoint that lies anywhere."""


@dataclass
class Training:
    """A run up to its scores.

    `results`: of each fleet's shards. `fleets` is to be released once nothing in their folders is needed any more.
    """

    summary: Summary
    results: list[list[FleetResult]]
    judged: list[FleetJudgement]
    stopped: Sequence[SeriesRecord]
    fleets: FleetsInUse


def run_training(
    spec: RunSpec,
    steps: Runner,
    say: Say = say_to_people,
    *,
    earlier: Earlier = "use",
    name: str = "train-all",
) -> Training:
    """Ingest, compute features, plan, train, judge and log.

    Raises:
        CpbError: nothing could be ingested, or nothing trained; a run that was begun is marked failed. Before anything
            is fetched: the device, the source or MLflow's place cannot be used, or wandb is not installed.
    """
    check_engine(spec)
    check_shared_store(spec.scope.home)
    check_source(spec.scope)
    check_place(open_store())
    if is_wanted(spec.wandb):
        check_installed()
    if sizes := profile_sizes(spec.profile, spec.preset):
        used = ", ".join(f"{name} {spec.overrides[name]}" for name in sizes)
        say(f"profile {spec.profile} with preset {spec.preset}: {used} (another model than the preset's own)")
    with opened_engine(spec) as engine:
        return _run(spec, steps, engine, say, earlier, name)


def _run(spec: RunSpec, steps: Runner, engine: Engine, say: Say, earlier: Earlier, name: str) -> Training:
    summary, root = Summary(), spec.scope.root
    planned: Plan = steps.one(plan, spec, series_records(spec, steps, say, summary), engine.gpus)
    summary.add(planned.failures, say)
    for record in planned.stopped:
        summary.stopped.append(record.series.name)
        last = datetime.fromtimestamp(record.last_us / 1e6, UTC)
        say(f"{record.series} has stopped trading (last candle {last:%Y-%m-%d}) and is left out")
    if not planned.fleets:
        reasons = "; ".join(f"{f.subject}: {f.reason}" for f in summary.failures[:3])
        raise CpbError(
            f"no series can be trained ({reasons}); check coins, since, as_of and source", code="no-series"
        )
    summary.series = len(planned.series)
    left_out = tuple(summary.failures)  # they belong to series, and so to a model of every fleet
    run = start_run(spec, planned.series, name)
    summary.run_id = run.run_id
    in_use = FleetsInUse(root)
    with run_of(run.run_id):
        results = _train(spec, steps, engine, say, planned.fleets, summary, earlier)
        judged = []
        for fleet, found in zip(planned.fleets, results, strict=True):
            if any(one.members for one in found):
                judged.append(steps.one(evaluate, spec, run.run_id, fleet, found, root, left_out))
                summary.add(judged[-1].failures, say)
        summary.members = sum(len(fleet.judgements) for fleet in judged)
        if not summary.members:
            raise CpbError(
                f"no model could be trained; the first reason: {summary.failures[-1].reason}", code="no-model"
            )
    log_metrics(run.run_id, {"members": summary.members, "failed": len(summary.failures)})
    board = f"`cpb leaderboard --run {short_id(run.run_id)}`"
    say(f"judged {count(summary.members, 'member')} against the random walk ({board})")
    return Training(summary, results, judged, planned.stopped, in_use)


def _train(
    spec: RunSpec,
    steps: Runner,
    engine: Engine,
    say: Say,
    fleets: Sequence[FleetPlan],
    summary: Summary,
    earlier: Earlier,
) -> list[list[FleetResult]]:
    """Train the fleets of all architectures, side by side."""
    root = spec.scope.root
    folders = {job_key(shard): fleet_folder(root, shard) for fleet in fleets for shard in fleet.shards}
    again = earlier in ("use", "expect")
    if not again:
        for folder in folders.values():
            if not is_training(folder):  # another process's training of the same job is fresh enough
                shutil.rmtree(folder, ignore_errors=True)
    if isinstance(earlier, Checkpoint):
        earlier.put_into(fleet_folder(root, fleets[0].shards[0]))
    before = {key: progress_so_far(folder) for key, folder in folders.items()}
    if earlier == "expect" and not any(before.values()):
        say("nothing to resume: no training with these options on these candles was begun; starting anew")
    results = []
    for fleet, found in zip(fleets, train_fleets(spec, steps, engine, fleets, again=again), strict=True):
        good = [one for one in found if isinstance(one, FleetResult)]
        members = sum(len(one.members) for one in good)
        if isinstance(earlier, Checkpoint) and not members:
            earlier.take_out_of(fleet_folder(root, fleets[0].shards[0]))
        if error := next((one for one in found if isinstance(one, Exception)), None):
            raise error
        summary.add([failure for one in good for failure in one.failures], say)
        results.append(good)
        if members:
            known = _known(fleet, before)
            say(
                f"trained {fleet.architecture}: {count(members, 'member')}" + (f" ({known})" if known else "")
            )
        for sentence in fleet_warnings(good):
            summary.warnings.append(f"{fleet.architecture}: {sentence}")
            say(summary.warnings[-1])
    return results


def _known(fleet: FleetPlan, before: Mapping[str, str]) -> str:
    """Return what of a fleet an earlier call of the same command had done, as people read it."""
    found = Counter(text for shard in fleet.shards if (text := before[job_key(shard)]))
    number = len(fleet.shards)
    return ", ".join(
        text if times == number else f"{times} of {count(number, 'shard')} {text}"
        for text, times in found.items()
    )
