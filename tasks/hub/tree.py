"""The packaged folder `HOME/hub`: model folders `SYMBOL/IV/`, card, results, light library, record, checksums.

SYMBOL includes the market unless it is spot, as in `um-BTCUSDT/1h/`. The library (`cpbmodels-*.whl`) is included so
that users can install the version with which the models were made, by a URL with its hash. The record of forecasts and
scores is that of `tasks.hub.record_export`.
"""

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cpbmodels.files import read_regular
from cpbmodels.fleet.config import WEIGHTS
from schemas.errors import CpbError, DamagedError, log
from schemas.failure import Failure
from schemas.identity import SPOT, SeriesId, is_series_name, tree_of
from tasks.forecasting.published import CHAIN
from tasks.hub.card import is_card, model_card
from tasks.hub.record_export import is_record_file, write_record
from tasks.storage.files import DiskFull, is_disk_full, sync, write_bytes
from tasks.storage.folders import new_folder, recover_folder
from tasks.storage.model_folder import (
    FORECAST_PICTURE,
    METRICS,
    MODEL_FILES,
    PICTURES,
    REFERENCE,
    write_published_config,
)
from tasks.storage.packaged import PackagedModel, packaged_models
from tasks.storage.records import digest_fault, file_digest
from tasks.storage.wheel import light_wheel
from tasks.tracking.champions import Champion, champions, lost_champions, registered
from tasks.tracking.experiment import Store
from tasks.tracking.registry import ALIAS, full_name, versions_with_alias
from tasks.tracking.results import RESULTS, results_fault, write_published_results
from tasks.tracking.store import OTHER, not_registered, open_store
from tasks.tracking.store_errors import store_errors
from tasks.tracking.tags import weights_of

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

CARD = "README.md"
WHEEL = re.compile(r"cpbmodels-[\w.+!]+-py3-none-any\.whl")
"""Names of the light library's wheel, of any version."""

SUMS = "SHA256SUMS"
"""File with the sha256 of every other file of the tree, in the format of `sha256sum`."""

_SUM = re.compile(r"(?P<digest>[0-9a-f]{64})  (?P<name>[^\x00-\x1f\x7f]+)")


def serving(home: Path, market: str) -> tuple[list[PackagedModel], list[Failure]]:
    """Bring the packaged folder up to date with the registry, and return its models and the failures.

    Where the registry cannot be read, or the folder cannot be written, the models in the folder serve, with a warning.

    Raises:
        CpbError: that is so, and the folder has no models; (code `OTHER`) the store is not the home's.
    """
    failures = list[Failure]()
    recover_folder(tree_of(home, "hub", market))
    try:
        with store_errors():
            store = open_store(create=False)
            versions = versions_with_alias(store, ALIAS)
            versions = {s: version for s, version in versions.items() if s.market == market}
            wanted = registered_weights(store, versions)
            if not wanted:
                return [], []
            if not _is_current(home, market, wanted):
                _, failures = package(home, market)
            else:
                lost = lost_champions(store, versions)
                failures = [Failure.of(SeriesId.parse(error.field), "forecast", error) for error in lost]
    except (CpbError, OSError) as error:
        models = packaged_models(home, market)
        if not models or getattr(error, "code", "") == OTHER:
            raise
        folder = tree_of(home, "hub", market)
        log.warning(
            "forecasting with the models in %s, which could not be brought up to date: %s", folder, error
        )
        return models, []
    return packaged_models(home, market), failures


def registered_weights(
    store: Store, versions: "Mapping[SeriesId, ModelVersion]"
) -> dict[SeriesId, tuple[str, str]]:
    """Return the version of each series' champion, as stored with forecasts, and the sha256 of its weights."""
    return {
        series: (full_name(version), weights_of(version.tags) or _weights_of_files(store, series, version))
        for series, version in versions.items()
    }


