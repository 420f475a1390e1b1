"""The searches of a market by their folders, `tuning/STUDY`: for the page, which must not need Optuna."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from schemas.errors import DamagedError
from schemas.handover import Record
from schemas.identity import Market
from tasks.storage.locks import is_locked
from tasks.storage.records import read_record

SEARCH = "search.json"
"""Name of a search's record; the trainings of its batches tell their progress beside it, as a fleet's does."""

LOCK = "lock"


class Search(Record):
    """What one call of `cpb tune` searches."""

    market: Market
    architecture: str
    preset: str
    device: str
    symbols: tuple[str, ...]
    timeframes: tuple[str, ...]


def searches_at_work(root: Path) -> Iterator[tuple[Path, Search]]:
    """Yield the folders of the searches that are at work in a market's part of the home, with their records."""
    for path in sorted((root / "tuning").glob(f"*/{SEARCH}")):
        if is_locked(path.with_name(LOCK)):
            with suppress(DamagedError, FileNotFoundError):  # its own next call writes it anew
                yield path.parent, read_record(path, Search)
