"""Whether stored data has changed: a token for each of its parts, from the modification of files and folders."""

from pathlib import Path

from schemas.identity import APART, MARKETS, SPOT, market_home, tree_of
from tasks.training.shard import RESULT, is_training, shard_folders
from webapp import answers, store_cache


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
        runs=f"{board} {store_cache.file_times(shards_in_training(home))}",
    )


def shards_in_training(home: Path) -> list[Path]:
    """Return the folders of the shards that processes of this machine are training."""
    roots = [market_home(home, market) for market in (SPOT, *APART)]
    shards = [folder for root in roots for folder in shard_folders(root) if not (folder / RESULT).exists()]
    return [*filter(is_training, shards)]
