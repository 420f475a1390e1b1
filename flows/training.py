"""A run up to its scores, shared by `train` and `train-all`: candles, features, plan, train, evaluate.

Also the flow's run in MLflow: found again by a digest of its inputs, and never left open.
"""

import itertools
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

from flows.console import say as say_to_people
from flows.runner import Runner, Say, Summary, series_records
from schemas.errors import CpbError, MemberError, count
from schemas.handover import FleetJudgement, FleetPlan, SeriesRecord, ShardJob, ShardResult
from schemas.run import RunSpec, profile_sizes
from tasks.evaluate import evaluate
from tasks.judging.fleet import Judges
from tasks.market.sources import check_source
from tasks.plan import Plan, plan
from tasks.running.parallel import run_each
from tasks.storage.files import public_url
from tasks.storage.locks import check_interrupted
from tasks.storage.records import value_digest
from tasks.tracking.runs import FAILED, OpenRun, finish, kill, log_metrics, run_name, scope_tags, start_parent
from tasks.tracking.store import (
    AS_OF,
    COMMAND,
    LEFT_OUT,
    NEWEST,
    REASON,
    UNUSABLE,
    check_place,
    open_store,
    store_errors,
)
from tasks.tracking.wandb import check_installed, is_wanted, mirror
from tasks.train import Engine, opened_engine, train
from tasks.training.plan import job_key, shards_of, training_code
from tasks.training.progress import FleetProgress, busy_share
from tasks.training.shard import Checkpoint, ShardsInUse, is_training, progress_so_far, shard_folder


def start_run(
    spec: RunSpec, records: Sequence[SeriesRecord], name: str, left_out: str | None = None
) -> OpenRun:
    """Open the run of a specification on its data: the same command on the same data continues the same run.

    Args:
        name: name of the command.
        left_out: what a nightly run does not train, and why.
    """
    as_of = spec.scope.as_of.isoformat() if spec.scope.as_of else NEWEST
    about = {"preset": spec.preset, "market": spec.market, AS_OF: as_of, COMMAND: name, LEFT_OUT: left_out}
    tags = scope_tags(spec, records) | about
    params = spec.model_dump(mode="json") | {"architectures": list(spec.names)}
    params["source"] = public_url(spec.source) if spec.source else None
    if spec.pairs:
        params["pairs"] = ",".join(spec.pairs)
    return start_parent(_run_key(spec, records), params, tags, run_name(name, spec, records))


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


def mirror_to_wandb(spec: RunSpec, run_id: str, say: Say) -> None:
    """Copy a finished run to Weights & Biases if requested; errors are only printed."""
    if is_wanted(spec.wandb) and (problem := mirror(run_id, spec.scope.root)):
        say(f"cpb: {problem}")


def _run_key(spec: RunSpec, records: Sequence[SeriesRecord]) -> str:
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
    }
    options = spec.model_dump(mode="json", exclude=aside) | spec.scope.model_dump(
        mode="json", exclude={"home", "source", "offline"}
    )
    data = [(r.series.name, r.digest) for r in records]
    return value_digest([options, data, training_code()])[:16]


Earlier = Literal["use", "expect", "forget"] | Checkpoint
"""How to use earlier training of the same command: continue it (`use`), continue it and report if there is none
(`expect`), discard it (`forget`), or discard it and start from a checkpoint at any path."""


