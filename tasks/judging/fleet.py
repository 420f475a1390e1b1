"""Scores of a fleet's members: judged if missing by resident processes (`judge.py`) on all free cores, corrected
jointly, and pooled per timeframe.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from schemas.errors import DamagedError, log
from schemas.failure import Failure
from schemas.handover import FleetPlan, ShardJob, ShardResult, TrainedMember
from tasks.judging.judges import JudgeDied, Judges
from tasks.judging.member import MemberScore
from tasks.judging.pool import PoolScore, apply_holm, judge_pools
from tasks.judging.score_files import known_score, score_file
from tasks.running.parallel import run_each
from tasks.running.progress import report_progress, reporting
from tasks.storage.model_folder import write_metrics
from tasks.training.shard import LOG, member_folder, shard_folder

_AT_ONCE = 4
"""Members per request: about half a second of work, so that all cores finish at about the same time."""


@dataclass(frozen=True)
class FleetScore:
    """Scores of a fleet's members by folder name (`BTCUSDT-1h`), the pools per timeframe, and the failures."""

    members: dict[str, MemberScore]
    pools: list[PoolScore]
    failures: list[Failure]


def judge_shard(
    judges: Judges,
    shard: Path,
    members: Sequence[TrainedMember],
    on_judged: Callable[[], None] = lambda: None,
) -> list[Failure]:
    """Judge members of the shard in a folder, and write their scores there; return a failure per unjudged member.

    `on_judged`: called after each member.
    """

    def ask(some: Sequence[TrainedMember]) -> list[Failure]:
        failures: list[Failure]
        try:
            failures = judges.ask((shard.absolute(), [m.name for m in some]), shard.absolute() / LOG)
        except JudgeDied as error:
            if len(some) > 1:  # find the member that caused it
                log.warning("%s; its models are judged singly", error)
                return [failure for member in some for failure in ask([member])]
            failures = [Failure.of(some[0].model, "evaluate", error)]
        for _ in some:
            on_judged()
        return failures

    # All requests at once, in the order of the members; the pool of judges is the limit.
    requests = [members[i : i + _AT_ONCE] for i in range(0, len(members), _AT_ONCE)]
    failures: list[Failure] = []
    for result in run_each([partial(ask, some) for some in requests], judges.number):
        if isinstance(result, Exception):
            raise result
        failures += result
    return failures


def judge_fleet(
    root: Path, plan: FleetPlan, trained: Iterable[tuple[ShardJob, ShardResult]], judges: Judges
) -> FleetScore:
    """Judge every trained member of a fleet; a member that cannot be judged becomes a failure.

    Args:
        root: the market's home, which holds the shards' folders.
        plan: the fleet.
        trained: its shards with their results, consumed as they finish training.
    """
    scores: dict[str, MemberScore] = {}
    folders: dict[str, Path] = {}
    failures: list[Failure] = []
    name, total, done = f"judge {plan.name}", len(plan.members), itertools.count(1)
    with ExitStack() as display:
        for nth, (job, result) in enumerate(trained):
            if nth == 0:  # until a shard has been trained nothing is judged
                display.enter_context(reporting(name, total, "models"))
            shard = shard_folder(root, job)
            places = {m.name: member_folder(shard, m.name) for m in result.members}
            folders |= places
            scores |= {member: score for member, place in places.items() if (score := known_score(place))}
            missing = [member for member in result.members if member.name not in scores]
            for _ in range(len(result.members) - len(missing)):
                report_progress(name, next(done), total, "models")
            failed = judge_shard(
                judges, shard, missing, lambda: report_progress(name, next(done), total, "models")
            )
            failures += failed
            # Scores travel by file, not by pipe: the file is what a repeated command finds, so what is used is what
            # is stored.
            lost = {failure.model for failure in failed}
            for member in (member for member in missing if member.model not in lost):
                try:
                    scores[member.name] = MemberScore.from_npz(score_file(places[member.name]))
                except (DamagedError, FileNotFoundError) as error:
                    failures.append(Failure.of(member.model, "evaluate", error))
    # In the order of the plan: the pools must not depend on the order in which the shards finished.
    names = [member.name for member in plan.members if member.name in scores]
    corrected = apply_holm([scores[name] for name in names])
    # Only now: p is corrected over all members of the fleet, so no member's verdict is final before the last is
    # judged.
    for name, score in zip(names, corrected, strict=True):
        write_metrics(folders[name], score.metrics, score.verdict)
    return FleetScore(
        dict(zip(names, corrected, strict=True)), judge_pools(corrected) if corrected else [], failures
    )
