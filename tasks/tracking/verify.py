"""Checks the files of champions against the digests that were recorded when they were registered.

A champion cannot be made again without a training. But the folder of the fleet it comes from, or a copy that this
machine fetched, may still hold its files: those are copied back where their sha256 is the recorded one. What makes
the folder an MLflow model is written again. Of a tracking server's champions all files are fetched to be checked.
"""

from collections.abc import Iterator
from pathlib import Path

from schemas.errors import CpbError
from schemas.handover import Damage
from schemas.identity import SPOT
from tasks.storage.damage import VERIFY, Seen, damage_at, unseen
from tasks.storage.digests import file_digest
from tasks.storage.model_folder import NEEDED, damage_of
from tasks.tracking.artifacts import put_back, registered_files
from tasks.tracking.connection import alone, find_run
from tasks.tracking.copies import find_copy, training_command
from tasks.tracking.flavour import add_flavour, damaged
from tasks.tracking.mlflow_private import local_path
from tasks.tracking.registry import Champion, champions
from tasks.tracking.store import Store, open_store

_CHANGED = "it is not the file that was registered (its sha256 differs)"


def verify(
    home: Path, market: str = SPOT, *, repair: bool = False, seen: Seen = unseen, store: Store | None = None
) -> Iterator[Damage]:
    """Yield each damaged file of a market's champions; a folder outside the home, or a URI, is named as it is.

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
        with registered_files(store, champion.source) as folder:
            yield from _model_damage(store, home, champion, folder, repair, seen)
            yield from _mlflow_damage(store, home, champion, folder, repair, seen)


def _model_damage(
    store: Store, home: Path, champion: Champion, folder: Path, repair: bool, seen: Seen
) -> Iterator[Damage]:
    """Yield each damaged file of a champion's model, copied back where there is an intact one.

    Args:
        folder: what is kept at the champion's source now.
    """
    for name, reason in _damaged(champion, folder, seen):
        copy = find_copy(home, champion, name)
        if repair and copy:
            put_back(store, champion.run_id, champion.source, name, copy)
        command = VERIFY if copy else training_command(champion)
        yield damage_at(home.resolve(), _place(champion, name), reason, command, repair and copy is not None)


def _damaged(champion: Champion, folder: Path, seen: Seen) -> Iterator[tuple[str, str]]:
    """Yield the name of each damaged file of a champion's model, and the reason."""
    digests = champion.digests
    for name in dict.fromkeys((*NEEDED, *digests)):
        path = folder / name
        seen(_place(champion, name))
        if not path.is_file():
            yield name, "it is missing"
        elif name in digests and file_digest(path) != digests[name]:
            yield name, _CHANGED
    if not digests and (damage := damage_of(folder, {})):  # registered by an older release
        yield next((n for n in NEEDED if n in damage), NEEDED[0]), damage


def _mlflow_damage(
    store: Store, home: Path, champion: Champion, folder: Path, repair: bool, seen: Seen
) -> Iterator[Damage]:
    """Yield each damaged file that MLflow alone reads; such files are written anew, by the library of today."""
    for name in champion.mlflow_files:
        seen(_place(champion, name))
    wrong = damaged(folder, champion.mlflow_files)
    told = [(n, "it is missing" if not (folder / n).is_file() else _CHANGED) for n in wrong]
    repaired = bool(wrong) and repair and _write_again(store, champion, folder)
    for name, reason in told:
        yield damage_at(home.resolve(), _place(champion, name), reason, VERIFY, repaired)


def _write_again(store: Store, champion: Champion, folder: Path) -> bool:
    run = find_run(store, champion.run_id)
    if run is None or store.read_only:
        return False
    with alone(store):
        digests = add_flavour(
            store, run, champion.source, champion.folder, champion.series.timeframe, kept=folder
        )
    with registered_files(store, champion.source) as now:
        return bool(digests) and not damaged(now, digests)


def _place(champion: Champion, name: str) -> Path:
    """Return where a file of a champion is kept: a path, or a server's URI, as people are shown it."""
    local = local_path(champion.source)
    return (local or Path(champion.source)) / name
