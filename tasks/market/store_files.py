"""Which files of a market home are cpb's own, and the lock of the one process that writes them.

CPB_HOME may contain other files of the user, also in `reports/` or `features/`. A file is cpb's own if its folder has
cpb's structure (`TREE/interval=…/symbol=…`) and its name is a valid name of cpb; no other file there is ever moved or
deleted.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from schemas.errors import BusyError, CpbError
from schemas.identity import MARKETS, SPOT, series_folders
from tasks.market.manifest import ENDINGS, MANIFEST
from tasks.storage.files import DRAFT
from tasks.storage.locks import acquire, open_lock

_MANIFEST_DRAFT = re.compile(rf"{DRAFT.pattern}({'|'.join(ENDINGS)})")
_MONTH_FILE = re.compile(r"[0-9]{4}-[0-9]{2}\.parquet")
CANDLES = {"klines": _MONTH_FILE, "offgrid": _MONTH_FILE, "provisional": re.compile(r"tail\.parquet")}
"""Trees of series folders with candles, and the names of cpb's files in them."""

QUARANTINE = "quarantine"


def has_candles(root: Path) -> bool:
    """Whether months of candles are stored in a market home, including futures (`klines-um`)."""
    return any(_MONTH_FILE.fullmatch(path.name) for path in _in_series_folders(root, "klines"))


def _in_series_folders(root: Path, tree: str) -> Iterator[Path]:
    """Yield what lies in the series' folders of a tree, in all markets that share the home."""
    for market in MARKETS:
        for folder, _, _ in series_folders(root / (tree if market == SPOT else f"{tree}-{market}")):
            yield from folder.iterdir()


def delete_drafts(root: Path) -> None:
    """Delete the drafts left by a killed run in a market home, including futures (`klines-um`)."""
    # drafts of a rebuild, with the journals that SQLite made beside them
    for path in root.glob(f".{MANIFEST}.*"):
        if _MANIFEST_DRAFT.fullmatch(path.name):
            path.unlink(missing_ok=True)
    for path in (root / QUARANTINE).rglob(".*"):
        if DRAFT.fullmatch(path.name):
            path.unlink(missing_ok=True)
    for tree, names in CANDLES.items():
        for path in _in_series_folders(root, tree):
            if (draft := DRAFT.fullmatch(path.name)) and names.fullmatch(draft["name"]):
                path.unlink(missing_ok=True)


@contextmanager
def writer_lock(root: Path) -> Iterator[None]:
    """Hold the write lock of a market home; writers of other homes, such as the simulator's, are not affected.

    Raises:
        BusyError: another process writes there. CpbError: the folder is read-only.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        # the lock is of the market home: simulated candles may be written beside real ones
        lock = open_lock(root / "writer.lock")
    except (OSError, CpbError) as error:
        raise CpbError(
            f"cannot write in {root} ({error}); set CPB_HOME to a folder you own", code="read-only"
        ) from error
    with lock:
        try:
            # the caller decides whether to wait: a step tries again, a command says who is at work
            acquire(lock, wait=False)
        except BusyError as error:
            raise BusyError(
                f"another cpb is writing in {root}; wait for it, or use another CPB_HOME"
            ) from error
        yield
