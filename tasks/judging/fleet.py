"""Scores of a fleet's members: judged if missing by resident processes (`judge.py`) on all free cores, corrected
jointly, and pooled per timeframe.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType

from schemas.errors import CpbError, DamagedError, log
from schemas.failure import Failure
from schemas.handover import FleetPlan, ShardJob, ShardResult, TrainedMember
from tasks.judging.member import MemberScore
from tasks.judging.pool import PoolScore, apply_holm, judge_pools
from tasks.running.parallel import report_progress, reporting, run_each
from tasks.running.resident import Cores, Died, Pool, WorkerProcess
from tasks.storage.model_folder import PICTURES, REFERENCE, read_reference, write_metrics
from tasks.storage.records import member_subject, read_sealed
from tasks.storage.source_code import code_digest
from tasks.training.shard import LOG, member_folder, shard_folder

JUDGE = "tasks.judging.judge"
"""The module that the processes run."""

_AT_ONCE = 4
"""Members per request: about half a second of work, so that all cores finish at about the same time."""


class Judges:
    """A judge per core, started on first use and stopped at the end of the block.

    `cores`: the cores shared with trainers.
    """

    def __init__(self, cores: Cores) -> None:
        self._cores = cores
        env = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        self._pool = Pool([WorkerProcess(JUDGE, env) for _ in range(cores.number)])

    def __enter__(self) -> "Judges":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.stop()

    def judge(
        self, shard: Path, members: Sequence[TrainedMember], on_judged: Callable[[], None] = lambda: None
    ) -> list[Failure]:
        """Judge members of the shard in a folder, and write their scores there; return a failure per unjudged member.

        `on_judged`: called after each member.
        """
        requests = [tuple(members[i : i + _AT_ONCE]) for i in range(0, len(members), _AT_ONCE)]
        calls = [partial(self._judge_some, shard, some, on_judged) for some in requests]
        failures: list[Failure] = []
        for result in run_each(calls, self._cores.number):
            if isinstance(result, Exception):
                raise result
            failures += result
        return failures

    def _judge_some(
        self, shard: Path, members: Sequence[TrainedMember], on_judged: Callable[[], None]
    ) -> list[Failure]:
        request = shard.absolute(), [member.name for member in members]
        try:
            with self._pool.lent() as judge, self._cores.held(1):
                failures: list[Failure] = judge.call(request, shard.absolute() / LOG)
        except Died as end:
            if len(members) > 1:  # find the member that caused it
                log.warning("a judge ended with code %d; its members are judged singly", end.returncode)
                return [f for member in members for f in self._judge_some(shard, [member], on_judged)]
            error = CpbError(
                f"the process that judges ended with code {end.returncode}: {end.last}", code="judge-died"
            )
            failures = [Failure.of(members[0].model, "evaluate", error)]
        for _ in members:
            on_judged()
        return failures


@dataclass(frozen=True)
class FleetScore:
    """Scores of a fleet's members by folder name (`BTCUSDT-1h`), the pools per timeframe, and the failures."""

    members: dict[str, MemberScore]
    pools: list[PoolScore]
    failures: list[Failure]


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
                display.enter_context(reporting(name, total, "members"))
            shard = shard_folder(root, job)
            places = {m.name: member_folder(shard, m.name) for m in result.members}
            folders |= places
            scores |= {member: score for member, place in places.items() if (score := known_score(place))}
            missing = [member for member in result.members if member.name not in scores]
            for _ in range(len(result.members) - len(missing)):
                report_progress(name, next(done), total, "members")
            failed = judges.judge(shard, missing, lambda: report_progress(name, next(done), total, "members"))
            failures += failed
            lost = {failure.model for failure in failed}
            for member in (member for member in missing if member.model not in lost):
                try:
                    scores[member.name] = MemberScore.from_npz(score_file(places[member.name]))
                except (DamagedError, FileNotFoundError) as error:
                    failures.append(Failure.of(member.model, "evaluate", error))
    # In the order of the plan: the pools must not depend on the order in which the shards finished.
    names = [member.name for member in plan.members if member.name in scores]
    corrected = apply_holm([scores[name] for name in names])
    for name, score in zip(names, corrected, strict=True):
        write_metrics(folders[name] / "model", score.metrics, score.verdict)
    return FleetScore(
        dict(zip(names, corrected, strict=True)), judge_pools(corrected) if corrected else [], failures
    )


def score_file(folder: Path) -> Path:
    """Return the score file of a member, with its losses per origin; scores of another code version are not read."""
    return folder / f"score-{code_digest('tasks/judging/judge.py')}.npz"


def stored_score(root: Path, key: str) -> MemberScore | None:
    """Return the score of a member by its run's key, `FLEET/BTCUSDT-1h`; None if it is not stored on this machine."""
    if not re.fullmatch(r"[0-9a-f]+/[\w-]+", key):
        return None
    shard, name = key.split("/")
    try:
        return MemberScore.from_npz(score_file(root / "fleets" / shard / "members" / name))
    except (FileNotFoundError, DamagedError):  # `cpb verify` reports damage
        return None


def known_score(folder: Path) -> MemberScore | None:
    """Return a stored score; None if it, or a file created with it, is missing or damaged."""
    kept = score_file(folder)
    if not kept.exists():
        return None
    pictures = [p for name in PICTURES if (p := folder / "model" / name).exists()]
    try:
        for path in pictures:
            read_sealed(path)
        score = MemberScore.from_npz(kept)
        is_classifier = "test_accuracy" in score.metrics
        subject = member_subject(folder / "model" / REFERENCE)
        return score if is_classifier or read_reference(folder / "model", of=subject) else None
    except FileNotFoundError:
        return None
    except DamagedError as error:
        log.warning("%s", error)
        return None
