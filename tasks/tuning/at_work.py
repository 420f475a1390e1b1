"""The running searches of a market, found through their folders `tuning/STUDY`, so the page need not import Optuna."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from schemas.errors import DamagedError
from schemas.handover import Record
from schemas.identity import Market
from tasks.storage.locks import is_locked
from tasks.storage.records import read_record

SEARCH = "search.json"
"""File name of a search's record; the trainings of its batches write progress beside it, like a shard's."""

LOCK = "lock"


class Search(Record):
    """What one `cpb tune` call searches."""

    market: Market
    architecture: str
    preset: str
    device: str
    symbols: tuple[str, ...]
    timeframes: tuple[str, ...]


def searches_at_work(root: Path) -> Iterator[tuple[Path, Search]]:
    """Yield the folders of the running searches in a market's part of the home, with their records."""
    for path in sorted((root / "tuning").glob(f"*/{SEARCH}")):
        if is_locked(path.with_name(LOCK)):
            with suppress(DamagedError, FileNotFoundError):  # the search's next call writes it again
                yield path.parent, read_record(path, Search)
