"""The state of stored files: what an answer was made from, and whether it is still that."""

import os
from pathlib import Path

from schemas.identity import MARKETS, SeriesId, tree_of
from tasks.tracking.store import sqlite_path

State = tuple[object, ...]

SERIES_TREES = ("klines", "provisional", "forecasts", "ledger")
"""What the API shows of a series lies in these."""


def folder_state(folder: Path) -> State:
    """Return names, times of change and sizes of a folder's files; empty where there is no folder."""
    try:
        with os.scandir(folder) as entries:
            found = [(entry.name, entry.stat()) for entry in entries]
    except FileNotFoundError:  # the folder, or a file that was replaced between the two looks
        return ()
    return tuple(sorted((name, info.st_mtime_ns, info.st_size) for name, info in found))


def file_state(path: Path) -> State:
    """Return the time of change, size and inode of a file; empty where there is none."""
    try:
        info = path.stat()
    except FileNotFoundError:
        return ()
    return info.st_mtime_ns, info.st_size, info.st_ino


def series_state(home: Path, series: SeriesId, *trees: str) -> State:
    """Return the state of a series' folders in these trees, and of what is kept of its whole market."""
    folders = tuple(folder_state(series.folder(home, tree)) for tree in trees)
    return *folders, *market_state(home, series.market)


def market_state(home: Path, market: str) -> State:
    """Return the state of a market's record and of the findings of its drift watch."""
    ledger = tree_of(home, "ledger", market)
    return tuple(file_state(ledger / name) for name in ("summary.json", "watch.json"))


def tree_state(home: Path, tree: str) -> State:
    """Return the state of a tree in all markets, by its series' folders: files are replaced by rename, which shows."""
    return tuple(
        (entry.path, entry.stat().st_mtime_ns)
        for market in MARKETS
        for folder in sorted(tree_of(home, tree, market).glob("interval=*"))
        for entry in _folders(folder)
    )


def database_state(uri: str) -> State | None:
    """Return the state of MLflow's database on this machine; None for a server."""
    database = sqlite_path(uri)
    if database is None:
        return None
    return file_state(database), file_state(database.with_name(f"{database.name}-wal"))


def _folders(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return sorted((entry for entry in entries if entry.is_dir()), key=lambda entry: entry.name)