@dataclass
class Training:
    """A run up to its scores.

    `results`: shard results, per fleet. Release `in_use` once the shards' folders are no longer needed.
    """

    summary: Summary
    results: list[list[ShardResult]]
    judged: list[FleetJudgement]
    stopped: Sequence[SeriesRecord]
    in_use: ShardsInUse


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
        CpbError: nothing could be ingested or trained; a started run is marked failed. Before any download: the device,
            the source or MLflow's artifact folder cannot be used, or wandb is not installed.
    """
    check_source(spec.scope)
    check_place(open_store())
    if is_wanted(spec.wandb):
        check_installed()
    if sizes := profile_sizes(spec.profile, spec.preset):
        used = ", ".join(f"{name} {spec.overrides[name]}" for name in sizes)
        say(f"profile {spec.profile} with preset {spec.preset}: {used} (a model other than the preset's own)")
    with opened_engine(spec) as engine, Judges(engine.cores) as judges:
        return _run(spec, steps, engine, judges, say, earlier, name)


def _run(
    spec: RunSpec, steps: Runner, engine: Engine, judges: Judges, say: Say, earlier: Earlier, name: str
) -> Training:
    summary, root = Summary(), spec.scope.root
    planned: Plan = steps.one(plan, spec, series_records(spec, steps, say, summary), engine.gpus)
    summary.add(planned.failures, say)
    for record in planned.stopped:
        summary.stopped.append(record.series.name)
        last = datetime.fromtimestamp(record.last_us / 1e6, UTC)
        say(f"{record.series} has stopped trading (last candle {last:%Y-%m-%d}) and is left out")
    if not planned.fleets:
        frozen = all(failure.code == "frozen" for failure in summary.failures)  # nothing failed: exit 3
        raise (MemberError if summary.failures and frozen else CpbError)(
            f"no series can be trained ({summary.reasons}); check coins, since, as_of and source",
            code="no-series",
        )
    if planned.idle:
        say(planned.idle)
    summary.series = len(planned.series)
    trained = {record.series for record in planned.series}  # among them series whose price level leaps
    # failed series, and therefore a failed member of every fleet
    left_out = tuple(failure for failure in summary.failures if failure.series not in trained)
    run = start_run(spec, planned.series, name, planned.idle or None)
    summary.run_id = run.run_id
    in_use = ShardsInUse(root)
    with run_of(run.run_id):
        before = _begun_before(root, planned.fleets, earlier, say)
        began = time.time()

        def judge(fleet: FleetPlan, trained: Arrivals) -> FleetJudgement:
            return steps.one(evaluate, spec, run.run_id, fleet, trained, root, judges, left_out)  # type: ignore[no-any-return]

        train_all = partial(train_fleets, spec, steps, engine, planned.fleets)
        results, judged = _train_and_judge(train_all, planned.fleets, judge, before, say)
        for found in results:
            summary.add([failure for one in found for failure in one.failures], say)
        for one in judged:
            summary.add(one.failures, say)
        for fleet, found in zip(planned.fleets, results, strict=True):
            for sentence in fleet_warnings(found):
                summary.warnings.append(f"{fleet.architecture}: {sentence}")
                say(summary.warnings[-1])
        if isinstance(earlier, Checkpoint) and not any(one.members for one in results[0]):
            earlier.take_out_of(shard_folder(root, planned.fleets[0].shards[0]))
        summary.members = sum(len(fleet.judgements) for fleet in judged)
        if not summary.members:
            raise CpbError(
                f"no model could be trained; the first reason: {summary.failures[-1].reason}", code="no-model"
            )
    work = [one.work for found in results for one in found if one.work and one.work.begin >= began]
    busy = busy_share(work, engine.cores.number) if work else {}
    log_metrics(run.run_id, {"members": summary.members, "failed": len(summary.failures)} | busy)
    board = f"`cpb leaderboard --run {run.run_id[:8]}`"
    say(f"judged {count(summary.members, 'member')} against the random walk ({board})")
    return Training(summary, results, judged, planned.stopped, in_use)


def _begun_before(root: Path, fleets: Sequence[FleetPlan], earlier: Earlier, say: Say) -> dict[str, str]:
    """Apply `earlier` to each shard's folder; return the progress from before, by the shard's key."""
    folders = {job_key(shard): shard_folder(root, shard) for fleet in fleets for shard in fleet.shards}
    if earlier not in ("use", "expect"):
        for folder in folders.values():
            if not is_training(folder):  # another process is training it now: keep it
                shutil.rmtree(folder, ignore_errors=True)
    if isinstance(earlier, Checkpoint):
        earlier.put_into(shard_folder(root, fleets[0].shards[0]))
    before = {key: progress_so_far(folder) for key, folder in folders.items()}
    if earlier == "expect" and not any(before.values()):
        say(
            "nothing to resume: no training with these options on these candles has begun; starting from scratch"
        )
    return before


class Arrivals:
    """A fleet's shards with their results as they finish training; iterating waits for the next shard.

    A shard's error is raised in the iteration.
    """

    def __init__(self, fleet: FleetPlan) -> None:
        self._expected = len(fleet.shards)
        self._found: list[tuple[ShardJob, ShardResult | Exception]] = []
        self._changed = threading.Condition()

    def put(self, shard: ShardJob, found: ShardResult | Exception) -> list[ShardResult | Exception]:
        """Add a shard's result or error; return the results of all shards after the last shard, otherwise nothing."""
        with self._changed:
            self._found.append((shard, found))
            self._changed.notify_all()
            return [one for _, one in self._found] if len(self._found) == self._expected else []

    def __iter__(self) -> Iterator[tuple[ShardJob, ShardResult]]:
        """Yield the shards; each of any number of iterations starts at the first shard."""
        for number in range(self._expected):
            with self._changed:
                while len(self._found) <= number:
                    self._changed.wait(0.2)
                    check_interrupted()
                shard, found = self._found[number]
            if isinstance(found, Exception):
                raise found
            yield shard, found


