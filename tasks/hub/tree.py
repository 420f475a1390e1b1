"""The packaged folder `HOME/hub`: model folders `SYMBOL/IV/`, card, results, light library, record, checksums.

SYMBOL includes the market unless it is spot, as in `um-BTCUSDT/1h/`. The library (`cpbmodels-*.whl`) is included so
that users can install the version with which the models were made, by a URL with its hash. The record of forecasts and
scores is that of `tasks.hub.record_export`.
"""

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from cpbmodels.files import read_regular
from cpbmodels.fleet.config import WEIGHTS
from schemas.errors import CpbError, DamagedError, log
from schemas.failure import Failure
from schemas.identity import is_series_name
from tasks.hub.card import is_card, model_card
from tasks.hub.record_export import data_set_metadata, is_record_file, write_record
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
from tasks.storage.records import digest_fault, file_digest
from tasks.storage.wheel import light_wheel
from tasks.tracking.champions import Champion
from tasks.tracking.results import RESULTS, results_fault, write_published_results

CARD = "README.md"
WHEEL = re.compile(r"cpbmodels-[\w.+!]+-py3-none-any\.whl")
"""Names of the light library's wheel, of any version."""

SUMS = "SHA256SUMS"
"""File with the sha256 of every other file of the tree, in the format of `sha256sum`."""

_SUM = re.compile(r"(?P<digest>[0-9a-f]{64})  (?P<name>[^\x00-\x1f\x7f]+)")


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
        CpbError: the library cannot be built, or `folder` contains files not written by cpb.
        DamagedError: a champion's files differ from the registered files.
    """
    # All before anything is written: half a tree is never begun.
    for champion in models:
        champion.check()
    recover_folder(folder)
    check_replaceable(folder)
    # A fixed order, so that the same champions give the same bytes and nothing is sent twice.
    ordered = sorted(models, key=lambda c: (c.series.timeframe, c.series.symbol, c.series.market))
    with _said_if_full(folder), new_folder(folder) as draft:
        for champion in ordered:
            _copy_model(champion, draft / champion.series.label / champion.series.timeframe)
        wheel = light_wheel()
        write_bytes(draft / wheel.name, wheel.data)
        sums: dict[str, str] = {}
        # Without the list of the old tree its record is made anew, which costs time and nothing else.
        with suppress(OSError, DamagedError):
            sums = read_sums(folder)
        if home:
            write_record(home, models[0].series.market, draft, folder, sums, report)
        write_published_results(draft / RESULTS, ordered[0].series.market, ordered)
        # After the record: the card says how to check it only where it is there.
        card = model_card(
            ordered,
            repo or "USER/NAME",
            wheel,
            record=data_set_metadata(draft),
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
    # The last line ends with a line break: a list that was cut off is none.
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
        # Scores and pictures beside intact weights: worth a warning, no reason to withhold the model.
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
    # A person's file in this folder would go with the old tree.
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
    # What the list does not name was put there by others: told, too.
    there = {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()}
    unlisted = dict.fromkeys(sorted(there - sums.keys() - {SUMS}), f"{SUMS} does not list it")
    return {SUMS: ""} | {name: digest_fault(tree / name, digest) for name, digest in sums.items()} | unlisted
