"""Checks the files of champions against the digests that were recorded when they were registered.

A champion cannot be made again without a training. But the folder of the fleet it comes from may still hold its
files: those are copied back where their sha256 is the recorded one. What makes the folder an MLflow model is written
again.
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
from tasks.tracking.connection import alone, find_run
from tasks.tracking.copies import find_copy, training_command
from tasks.tracking.flavour import add_flavour, damaged
from tasks.tracking.registry import Champion, champions
from tasks.tracking.store import Store, open_store

_CHANGED = "it is not the file that was registered (its sha256 differs)"


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
        yield from _mlflow_damage(store, home, champion, repair, seen)


def _damaged(champion: Champion, seen: Seen) -> Iterator[tuple[str, str]]:
    """Yield the name of each damaged file in a champion's folder, and the reason."""
    digests = champion.digests
    for name in dict.fromkeys((*NEEDED, *digests)):
        path = champion.folder / name
        seen(path)
        if not path.is_file():
            yield name, "it is missing"
        elif name in digests and file_digest(path) != digests[name]:
            yield name, _CHANGED
    if not digests and champion.damage:  # registered by an older release
        yield next((n for n in NEEDED if n in champion.damage), NEEDED[0]), champion.damage


def _copy_back(copy: Path, path: Path) -> None:
    # The folder of artifacts, ROOT/RUN/artifacts, may be gone; without its ROOT, a disk is not mounted.
    if path.parent.parent.parent.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft:
        shutil.copyfile(copy, draft)


def _mlflow_damage(
    store: Store, home: Path, champion: Champion, repair: bool, seen: Seen
) -> Iterator[Damage]:
    """Yield each damaged file that MLflow alone reads; such files are written anew, by the library of today."""
    for name in champion.mlflow_files:
        seen(champion.folder / name)
    wrong = damaged(champion.folder, champion.mlflow_files)
    told = [
        (champion.folder / n, "it is missing" if not (champion.folder / n).is_file() else _CHANGED)
        for n in wrong
    ]
    repaired = bool(wrong) and repair and _write_again(store, champion)
    for path, reason in told:
        yield damage_at(home.resolve(), path, reason, VERIFY, repaired)


def _write_again(store: Store, champion: Champion) -> bool:
    run = find_run(store, champion.run_id)
    if run is None or store.read_only:
        return False
    with alone(store):
        digests = add_flavour(store, run, str(champion.folder), champion.folder, champion.series.timeframe)
    return bool(digests) and not damaged(champion.folder, digests)