def _weights_of_files(store: Store, series: SeriesId, version: "ModelVersion") -> str:
    """Return the sha256 of the weights of a version that a person registered; "" if they cannot be read."""
    champion = registered(store, series, str(version.version))
    with suppress(OSError):
        return champion.digests.get(WEIGHTS) or file_digest(champion.folder / WEIGHTS) if champion else ""
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
    versions = {s: v for s, v in versions_with_alias(store, ALIAS).items() if s.market == market}
    wanted, lost = registered_weights(store, versions), not_registered(store, home, (market,))
    for series in sorted(packaged.keys() | wanted.keys()):
        model, (version, weights) = packaged.get(series), wanted.get(series, ("", ""))
        if model is None:
            champion = registered(store, series, str(versions[series].version))
            if champion is None or champion.damage:  # told where files are checked, and never packaged
                continue
            reason = f"the champion {version} is not packaged"
        elif not model.model_version or (model.model_version, model.weights_sha256) == (version, weights):
            continue  # a damaged config is told where files are checked
        elif model.model_version == version:
            reason = (
                f"{version} is packaged with the weights {model.weights_sha256[:12]}…, and registered with "
                f"{weights[:12]}…"
            )
        else:
            reason = f"{model.model_version} is packaged, and the registry's champion is {version or 'none'}"
        if missing := model in lost:
            reason += "; the MLflow store does not hold the packaged one: it may be an older backup, or have begun anew"
        again = "cpb publish --dry-run" + ("" if market == SPOT else f" --market {market}")
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
        sums = read_sums(tree)
    except (OSError, DamagedError):
        return False
    models = packaged_models(home, market)
    folders = {model.folder for model in models}
    files = {tree / name: digest for name, digest in sums.items() if (tree / name).parent in folders}
    packaged = {model.series: (model.model_version, model.weights_sha256) for model in models}
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
    for champion in (in_registry := champions(store, market=market)):
        try:
            champion.check()
            intact.append(champion)
        except DamagedError as error:
            failures.append(Failure.of(champion.series, "publish", error))
    # If none is intact, the tree's own error names the first champion.
    return build_tree(
        intact or in_registry, tree_of(home, "hub", market), repo, home, failures.append
    ), failures


def build_tree(
    models: Sequence[Champion],
    folder: Path,
    repo: str | None = None,
    home: Path | None = None,
    report: Callable[[Failure], object] = lambda _failure: None,
) -> Path:
    """Write the tree to publish into `folder`, atomically, and return the folder.

    The same models, record and source of the library give the same bytes, so publishing twice finds nothing to
    send.

    Args:
        repo: USER/NAME in the card's example.
        home: of the record of forecasts and scores; None: without it.
        report: called with what is damaged in the record.

    Raises:
        CpbError: there are no models, the library cannot be built, or `folder` contains files not written by cpb.
        DamagedError: a champion's files differ from the registered files.
    """
    if not models:
        raise CpbError(
            "there is no champion to publish yet; train first, as in `cpb train-all`", code="no-champion"
        )
    for champion in models:
        champion.check()
    recover_folder(folder)
    check_replaceable(folder)
    ordered = sorted(models, key=lambda c: (c.series.timeframe, c.series.symbol, c.series.market))
    with _said_if_full(folder), new_folder(folder) as draft:
        for champion in ordered:
            _copy_model(champion, draft / champion.series.label / champion.series.timeframe)
        wheel = light_wheel()
        write_bytes(draft / wheel.name, wheel.data)
        sums: dict[str, str] = {}
        with suppress(OSError, DamagedError):
            sums = read_sums(folder)
        if home:
            write_record(home, models[0].series.market, draft, folder, sums, report)
        write_published_results(draft / RESULTS, ordered[0].series.market, ordered)
        card = model_card(
            ordered,
            repo or "USER/NAME",
            wheel,
            record=(draft / CHAIN).is_file(),
            pictured=_pictured(draft, ordered),
        )
        (draft / CARD).write_text(card, encoding="utf-8")
        # The sha256 of every file, so that the folder can be checked with `sha256sum -c`.
        files = {
            p.relative_to(draft).as_posix(): file_digest(p) for p in sorted(draft.rglob("*")) if p.is_file()
        }
        (draft / SUMS).write_text("".join(f"{digest}  {name}\n" for name, digest in files.items()), "utf-8")
        for path in (
            *draft.rglob("*"),
            draft,
        ):  # before the old folder goes: a power cut must not leave empty files
            sync(path)
    return folder


