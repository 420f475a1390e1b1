"""The packaged folder follows the registry: the champions that forecast are those with the alias, with intact files."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cpbmodels.fleet.config import WEIGHTS
from schemas.errors import CpbError, DamagedError, log
from schemas.failure import Failure
from schemas.identity import SeriesId, market_option, stored_option, tree_of
from tasks.hub.tree import build_tree, read_sums
from tasks.storage.folders import recover_folder
from tasks.storage.home_version import OTHER_VERSION, check_home
from tasks.storage.packaged import PackagedModel, packaged_models
from tasks.storage.records import digest_fault, file_digest
from tasks.tracking.champions import (
    Champion,
    Registered,
    champions,
    lost_champions,
    model_folder,
    read_registered,
)
from tasks.tracking.experiment import Store
from tasks.tracking.registry_copy import read_registry
from tasks.tracking.store import OTHER, not_registered, open_store
from tasks.tracking.store_errors import store_errors
from tasks.tracking.tags import weights_of


def serving(home: Path, market: str) -> tuple[list[PackagedModel], list[Failure]]:
    """Bring the packaged folder up to date with the registry, and return its models and the failures.

    Where the registry cannot be read, or the folder cannot be written, the models in the folder serve, with a warning.

    Raises:
        CpbError: that is so, and the folder has no models; the store (code `OTHER`) or the version (`OTHER_VERSION`) is
            not the home's.
    """
    failures = list[Failure]()
    # Before anything is read: a kill between two renames may have left the old tree under another name.
    recover_folder(tree_of(home, "hub", market))
    try:
        with store_errors():
            check_home(home)
            registry = read_registry(partial(open_store, create=False))
            registered = [champion for champion in registry.champions if champion.series.market == market]
            wanted = registered_weights(registry.uri, registered)
            if not wanted:
                return [], []
            if not _is_current(home, market, wanted):
                _, failures = package(home, market)
            else:
                lost = lost_champions(registered)
                failures = [Failure.of(SeriesId.parse(error.field), "forecast", error) for error in lost]
    except (CpbError, OSError) as error:
        # A forecast an hour is worth more than the newest champion: what is packaged goes on, unless it may
        # be of another store.
        models = packaged_models(home, market)
        if not models or getattr(error, "code", "") in (OTHER, OTHER_VERSION):
            raise
        folder = tree_of(home, "hub", market)
        log.warning(
            "forecasting with the models in %s, which could not be brought up to date: %s", folder, error
        )
        return models, []
    return packaged_models(home, market), failures


def registered_weights(uri: str, registered: Iterable[Registered]) -> dict[SeriesId, tuple[str, str]]:
    """Return the version of each series' champion, as stored with forecasts, and the sha256 of its weights.

    Args:
        uri: the store's.
    """
    return {
        version.series: (version.full_name, weights_of(version.tags) or _weights_of_files(uri, version))
        for version in registered
    }


def _weights_of_files(uri: str, version: Registered) -> str:
    """Return the sha256 of the weights of a version that a person registered; "" if they cannot be read."""
    # Such a version records no digests: the file itself has to say.
    with suppress(OSError):
        return file_digest(model_folder(uri, version)[0] / WEIGHTS)
    return ""


@dataclass(frozen=True)
class Difference:
    """A packaged model that is not its series' champion: folder, sentence, and the command that mends it.

    `behind`: the store holds what is packaged, as between a promotion and the next forecast, which packages the
    champion; else other weights are packaged than the store knows.
    """

    folder: Path
    reason: str
    command: str
    behind: bool


def registry_differences(home: Path, market: str, store: Store) -> Iterator[Difference]:
    """Yield where a market's packaged models and its champions differ; nothing where nothing is packaged."""
    packaged = {model.series: model for model in packaged_models(home, market)}
    if not packaged:
        return
    registered = {version.series: version for version in read_registered(store, market=market)}
    wanted = registered_weights(store.uri, registered.values())
    lost = not_registered(store, home, (market,))
    for series in sorted(packaged.keys() | wanted.keys()):
        model, (version, weights) = packaged.get(series), wanted.get(series, ("", ""))
        # Not packaged, though it serves: unless it is damaged, which is reported with its files.
        if model is None:
            # A damaged one is told where files are checked, and never packaged.
            if Champion.of(store.uri, registered[series]).damage:
                continue
            reason = f"the champion {version} is not packaged"
        elif not model.model_version or (model.model_version, model.weights_sha256) == (version, weights):
            continue  # a damaged config is told where files are checked
        # The same name with other weights: the store began anew, or is an older backup.
        elif model.model_version == version:
            reason = (
                f"{version} is packaged with the weights {model.weights_sha256[:12]}…, and registered with "
                f"{weights[:12]}…"
            )
        else:
            reason = f"{model.model_version} is packaged, and the registry's champion is {version or 'none'}"
        if missing := model in lost:
            reason += "; the MLflow store does not hold the packaged one: it may be an older backup, or have begun anew"
        again = f"cpb publish --dry-run{stored_option(market)}"
        other_weights = model is not None and model.model_version == version
        yield Difference(
            series.packaged(home),
            reason,
            again if wanted else f"cpb train-all {series.options}",
            behind=not (missing or other_weights),
        )


def _is_current(home: Path, market: str, wanted: Mapping[SeriesId, tuple[str, str]]) -> bool:
    """Whether the packaged folder has exactly these versions with these weights, and each file of theirs is intact.

    A version's name alone says nothing: after a store that began again, or an older backup of it, `/1` has others.
    """
    tree = tree_of(home, "hub", market)
    try:
        # Without an intact list nothing says that the files are whole: the folder is written anew.
        sums = read_sums(tree)
    except (OSError, DamagedError):
        return False
    models = packaged_models(home, market)
    folders = {model.folder for model in models}
    files = {tree / name: digest for name, digest in sums.items() if (tree / name).parent in folders}
    packaged = {model.series: (model.model_version, model.weights_sha256) for model in models}
    # Weights are hashed at each forecast: some ms a model, against forecasting with a flipped bit.
    return packaged == wanted and not any(digest_fault(path, digest) for path, digest in files.items())


def package(home: Path, market: str, repo: str | None = None) -> tuple[Path, list[Failure]]:
    """Write the packaged folder of a market's champions; a damaged champion is left out and becomes a failure.

    Args:
        repo: USER/NAME in the card's example.

    Raises:
        CpbError: no champion can be packaged, or the folder contains files not written by cpb.
    """
    intact, failures = [], list[Failure]()
    store = open_store(create=False)
    for model in not_registered(store, home, (market,)):
        log.warning(
            "the packaged model %s (weights %s…) is not in the MLflow store, as after an older backup of it, and is "
            "replaced by what the store holds",
            model.model_version,
            model.weights_sha256[:12],
        )
    if not (in_registry := champions(store, market=market)):
        others = " or ".join(
            f"`--market {other}`"
            for other in sorted({champion.series.market for champion in champions(store)})
        )
        raise CpbError(
            f"there is no champion of market {market} to publish yet; train first, as in "
            f"`cpb train-all{market_option(market)}`{others and f', or publish those of {others}'}",
            code="no-champion",
        )
    for champion in in_registry:
        # One damaged champion must not keep all others from being packaged.
        try:
            champion.check()
            intact.append(champion)
        except DamagedError as error:
            failures.append(Failure.of(champion.series, "publish", error))
    # If none is intact, the tree's own error names the first champion.
    return build_tree(
        intact or in_registry, tree_of(home, "hub", market), repo, home, failures.append
    ), failures
