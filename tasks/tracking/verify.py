"""Checks the files of champions against the digests that were recorded when they were registered.

A champion cannot be made again without a training. But the folder of the fleet it comes from may still hold its
files: those are copied back where their sha256 is the recorded one.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

from schemas.errors import CpbError
from schemas.handover import Damage
from schemas.identity import SPOT
from tasks.storage.damage import VERIFY, Seen, damage_at, unseen
from tasks.storage.digests import file_digest
from tasks.storage.files import replacing
from tasks.storage.model_folder import NEEDED
from tasks.tracking.copies import find_copy, training_command
from tasks.tracking.registry import Champion, champions
from tasks.tracking.store import Store, open_store


def verify(
    home: Path, market: str = SPOT, *, repair: bool = False, seen: Seen = unseen, store: Store | None = None
) -> Iterator[Damage]:
    """Yield each damaged file of a market's champions; a folder outside the home is named as it is.

    Args:
        repair: copy files back from the fleet that the champion comes from, or from the published folder.
        seen: called with each file that is checked.

    Raises:
        CpbError: the MLflow store cannot be read (but not where there is none yet).
    """
    try:
        store = store or open_store(create=False)
    except CpbError as error:
        if error.code == "no-store":
            return
        raise
    for champion in champions(market=market, store=store):
        for name, reason in _damaged(champion, seen):
            path = champion.folder / name
            copy = find_copy(home, champion, name)
            if repair and copy:
                _copy_back(copy, path)
            command = VERIFY if copy else training_command(champion)
            yield damage_at(home.resolve(), path, reason, command, repair and copy is not None)


def _damaged(champion: Champion, seen: Seen) -> Iterator[tuple[str, str]]:
    """Yield the name of each damaged file in a champion's folder, and the reason."""
    digests = champion.digests
    for name in dict.fromkeys((*NEEDED, *digests)):
        path = champion.folder / name
        seen(path)
        if not path.is_file():
            yield name, "it is missing"
        elif name in digests and file_digest(path) != digests[name]:
            yield name, "it is not the file that was registered (its sha256 differs)"
    if not digests and champion.damage:  # registered by an older release
        yield next((n for n in NEEDED if n in champion.damage), NEEDED[0]), champion.damage


def _copy_back(copy: Path, path: Path) -> None:
    # The folder of artifacts, ROOT/RUN/artifacts, may be gone; without its ROOT, a disk is not mounted.
    if path.parent.parent.parent.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft:
        shutil.copyfile(copy, draft)
