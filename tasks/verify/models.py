"""The checks of the models that serve: champions, the packaged folder, and whether the two agree."""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from cpbmodels.fleet.config import CONFIG
from schemas.errors import CpbError
from schemas.identity import stored_option, tree_of
from tasks.forecasting.published import CHAIN, RESTORE, month_name, record_loss
from tasks.hub.packaged import registry_differences
from tasks.hub.tree import SUMS, tree_faults
from tasks.storage import model_folder
from tasks.storage.folders import folders_aside
from tasks.storage.model_folder import NEEDED
from tasks.storage.records import digest_fault
from tasks.tracking.champions import champions, training_command, undelete_command
from tasks.tracking.registry import ALIAS, PREVIOUS
from tasks.tracking.store import read_store
from tasks.tracking.store_errors import store_errors
from tasks.verify.checks import Check

_FETCH = "hf download USER/NAME --local-dir copy && cpb restore"
"""Where the published record in the home is damaged and the stored one is lost, a Hub repository has the last copy."""


def champion_files(_home: Path, market: str) -> Iterator[Check]:
    """Yield the files of a market's champions and their predecessors; of a tracking server's, this machine's copies.

    Raises:
        CpbError: the MLflow store cannot be read, or (code `NO_STORE`) there is none.
    """
    store = read_store()
    for alias in (ALIAS, PREVIOUS):
        with store_errors():
            registered = champions(store, market=market, alias=alias)
        for model in registered:
            folder, command = model.folder, training_command(model)
            if alias == PREVIOUS:  # a training makes a new version
                command = RESTORE
            if model.run_fault:
                remedy = command if model.damage else undelete_command(store, model)
                yield folder, partial(str, model.run_fault), remedy
            for name, digest in (dict.fromkeys(NEEDED) | model.files).items():
                yield folder / name, partial(digest_fault, folder / name, digest), command
            if not model.digests:  # registered by a person
                yield folder / CONFIG, partial(model_folder.damage_of, folder, {}), command


def packaged_differences(home: Path, market: str) -> Iterator[Check]:
    """Yield the packaged models whose weights the registry does not know; one that cannot be read is told by the
    champions' check.
    """
    with suppress(CpbError), store_errors():
        for found in registry_differences(home, market, read_store()):
            if not found.behind:
                yield found.folder, partial(str, found.reason), found.command


def packaged_behind(home: Path, market: str) -> list[str]:
    """Return a sentence for each champion that is not packaged yet; what cannot be read is told by other checks."""
    with suppress(CpbError), store_errors():
        return [
            f"{found.folder.relative_to(home)}: {found.reason}; the next forecast or `{found.command}` brings it up to "
            "date"
            for found in registry_differences(home, market, read_store())
            if found.behind
        ]
    return []


def published(home: Path, market: str) -> Iterator[Check]:
    """Yield each file of the published folder: models, card, library, record."""
    tree = tree_of(home, "hub", market)
    option = stored_option(market)
    command = f"cpb publish --dry-run{option}"
    if not tree.exists() and (aside := folders_aside(tree)):
        yield tree, partial(str, f"a run that was killed left it as {aside[-1].name}"), command
    if not (tree / SUMS).exists() and not any(tree.glob(f"*/*/{CONFIG}")):
        return  # without list and models it was not written by cpb
    is_last_copy = bool(record_loss(home, market))
    for name, fault in tree_faults(tree).items():
        # the last copy is not made from the stored record
        is_kept = is_last_copy and (name == CHAIN or month_name(name))
        yield tree / name, partial(str, fault), f"{_FETCH}{option} --record copy" if is_kept else command
