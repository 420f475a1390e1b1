"""Identifies the files below CPB_HOME that are provably cpb's own. No other file there is ever moved or deleted.

CPB_HOME may contain other files of the user, also in `reports/` or `features/`. A file is cpb's if its folder has cpb's
structure (`TREE/interval=…/symbol=…`) and its name is a valid name of cpb in that tree.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from schemas.identity import MARKETS, SPOT
from schemas.universe import INTERVAL_SECONDS, MONTH, SYMBOL
from tasks.storage.files import DRAFT
from tasks.storage.records import SET_ASIDE

_MONTH_FILE = r"[0-9]{4}-[0-9]{2}\.parquet"
TREES = {
    "klines": re.compile(_MONTH_FILE),
    "offgrid": re.compile(_MONTH_FILE),
    "provisional": re.compile(r"tail\.parquet"),
    "cache": re.compile(r"[0-9a-f]{24}-[0-9a-f]{8}\.arrow"),
    "features": re.compile(r"[0-9a-f]{16}-[0-9a-f]{8}\.parquet"),
    "forecasts": re.compile(rf"{_MONTH_FILE}|\.lock"),
    "ledger": re.compile(rf"{_MONTH_FILE}|\.lock"),
}
"""Trees of series folders, with the names of cpb's files in them."""

RECORDS = re.compile(r"index\.json|[0-9a-f]{16}-[0-9a-f]{8}\.json")
"""Names of the records beside those files: digests of a series' months, and of feature files."""

QUARANTINE = "quarantine"
_REFUSED = re.compile(r"(?P<series>\w+-\w+-)?[0-9]{4}-[0-9]{2}(-[0-9]{2})?\.(zip|json)(\.reason\.txt)?")


def series_folders(root: Path, tree: str) -> Iterator[Path]:
    """Yield the series folders of a tree, including futures (`klines-um`)."""
    for market in MARKETS:
        name = tree if market == SPOT else f"{tree}-{market}"
        for folder in sorted((root / name).glob("interval=*/symbol=*")):
            interval = folder.parent.name.removeprefix("interval=")
            known = interval in INTERVAL_SECONDS or interval == MONTH
            if known and SYMBOL.fullmatch(folder.name.removeprefix("symbol=")) and folder.is_dir():
                yield folder


def own_files(root: Path, tree: str) -> Iterator[Path]:
    """Yield cpb's own files in a tree of series folders."""
    for folder in series_folders(root, tree):
        yield from sorted(p for p in folder.iterdir() if TREES[tree].fullmatch(p.name) and p.is_file())


def is_own(root: Path) -> bool:
    """Whether a market home contains candles of cpb, so that its manifest is cpb's too."""
    return any(True for tree in ("klines", "offgrid", "provisional") for _ in own_files(root, tree))


def set_aside_files(root: Path) -> Iterator[Path]:
    """Yield cpb's own files in trees of series folders that were set aside as damaged."""
    for tree, names in TREES.items():
        for folder in series_folders(root, tree):
            for path in sorted(folder.iterdir()):
                found = SET_ASIDE.fullmatch(path.name)
                own = found and (names.fullmatch(found["name"]) or RECORDS.fullmatch(found["name"]))
                if own and path.is_file() and not path.is_symlink():
                    yield path


def drafts(root: Path, tree: str) -> Iterator[Path]:
    """Yield the drafts left by a killed run in a tree of series folders."""
    for folder in series_folders(root, tree):
        for path in folder.iterdir():
            name = _final_name(path)
            if name and TREES[tree].fullmatch(name) and path.is_file():
                yield path


def refused_drafts(root: Path) -> Iterator[Path]:
    """Yield the drafts left by a killed run in the quarantine."""
    return (path for path in _quarantined(root) if _is_refused(path, _final_name(path)))


def _quarantined(root: Path) -> list[Path]:
    """Return the contents of cpb's quarantine folders: `…/klines/SYMBOL/INTERVAL/` and `rest/SYMBOL/INTERVAL/`."""
    folder = root / QUARANTINE
    return sorted([*folder.glob("*/**/klines/*/*/*"), *folder.glob("rest/*/*/*")])


def _is_refused(path: Path, name: str) -> bool:
    match = _REFUSED.fullmatch(name)
    series = "-".join(path.parts[-3:-1]) + "-"
    return match is not None and match["series"] in (None, series) and path.is_file()


def _final_name(draft: Path) -> str:
    """Return the final name of a draft; empty for any other file."""
    match = DRAFT.fullmatch(draft.name)
    return match["name"] if match else ""