def _train_and_judge(
    train_all: Callable[
        [Callable[[ShardJob, ShardResult | Exception], None]], list[list[ShardResult | Exception]]
    ],
    fleets: Sequence[FleetPlan],
    judge: Callable[[FleetPlan, Arrivals], FleetJudgement],
    before: Mapping[str, str],
    say: Say,
) -> tuple[list[list[ShardResult]], list[FleetJudgement]]:
    """Train the fleets' shards in a single queue; concurrently, judge and log each fleet as its shards finish.

    Returns:
        The shards' results per fleet, and the judgement of each fleet with at least one trained member.
    """
    arrivals = {fleet.architecture: Arrivals(fleet) for fleet in fleets}
    plans = {fleet.architecture: fleet for fleet in fleets}

    def trained(shard: ShardJob, found: ShardResult | Exception) -> None:
        ended = arrivals[shard.architecture].put(shard, found)
        results = [one for one in ended if isinstance(one, ShardResult)]
        members = sum(len(one.members) for one in results)
        if members and len(results) == len(ended):  # a shard's error ends the run with its own message
            known = _known(plans[shard.architecture], before)
            end = f" ({known})" if known else ""
            say(f"trained {shard.architecture}: {count(members, 'member')}{end}")

    def trained_all() -> list[list[ShardResult | Exception]]:
        try:
            return train_all(trained)
        except Exception as error:  # otherwise the judging threads would wait forever
            for fleet in fleets:
                arrivals[fleet.architecture].put(fleet.shards[0], error)
            raise

    def judged(fleet: FleetPlan) -> FleetJudgement | None:
        arrived = arrivals[fleet.architecture]
        return judge(fleet, arrived) if any(result.members for _, result in arrived) else None

    results: Any
    calls: list[Callable[[], Any]] = [trained_all, *(partial(judged, fleet) for fleet in fleets)]
    results, *found = run_each(calls, len(calls))
    shards = itertools.chain.from_iterable(results if isinstance(results, list) else ())
    for one in (results, *shards, *found):
        if isinstance(one, Exception):
            raise one
    return results, [one for one in found if isinstance(one, FleetJudgement)]


def _known(fleet: FleetPlan, before: Mapping[str, str]) -> str:
    """Return a text about the part of a fleet that an earlier call of the same command has trained."""
    found = Counter(text for shard in fleet.shards if (text := before[job_key(shard)]))
    number = len(fleet.shards)
    return ", ".join(
        text if times == number else f"{times} of {count(number, 'shard')} {text}"
        for text, times in found.items()
    )


def train_fleets(
    spec: RunSpec,
    steps: Runner,
    engine: Engine,
    fleets: Sequence[FleetPlan],
    then: Callable[[ShardJob, ShardResult | Exception], None] = lambda shard, found: None,
) -> list[list[ShardResult | Exception]]:
    """Train the planned fleets, their shards in a single queue, and leave the engine.

    Args:
        then: called with a shard and its result, or the step's error, as soon as the shard has ended.

    Returns:
        Per fleet, the result or the step's error for each shard, in order.
    """
    queue, progress = shards_of(fleets), {fleet.architecture: FleetProgress(fleet) for fleet in fleets}
    at_once = engine.plan(len(queue))
    calls = [
        (shard, spec.scope.root, engine, spec.train_timeout_s, progress[shard.architecture])
        for shard in queue
    ]
    ended = steps.each(train, calls, workers=at_once, then=lambda index, found: then(queue[index], found))
    engine.close()
    found = dict(zip(map(job_key, queue), ended, strict=True))
    return [[found[job_key(shard)] for shard in fleet.shards] for fleet in fleets]


def fleet_warnings(shards: Sequence[ShardResult]) -> list[str]:
    """Return the distinct warnings about a fleet's members, each with the number of members it applies to."""
    members = [member for one in shards for member in one.members]
    number = len(members)
    found = Counter(text for member in members for text in member_warnings(member.report))
    return [
        text if times == number else f"{text} ({times} of {count(number, 'member')})"
        for text, times in found.items()
    ]


def member_warnings(report: dict[str, Any]) -> list[str]:
    """Return the warnings in the report of a member's training (`TrainedMember.report`)."""
    found = []
    if report.get("stopped") == "nan":
        found.append(f"stopped early: {report['reason']}")
    if at_once := report.get("halved_to"):
        found.append(f"memory ran out: the fleet was halved, to {count(at_once, 'model')} at once")
    if report.get("accumulate", 1) > 1:
        found.append(f"memory ran out: each batch was split into {report['accumulate']} parts")
    return [*found, *filter(None, [report.get("device_warning")])]
