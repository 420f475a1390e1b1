"""Checks the files of champions against the digests that were recorded when they were registered.

A champion cannot be made again without a training. But the folder of the fleet it comes from, or a copy that this
machine fetched, may still hold its files: those are copied back where their sha256 is the recorded one. What makes
the folder an MLflow model is written again. Of a tracking server's champions all files are fetched to be checked.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.errors import CpbError, DamagedError
from schemas.handover import Damage
from schemas.identity import SPOT
from tasks.storage.damage import VERIFY, Seen, damage_at, unseen
from tasks.storage.digests import file_digest
from tasks.storage.model_folder import NEEDED, damage_of
from tasks.storage.records import parse_record, set_aside
from tasks.tracking.archive import ARCHIVE, FlowArchive
from tasks.tracking.artifacts import put_back, registered_files
from tasks.tracking.connection import Store, alone, find_run, search
from tasks.tracking.flavour import add_flavour, damaged
from tasks.tracking.mlflow_private import local_path
from tasks.tracking.records import REPORT
from tasks.tracking.registry import Champion, champions, find_copy, training_command
from tasks.tracking.store import open_store
from tasks.tracking.tags import FLOW, KIND, digests_of, market_of

if TYPE_CHECKING:
    from mlflow.entities import Run

_FLOW_OUTCOME = {
    REPORT: "set aside; the command that made this run writes it again",
}
_CHANGED = "it is not the file that was registered (its sha256 differs)"


def verify(
    home: Path, market: str = SPOT, *, repair: bool = False, seen: Seen = unseen, store: Store | None = None
) -> Iterator[Damage]:
    """Yield each damaged file of a market's champions, and of its runs' reports and archives.

    A folder outside the home, or a URI, is named as it is. Of runs, files on this machine are checked.

    Args:
        repair: copy a champion's files back from the fleet that it comes from, or from the published folder; set
            reports aside.
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
    yield from _flow_damage(store, home, market, repair, seen)
    for champion in champions(market=market, store=store):
        with registered_files(store, champion.source) as folder:
            yield from _model_damage(store, home, champion, folder, repair, seen)
            yield from _mlflow_damage(store, home, champion, folder, repair, seen)


def _flow_damage(store: Store, home: Path, market: str, repair: bool, seen: Seen) -> Iterator[Damage]:
    """Yield each damaged file of a market's flow runs."""
    for run in search(store, f"tags.`{KIND}` = '{FLOW}'"):
        if market_of(run) != market or (folder := local_path(run.info.artifact_uri)) is None:
            continue
        for name, reason in _flow_faults(run, folder, seen):
            path = folder / name
            # An archive is all that is left of the runs that it is about: a backup of it takes its place.
            mended = repair and name != ARCHIVE
            if mended and path.exists():
                set_aside(path, reason)
            command = "restore it from a backup" if name == ARCHIVE else VERIFY
            yield damage_at(
                home.resolve(), path, reason, command, mended, outcome=_FLOW_OUTCOME.get(name, "")
            )


def _flow_faults(run: "Run", folder: Path, seen: Seen) -> Iterator[tuple[str, str]]:
    if (folder / ARCHIVE).exists():
        seen(folder / ARCHIVE)
        try:
            parse_record(folder / ARCHIVE, FlowArchive, of=run.info.run_id)
        except DamagedError as error:
            yield ARCHIVE, str(error)
    for name, digest in digests_of(run.data.tags).items():
        if (folder / name).exists():  # pruning takes it away
            seen(folder / name)
            if file_digest(folder / name) != digest:
                yield name, "it is not the file that was written (its sha256 differs)"


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
    if not digests and (damage := damage_of(folder, {})):  # registered by a person
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
