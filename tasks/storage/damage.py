"""What every check of stored files shares: how damage is reported, and who is told which file is being checked."""

from collections.abc import Callable
from pathlib import Path

from schemas.handover import Damage

VERIFY = "cpb verify --repair"
"""The command that sets damaged files aside, and makes or fetches again what can be."""

REPAIRED = "repaired"
"""What was done about a file that is whole again; one that was only removed or set aside has an outcome of its own."""

Seen = Callable[[Path], None]
"""Called with each file before it is checked."""


def unseen(_path: Path) -> None:
    """Tell nobody."""


def damage_at(
    home: Path, path: Path, reason: str, command: str, repaired: bool = False, *, outcome: str = REPAIRED
) -> Damage:
    """Return the record of a damaged file; one outside the home keeps its path as it is.

    Args:
        outcome: what was done about it, where `repaired`.
    """
    place = path.relative_to(home) if path.is_relative_to(home) else path
    return Damage(
        path=place.as_posix(), reason=reason, command=command, repaired=repaired,
        outcome=outcome if repaired else "",
    )  # fmt: skip