@contextmanager
def _said_if_full(folder: Path) -> Iterator[None]:
    """Say what to do if there is no space for the new folder beside the old one."""
    try:
        yield
    except Exception as error:
        if is_disk_full(error):
            raise DiskFull(
                f"no space left in {folder.parent} for a new {folder.name}, which is as it was: free some there, then "
                "run the same command again",
                field=str(folder),
            ) from error
        raise


def read_sums(tree: Path) -> dict[str, str]:
    """Return the recorded sha256 of each file by its path in the tree.

    Raises:
        FileNotFoundError: the list does not exist.
        DamagedError: the list is not in the format of `sha256sum`.
    """
    *lines, end = read_regular(tree / SUMS).decode(errors="replace").split("\n")
    matches = [_SUM.fullmatch(line) for line in lines]
    if not lines or end or not all(matches):
        raise DamagedError("it is not a list of sha256 and paths", field=str(tree / SUMS))
    return {match["name"]: match["digest"] for match in matches if match}


def _pictured(tree: Path, models: Sequence[Champion]) -> Champion | None:
    """Return the champion whose picture the card shows, None without any: BTC's, of its longest candles, else the first
    coin's."""
    with_picture = [
        c for c in models if (tree / c.series.label / c.series.timeframe / FORECAST_PICTURE).is_file()
    ]
    return min(
        with_picture,
        key=lambda c: (not c.series.symbol.startswith("BTC"), -c.series.seconds, c.series),
        default=None,
    )


def _copy_model(champion: Champion, target: Path) -> None:
    target.mkdir(parents=True)
    shutil.copyfile(champion.folder / WEIGHTS, target / WEIGHTS)
    write_published_config(champion.folder, target, champion.model_version, champion.verdict)
    for name in (METRICS, REFERENCE, *PICTURES):
        source = champion.folder / name
        if not source.is_file():
            continue
        if file_digest(source) != champion.digests.get(name, file_digest(source)):
            log.warning(
                "%s is damaged and not published; %s itself is intact", source, champion.model_version
            )
            continue
        shutil.copyfile(source, target / name)


def check_replaceable(folder: Path) -> None:
    """Raise `CpbError` if the folder contains anything but a tree written by cpb, intact or damaged."""
    if not folder.exists() and not folder.is_symlink():
        return
    there = sorted(folder.rglob("*")) if folder.is_dir() else [folder]
    foreign = next((p for p in there if p.is_symlink() or not (p.is_dir() or _is_tree_file(folder, p))), None)
    if foreign is not None:
        raise CpbError(
            f"{folder} is to be replaced by the models to publish, but {foreign} was not written by cpb: move it "
            "elsewhere, or set CPB_HOME to another folder",
            code="foreign-folder",
            field=str(folder),
        )


def _is_tree_file(folder: Path, path: Path) -> bool:
    place = path.relative_to(folder)
    match place.parts:
        case [name] if name == CARD:  # a person's own README.md has no list beside it, and is not sealed
            return (folder / SUMS).is_file() or is_card(path)
        case [name] if name == RESULTS:  # likewise
            return name in _listed(folder) or not results_fault(path)
        case [name] if name == SUMS or WHEEL.fullmatch(name):
            return True
        case [label, timeframe, name] if name in MODEL_FILES:
            return is_series_name(f"{label}-{timeframe}")
    return is_record_file(place.as_posix())


def _listed(folder: Path) -> set[str]:
    """Return the files that a tree's list of checksums names; none without an intact list."""
    with suppress(OSError, DamagedError):
        return set(read_sums(folder))
    return set()


def tree_faults(tree: Path) -> dict[str, str]:
    """Return the fault of each file of a tree, "" for none."""
    try:
        sums = read_sums(tree)
    except FileNotFoundError:
        return {SUMS: "it is missing"}
    except (DamagedError, OSError) as error:
        return {SUMS: str(error)}
    there = {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()}
    unlisted = dict.fromkeys(sorted(there - sums.keys() - {SUMS}), f"{SUMS} does not list it")
    return {SUMS: ""} | {name: digest_fault(tree / name, digest) for name, digest in sums.items()} | unlisted
