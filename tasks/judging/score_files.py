"""The stored scores of a shard's members, a file each: written by their judge, read by whoever compares models."""

import re
from pathlib import Path

from schemas.errors import DamagedError, log
from tasks.judging.member import MemberScore
from tasks.storage.sealed import check_sealed
from tasks.storage.source_code import code_digest


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
    """Return a stored score; None if it, or another file of its folder, is missing or damaged."""
    try:
        # Its name holds a digest of the judging code: a score by older rules is not found, and made again.
        score = MemberScore.from_npz(score_file(folder))
        check_sealed(folder)
    except FileNotFoundError:
        return None
    except DamagedError as error:
        log.warning("%s", error)
        return None
    return score
