"""Whether stored data has changed: a token for each of its parts, from the modification of files and folders."""

import threading
from pathlib import Path

from schemas.identity import APART, MARKETS, SPOT, market_home, tree_of
from tasks.training.shard import RESULT, is_training, shard_folders
from tasks.training.shard_retention import are_in_use
from webapp import answers, store_cache

_ASKING = threading.Lock()


def change_tokens(home: Path) -> answers.Changes:
    """Return a token for each part of the stored data."""

    def trees(*names: str) -> list[Path]:
        # A folder changes whenever a file in it is replaced by renaming.
        roots = [tree_of(home, name, market) for name in names for market in MARKETS]
        return [*roots, *(folder for root in roots for folder in root.glob("interval=*/symbol=*"))]

    board = store_cache.version()
    return answers.Changes(
        candles=store_cache.file_times(trees("klines", "provisional")),
        forecasts=store_cache.file_times(trees("forecasts", "hub")),
        ledger=store_cache.file_times(trees("ledger")),
        board=board,
        runs=f"{board} {store_cache.file_times(shards_in_training(home))} {is_run_active(home)}",
    )


def shards_in_training(home: Path) -> list[Path]:
    """Return the folders of the shards that processes of this machine are training."""
    shards = [
        folder for root in _roots(home) for folder in shard_folders(root) if not (folder / RESULT).exists()
    ]
    return [*filter(is_training, shards)]


def is_run_active(home: Path) -> bool:
    """Whether a run that trains, before or after it too, is active on this machine: also one that MLflow lacks."""
    with _ASKING:  # two that ask at once would each take the other for a run
        return any(map(are_in_use, _roots(home)))


def _roots(home: Path) -> list[Path]:
    return [market_home(home, market) for market in (SPOT, *APART)]
