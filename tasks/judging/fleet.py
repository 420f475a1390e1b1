"""Scores of a fleet's members: judged if missing, corrected jointly, and pooled per timeframe."""

import itertools
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import DamagedError
from schemas.handover import Failure, FleetPlan, ShardJob, ShardResult
from tasks.judging.judges import Judges
from tasks.judging.member import MemberScore
from tasks.judging.pool import PoolScore, apply_holm, judge_pools
from tasks.running.progress import tell, telling
from tasks.storage.model_folder import PICTURES, REFERENCE, picture_damage, read_reference, write_metrics
from tasks.storage.records import code_digest, member_subject
from tasks.training.shard import member_folder, shard_folder

log = logging.getLogger("cpb")


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
    name, total, done = f"judge {plan.architecture}", len(plan.members), itertools.count(1)
    with telling(name, total, "members"):
        for job, result in trained:
            shard = shard_folder(root, job)
            places = {m.name: member_folder(shard, m.name) for m in result.members}
            folders |= places
            scores |= {member: score for member, place in places.items() if (score := known_score(place))}
            missing = [member for member in result.members if member.name not in scores]
            for _ in range(len(result.members) - len(missing)):
                tell(name, next(done), total, "members")
            failed = judges.judge(shard, missing, lambda: tell(name, next(done), total, "members"))
            failures += failed
            lost = {failure.model for failure in failed}
            for member in (one for one in missing if one.model not in lost):
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
    if any(picture_damage(path) for path in pictures):
        return None
    try:
        score = MemberScore.from_npz(kept)
        is_classifier = "test_accuracy" in score.metrics
        subject = member_subject(folder / "model" / REFERENCE)
        return score if is_classifier or read_reference(folder / "model", of=subject) else None
    except FileNotFoundError:
        return None
    except DamagedError as error:
        log.warning("%s", error)
        return None
