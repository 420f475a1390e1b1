"""Checks the files of champions against the digests recorded at registration.

A champion cannot be recreated without training. But the folder of its fleet, or a copy fetched to this machine, may
still contain its files: they are copied back if their sha256 matches. The files that make the folder an MLflow model
are written again. From a tracking server, all files of champions are fetched for the check.
"""

from collections.abc import Iterator
from pathlib import Path

from schemas.errors import CpbError
from tasks.storage.checked_files import (
    REPAIRED,
    VERIFY,
    Asked,
    Stored,
    checked,
    digest_fault,
)
from tasks.storage.model_folder import NEEDED, damage_of
from tasks.storage.urls import local_path
from tasks.tracking.artifacts import damaged, files_at, put_back
from tasks.tracking.connection import Store, alone, find_run
from tasks.tracking.mlflow_store import open_store
from tasks.tracking.model import make_mlflow_model
from tasks.tracking.registry import Champion, champions, find_copy, training_command
from tasks.tracking.tags import MLFLOW_FILES, digests_of


def champions_files(asked: Asked, store: Store | None = None) -> Iterator[Stored]:
    """Yield each file of a market's champions; a repair copies files back from its fleet or the published folder.

    Raises:
        CpbError: the MLflow store cannot be read (a missing store is not an error).
    """
    try:
        store = store or open_store(create=False)
    except CpbError as error:
        if error.code == "no-store":
            return
        raise
    for champion in champions(market=asked.market, store=store):
        with files_at(store, champion.source) as folder:
            yield from _of_model(asked, store, champion, folder)
            yield from _of_mlflow(asked, store, champion, folder)


def _of_model(asked: Asked, store: Store, champion: Champion, folder: Path) -> Iterator[Stored]:
    """Yield each file of a champion's model; a damaged file is restored from an intact copy if there is one.

    Args:
        folder: the current contents of the champion's source.
    """
    digests = champion.digests
    faults = {name: digest_fault(folder / name, digests.get(name)) for name in (*NEEDED, *digests)}
    if (
        not digests and not any(faults.values()) and (damage := damage_of(folder, {}))
    ):  # registered by a person
        faults[next((name for name in NEEDED if name in damage), NEEDED[0])] = damage
    for name, reason in faults.items():
        copy = find_copy(asked.home, champion, name) if reason else None
        if copy and asked.repair:
            put_back(store, champion.run_id, champion.source, name, copy)
        command = VERIFY if copy else training_command(champion)
        yield checked(_place(champion, name), reason, command, REPAIRED if copy else "")


def _of_mlflow(asked: Asked, store: Store, champion: Champion, folder: Path) -> Iterator[Stored]:
    """Yield each file that only MLflow reads; a repair writes them again with the installed library."""
    faults = {name: digest_fault(folder / name, digest) for name, digest in champion.mlflow_files.items()}
    again = asked.repair and any(faults.values()) and _write_again(store, champion)
    for name, reason in faults.items():
        yield checked(_place(champion, name), reason, outcome=REPAIRED if again else "")


def _write_again(store: Store, champion: Champion) -> bool:
    run = find_run(store, champion.run_id)
    if run is None or store.read_only:
        return False
    with alone(store):
        make_mlflow_model(store, run)
        written = find_run(store, champion.run_id)
    digests = digests_of(written.data.tags, MLFLOW_FILES) if written else {}
    with files_at(store, champion.source) as now:
        return bool(digests) and not damaged(now, digests)


def _place(champion: Champion, name: str) -> Path:
    """Return the location of a champion's file for display: a path, or a server's URI."""
    local = local_path(champion.source)
    return (local or Path(champion.source)) / name
